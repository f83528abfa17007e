/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions, as JSON Schema and the other servers take them (ECMA-262's and Python's
 * common part). grammar.md has the table. */
#ifndef LIB_GRAMMAR_REGEX_H
#define LIB_GRAMMAR_REGEX_H

#include "lib/grammar/dfa.h"

/* An automaton with choices, of the same texts. */
int regex_read(struct nfa *out, const char *text, size_t length, bool search, struct work *work,
               struct error *err);

/* The texts that match from beginning to end, or with `search` those that have a match in them.
 * text: [length] bytes of valid UTF-8. Errors name the offset in characters. */
int regex_compile(struct dfa *out, const char *text, size_t length, bool search, struct work *work,
                  struct error *err);

#endif
