/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that compile parts of a schema share. */
#ifndef LIB_GRAMMAR_SCHEMA_COMPILER_H
#define LIB_GRAMMAR_SCHEMA_COMPILER_H

#include "lib/grammar/builder.h"
#include "lib/grammar/index_table.h"
#include "lib/grammar/schema_parts.h"
#include "lib/grammar/schema_pattern.h"

struct schema_rule; /* in schema.c */
struct schema_call; /* schema.h */

struct schema_compiler {
    struct schema_document document;
    struct schema_patterns patterns;
    struct schema_resources resources;
    struct builder *builder;
    struct schema_rule *rules; /* [num_rules], in the order in which they are compiled */
    size_t num_rules, rules_capacity;
    struct index_table table; /* of the rules, by their parts */
    json_t *made;             /* a list of schemas that the document does not have */
};

/* {"type": ...} of one name; it lives as long as the compiler. NULL: failed. */
const json_t *schema_type_of(struct schema_compiler *compiler, const char *name);
/* The same of several. Takes over the list. */
const json_t *schema_types_of(struct schema_compiler *compiler, json_t *names);

/* The arguments of a call that is not JSON, as a rule (schema_arguments.c). */
void schema_arguments(struct schema_compiler *compiler, const struct schema_parts *parts,
                      const struct schema_call *call, uint32_t rule);

/* The rule of what satisfies the parts; it is compiled later. Not for parts that are `never`. */
uint32_t schema_rule(struct schema_compiler *compiler, const struct schema_parts *parts);

/* Each adds, between two states, the values of one type that satisfy the parts. */
void schema_string(struct schema_compiler *compiler, const struct schema_parts *parts,
                   uint32_t from, uint32_t to);
/* real: they may have a fraction. */
void schema_number(struct schema_compiler *compiler, const struct schema_parts *parts, bool real,
                   uint32_t from, uint32_t to);
void schema_array(struct schema_compiler *compiler, const struct schema_parts *parts, uint32_t from,
                  uint32_t to);
void schema_object(struct schema_compiler *compiler, const struct schema_parts *parts,
                   uint32_t from, uint32_t to);

/* What names must be that are strings of the parts; *asks: not any. The caller clears *out. */
int schema_string_names(const struct schema_document *document, const struct schema_parts *parts,
                        struct dfa *out, bool *asks);
/* What no string as text (enum schema_spelling) matches. NULL: failed. */
const struct dfa *schema_text_barred(const struct schema_document *document,
                                     const struct schema_parts *parts);

/* Whether a part has the keyword; then *value is it. */
bool schema_has(const struct schema_part *part, const char *key, const json_t **value);
/* Whether some part has one of the keywords [count]. */
bool schema_has_any(const struct schema_parts *parts, const char *const *keys, size_t count);
/* The value of minLength and the like; -1: there is none. Large ones become INT32_MAX - 1. */
int64_t schema_count(const struct schema_part *part, const char *key);
/* The largest, or with `least` the smallest, of all parts' values; -1: there is none. */
int64_t schema_counts(const struct schema_parts *parts, const char *key, bool least);

#endif
