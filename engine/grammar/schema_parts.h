/* SPDX-License-Identifier: Apache-2.0 */
/* What a value must satisfy: schemas, all at once, with $ref and allOf taken apart. */
#ifndef ENGINE_GRAMMAR_SCHEMA_PARTS_H
#define ENGINE_GRAMMAR_SCHEMA_PARTS_H

#include "engine/base/arena.h"
#include "engine/base/error.h"
#include "engine/grammar/work.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { SCHEMA_MOST_PARTS = 64, SCHEMA_MOST_DEPTH = 64 };

/* Where a schema stands, for messages. */
struct schema_place {
    const struct schema_place *parent; /* NULL: it is the whole schema, "$" */
    const char *key;                   /* NULL: an item of a list */
    size_t index;
};

struct schema_part {
    const json_t *schema; /* borrowed: an object or a boolean */
    const struct schema_place *place;
    bool chosen; /* its anyOf and oneOf have been taken apart, so they ask for nothing more */
    bool listed; /* the same of its enum */
};

/* How a value is written. As text a string is its characters alone, without quotes, as calls in XML
 * have it; apart: and none that reads as a value of another type. */
enum schema_spelling { SCHEMA_AS_JSON, SCHEMA_AS_TEXT, SCHEMA_AS_TEXT_APART };

struct schema_parts {
    struct schema_part items[SCHEMA_MOST_PARTS]; /* [count] */
    size_t count;
    enum schema_spelling spelling; /* as text: all parts together allow strings only */
    bool never;                    /* one is `false` */
};

struct schema_document {
    const json_t *root;
    struct arena *arena; /* for places, and what a compile keeps */
    struct work *work;
    struct schema_patterns *patterns; /* in schema_pattern.c */
    struct error *err;
};

/* A place in another. The string is borrowed. NULL: no memory, or too much work. */
const struct schema_place *schema_place_key(const struct schema_document *document,
                                            const struct schema_place *parent, const char *key);
const struct schema_place *schema_place_index(const struct schema_document *document,
                                              const struct schema_place *parent, size_t index);
enum { SCHEMA_PLACE_BYTES = 320 };
/* "$.properties.x.items[2]". */
const char *schema_place_text(const struct schema_place *place, char text[SCHEMA_PLACE_BYTES]);
/* Sets the error "PLACE.key: message" (key NULL: "PLACE: message"). Returns -1. */
int schema_refuse(const struct schema_document *document, const struct schema_place *place,
                  const char *key, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Counts steps; too many are refused with the place. */
int schema_work(const struct schema_document *document, const struct schema_place *place,
                size_t steps);
enum { SCHEMA_PLACE_WORK = 64 }; /* a place takes memory */

/* Adds a schema with all that it refers to. Refuses keywords that we do not know, and values of
 * known ones that are of the wrong kind. */
int schema_parts_add(const struct schema_document *document, struct schema_parts *parts,
                     const json_t *schema, const struct schema_place *place);
/* Adds the schema that an object's key names: {"items": {...}}. */
int schema_parts_add_member(const struct schema_document *document, struct schema_parts *parts,
                            const struct schema_part *part, const char *key);
/* Makes equal sets equal: sorts them. */
void schema_parts_sort(struct schema_parts *parts);

#endif
