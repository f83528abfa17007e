/* SPDX-License-Identifier: Apache-2.0 */
/* The members that a schema's objects may have: their names, and what each value must satisfy.
 * Names that propertyNames lists, as of an enum, are as good as those of properties. */
#ifndef LIB_GRAMMAR_SCHEMA_MEMBERS_H
#define LIB_GRAMMAR_SCHEMA_MEMBERS_H

#include "lib/grammar/schema_compiler.h"

enum { SCHEMA_MOST_PATTERNS = 16 };

/* A pattern of patternProperties. */
struct schema_name_pattern {
    size_t part; /* whose it is */
    const char *text;
    const json_t *schema;
    const struct schema_place *place;
    const struct dfa *dfa;
};

/* Zero-initialise; schema_members_clear frees it. */
struct schema_members {
    struct schema_compiler *compiler;
    const struct schema_parts *parts;
    const char **names; /* [num_names]: those of properties, then the other required ones */
    bool *required;     /* [num_names] */
    size_t num_names, names_capacity, required_capacity;
    bool open;   /* other names may come */
    bool asked;  /* by propertyNames: what names must satisfy */
    bool closed; /* by propertyNames: no others may come, not even those of a pattern */
    struct schema_parts asked_names;
    struct dfa others; /* what propertyNames leaves of other names, where has_others */
    bool has_others;
    json_t *known; /* by name: its index */
    struct schema_name_pattern patterns[SCHEMA_MOST_PATTERNS];
    size_t num_patterns;
};

int schema_members_read(struct schema_members *members, struct schema_compiler *compiler,
                        const struct schema_parts *parts);
void schema_members_clear(struct schema_members *members);
/* So many names, in their order, have come before the end: up to the last required one. */
size_t schema_members_must(const struct schema_members *members);
/* What the value of a name must satisfy. */
int schema_members_named(const struct schema_members *members, size_t index,
                         struct schema_parts *member);
/* The same for a name that is none of them. matches: the patterns that it does. */
int schema_members_other(const struct schema_members *members, const bool *matches,
                         struct schema_parts *member);

#endif
