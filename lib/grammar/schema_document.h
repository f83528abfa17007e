/* SPDX-License-Identifier: Apache-2.0 */
/* A schema as a document while it is compiled: places in it, refusals that name them, and work. */
#ifndef LIB_GRAMMAR_SCHEMA_DOCUMENT_H
#define LIB_GRAMMAR_SCHEMA_DOCUMENT_H

#include "lib/base/arena.h"
#include "lib/base/error.h"
#include "lib/grammar/work.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { SCHEMA_MOST_DEPTH = 64 };

/* Where a schema stands, for messages. */
struct schema_place {
    const struct schema_place *parent; /* NULL: it is the whole schema, "$" */
    const char *key;                   /* NULL: an item of a list */
    size_t index;
};

/* Whether schemas in the document have an $id of their own; zero-initialise. */
struct schema_resources {
    bool known, nested;
};

struct schema_document {
    const json_t *root;
    struct arena *arena; /* for places, and what a compile keeps */
    struct work *work;
    struct schema_patterns *patterns;   /* in schema_pattern.c */
    struct schema_resources *resources; /* in schema_reference.c */
    const char *text_end;               /* what ends a string as text (schema_parts.h) */
    unsigned *annotations;              /* that its schemas have: a set (grammar.h) */
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

#endif
