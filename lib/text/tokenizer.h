/* SPDX-License-Identifier: Apache-2.0 */
/* Turns text into token ids and back, with a tokenizer.json, as Hugging Face's `tokenizers` does.
 *
 * It has BPE models: byte-level ones (GPT-2, GPT-NeoX, Llama 3, Qwen) and metaspace with byte
 * fallback (Llama 2, Mistral); Unigram; and RWKV's World, which has a file of its own. Loading
 * fails on anything else in the file and names it; tokenizer.md has the list. "truncation" and
 * "padding" are not applied, as in transformers by default.
 *
 * A loaded tokenizer never changes: many threads may call the functions below at once. Text is
 * UTF-8; encode refuses other bytes. */
#ifndef LIB_TEXT_TOKENIZER_H
#define LIB_TEXT_TOKENIZER_H

#include "lib/base/warnings.h"
#include "lib/text/buffer.h"
#include "lib/text/token_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Reads `path`: a tokenizer.json, a folder with one and perhaps a tokenizer_config.json, a World
 * vocabulary (.txt) or a folder that has one in the place of tokenizer.json, or a GGUF file or a
 * folder with one (gguf_path). The caller frees *out with tokenizer_free. */
int tokenizer_open(struct tokenizer **out, const char *path, struct error *err);

/* The same from memory. json: [length] bytes, borrowed for the call. */
int tokenizer_load(struct tokenizer **out, const char *json, size_t length, struct error *err);

/* The World vocabulary of a file; `file` is the place in messages. */
int tokenizer_load_world(struct tokenizer **out, const char *text, size_t length, const char *file,
                         struct error *err);

/* That of a GGUF file in memory: bytes [size], borrowed for the call. */
int tokenizer_load_gguf(struct tokenizer **out, const void *bytes, size_t size, struct error *err);

/* What is odd about the file. */
const struct warnings *tokenizer_warnings(const struct tokenizer *tokenizer);

/* The model has ids below vocab_size only. Where the tokenizer has others, there is a warning, and
 * texts that contain one are refused. Call it before others use the tokenizer. */
int tokenizer_limit(struct tokenizer *tokenizer, int32_t vocab_size, struct error *err);

void tokenizer_free(struct tokenizer *tokenizer);

/* Appends the ids of text ([length] bytes) to *ids. Recognises added tokens in the text as Hugging
 * Face does. add_special_tokens applies the post-processor's template. ERROR_INVALID when the text
 * is not UTF-8 (the message gives the byte offset). */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     bool add_special_tokens, struct token_list *ids, struct error *err);

/* The same of a text of which `input` [num_input], in order, was not written by who made the text:
 * added tokens that are special are text where any byte of them lies there. */
int tokenizer_encode_input(const struct tokenizer *tokenizer, const char *text, size_t length,
                           const struct text_span *input, size_t num_input, bool add_special_tokens,
                           struct token_list *ids, struct error *err);

/* Finds the first special token that a text ([length] bytes) spells at byte `from` or behind; of
 * those that begin there the longest. False: there is none that tokenizer_encode could find. */
bool tokenizer_find_special(const struct tokenizer *tokenizer, const char *text, size_t length,
                            size_t from, struct text_span *bytes, int32_t *id);

/* Decodes ids ([count]) into *text (malloc'd, NUL-terminated, *length bytes; the caller frees it).
 * Byte sequences that are not UTF-8 become U+FFFD, as in Hugging Face's library. Unknown ids
 * (>= tokenizer_size, or holes) decode to nothing. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count,
                     bool skip_special_tokens, char **text, size_t *length, struct error *err);

/* One more than the largest id. */
int32_t tokenizer_size(const struct tokenizer *tokenizer);

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);

/* The content of a token as tokenizer.json spells it (NULL when unknown): for /tokenizer_info. */
const char *tokenizer_token_content(const struct tokenizer *tokenizer, int32_t id);

/* The raw bytes that token `id` stands for in the middle of a text (borrowed; *length may be 0).
 * logprobs print them, as "bytes:\x.." when they are not whole characters. */
const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length);

/* Whether a space stands before each token's bytes, since the file has no decoder. */
bool tokenizer_joins_with_spaces(const struct tokenizer *tokenizer);

#endif
