/* SPDX-License-Identifier: Apache-2.0 */
/* What a value must satisfy: schemas, all at once, with $ref and allOf taken apart. */
#ifndef LIB_GRAMMAR_SCHEMA_PARTS_H
#define LIB_GRAMMAR_SCHEMA_PARTS_H

#include "lib/grammar/schema_document.h"

enum { SCHEMA_MOST_PARTS = 64 };

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
