/* SPDX-License-Identifier: Apache-2.0 */
/* RWKV's World tokenizer: from the left, always the longest token that the text goes on with.
 *
 * Tokens are bytes. The vocabulary spells them in GPT-2's alphabet, as that of a byte-level BPE
 * does, so that all that reads tokens reads these. */
#ifndef LIB_TEXT_WORLD_H
#define LIB_TEXT_WORLD_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"
#include "lib/text/token_list.h"
#include "lib/text/token_trie.h"
#include "lib/text/vocabulary.h"

#include <jansson.h>

/* What a model's folder has in the place of tokenizer.json. */
#define WORLD_FILE "rwkv_vocab_v20230424.txt"

/* Zero-initialise; world_clear frees. */
struct world {
    struct token_trie trie;
};

/* Makes the tree of all tokens of the model that are not added ones. Each byte must be one. */
int world_finish(struct world *world, const struct vocabulary *vocabulary, struct error *err);
void world_clear(struct world *world);

/* Appends the ids of text ([length] bytes) to *ids. */
int world_encode(const struct world *world, const char *text, size_t length, struct token_list *ids,
                 struct error *err);

/* The vocabulary of a file ([length] bytes: a line for each id, with a literal of Python and its
 * number of bytes) as a tokenizer.json whose model is of type "World": *root, which the caller
 * json_decrefs. `file` is the place in messages. */
int world_read(json_t **root, const char *text, size_t length, const char *file, struct error *err);

/* A tokenizer.json without a model, for tokens in GPT-2's alphabet; NULL: no memory. */
json_t *world_document(void);

/* Appends what escaped text ([length] bytes), without its quotes, stands for in Python: a text, in
 * UTF-8, or bytes. */
int world_unescape(const char *escaped, size_t length, bool text, struct text_buffer *bytes,
                   struct error *err);

/* Appends bytes [length] in GPT-2's alphabet. */
int world_spell(const char *bytes, size_t length, struct text_buffer *spelled, struct error *err);

#endif
