/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars in GBNF, the notation of llama.cpp. grammar.md has the table. */
#ifndef LIB_GRAMMAR_GBNF_H
#define LIB_GRAMMAR_GBNF_H

#include "lib/grammar/builder.h"
#include "lib/grammar/index_table.h"

enum { GBNF_MOST_BYTES = 1 << 18, GBNF_MOST_DEPTH = 100, GBNF_MOST_REPEAT = 1 << 14 };

struct gbnf_name {
    const char *name; /* [length], borrowed from the text */
    size_t length;
    size_t offset; /* in the text, where it is first mentioned */
    bool defined;
};

/* The names of its rules; name i is that of rule first + i. gbnf_clear frees it. */
struct gbnf {
    const char *text;        /* borrowed */
    struct gbnf_name *names; /* [count] */
    size_t count, capacity;
    uint32_t first;
    struct index_table table; /* of the names */
};

/* Adds the rules to a builder that has those of json_rules.h. *root is the rule "root". text:
 * [length] bytes of valid UTF-8, borrowed as long as *gbnf is. Free it after a failure too. */
int gbnf_compile(struct gbnf *gbnf, struct builder *builder, const char *text, size_t length,
                 uint32_t *root);
/* Where a name is first mentioned, both from 1 on. */
void gbnf_place(const struct gbnf *gbnf, const struct gbnf_name *name, size_t *line,
                size_t *column);
void gbnf_clear(struct gbnf *gbnf);

#endif
