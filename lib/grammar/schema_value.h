/* SPDX-License-Identifier: Apache-2.0 */
/* Values in a schema (enum, const): whether they satisfy its other keywords, and their text. */
#ifndef LIB_GRAMMAR_SCHEMA_VALUE_H
#define LIB_GRAMMAR_SCHEMA_VALUE_H

#include "lib/grammar/schema_parts.h"
#include "lib/text/buffer.h"

enum schema_type {
    SCHEMA_NULL = 1,
    SCHEMA_BOOLEAN = 2,
    SCHEMA_INTEGER = 4,
    SCHEMA_REAL = 8, /* a number that is no integer */
    SCHEMA_STRING = 16,
    SCHEMA_ARRAY = 32,
    SCHEMA_OBJECT = 64,
    SCHEMA_ALL = 127,
};

/* The types that a part's "type" allows: a set of enum schema_type. */
int schema_value_types(const struct schema_document *document, const struct schema_part *part,
                       unsigned *types);

/* *fits: whether the value satisfies all parts. */
int schema_value_fits(const struct schema_document *document, const json_t *value,
                      const struct schema_parts *parts, bool *fits);

/* Whether two are the same; 1 and 1.0 are. */
bool schema_value_same(const json_t *a, const json_t *b);

/* Appends the value as JSON; `tame`: as json_rules.h has it. */
int schema_value_text(const json_t *value, bool tame, struct text_buffer *out, struct error *err);
/* The same for a string: with its quotes and the shortest escapes. */
int schema_value_string(const char *text, size_t length, bool tame, struct text_buffer *out,
                        struct error *err);

#endif
