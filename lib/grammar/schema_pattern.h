/* SPDX-License-Identifier: Apache-2.0 */
/* The regular expressions of a schema as automata. Each is made once in a compile. */
#ifndef LIB_GRAMMAR_SCHEMA_PATTERN_H
#define LIB_GRAMMAR_SCHEMA_PATTERN_H

#include "lib/grammar/dfa.h"
#include "lib/grammar/schema_document.h"

struct schema_pattern; /* in the document's arena */
enum { SCHEMA_PATTERN_SLOTS = 256 };

/* Zero-initialise; schema_patterns_clear frees it. */
struct schema_patterns {
    struct schema_pattern *slots[SCHEMA_PATTERN_SLOTS]; /* lists */
};

/* An expression, [length] bytes borrowed like the document; with `search` found in a text, as
 * JSON Schema does. key: of the part, for messages. The automaton is the document's. NULL: failed.
 */
const struct dfa *schema_pattern(const struct schema_document *document,
                                 const struct schema_place *place, const char *key,
                                 const char *pattern, size_t length, bool search);
void schema_patterns_clear(struct schema_patterns *patterns);

#endif
