/* SPDX-License-Identifier: Apache-2.0 */
/* Markers in a grammar's text. One that is a special token is that token; all others are text. */
#ifndef LIB_GRAMMAR_MARKER_H
#define LIB_GRAMMAR_MARKER_H

#include "lib/grammar/builder.h"
#include "lib/grammar/trie.h"
#include "lib/text/buffer.h"

/* Appends the bytes of a text, with the special tokens that it has: <...>, [...] or ｜...｜. */
int marker_append(const struct trie *trie, const char *text, struct text_buffer *bytes,
                  struct error *err);
/* The same between two states. */
void marker_add(struct builder *builder, const struct trie *trie, uint32_t from, uint32_t to,
                const char *text);
/* Whether the text begins with a special token. */
bool marker_begins_special(const struct trie *trie, const char *text, struct error *err);

#endif
