/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's precompiled map of characters, as the normalizer Precompiled of tokenizer.json
 * has it: a double-array trie of what is replaced, and what takes its place.
 *
 * It is applied as Hugging Face's library does, not SentencePiece: to grapheme clusters, and of
 * those that the map has a beginning of, the shortest such beginning replaces the whole. */
#ifndef LIB_TEXT_CHARSMAP_H
#define LIB_TEXT_CHARSMAP_H

#include "lib/base/error.h"

#include <stddef.h>

struct charsmap;

/* Reads it from Base64 ([length] characters). The caller frees *out with charsmap_free. */
int charsmap_create(struct charsmap **out, const char *base64, size_t length, struct error *err);
void charsmap_free(struct charsmap *map);

/* What takes the place of a text ([length] > 0 bytes): *replacement ([*replaced] bytes, of the
 * map), or NULL: it stays. */
const char *charsmap_find(const struct charsmap *map, const char *text, size_t length,
                          size_t *replaced);

/* The end of the grapheme cluster that begins at byte `start` of text ([length] bytes of valid
 * UTF-8). */
size_t charsmap_cluster_end(const char *text, size_t length, size_t start);

#endif
