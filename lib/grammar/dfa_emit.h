/* SPDX-License-Identifier: Apache-2.0 */
/* Writes an automaton over characters as states over bytes. */
#ifndef LIB_GRAMMAR_DFA_EMIT_H
#define LIB_GRAMMAR_DFA_EMIT_H

#include "lib/grammar/builder.h"
#include "lib/grammar/dfa.h"

/* Characters of UTF-8; or of a JSON string, where each has one spelling: itself, or the shortest
 * escape if it needs one. U+0000 has none. */
enum dfa_spelling { DFA_UTF8, DFA_JSON };

/* Characters [first, last], from one state to another. */
void dfa_emit_range(struct builder *builder, uint32_t from, uint32_t to, uint32_t first,
                    uint32_t last);
/* What an automaton accepts that has choices, in UTF-8. */
void dfa_emit_nfa(struct builder *builder, uint32_t from, uint32_t to, const struct nfa *nfa);
/* What the automaton accepts. */
void dfa_emit(struct builder *builder, uint32_t from, uint32_t to, const struct dfa *dfa,
              enum dfa_spelling spelling);

#endif
