/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer of a GGUF file's metadata, as the tokenizer.json of the same model: byte-level BPE
 * ("gpt2"), SentencePiece's BPE ("llama"; with merges "gemma4") and RWKV's World ("rwkv"). Others
 * are refused by name (engine/model/gguf.md). */
#ifndef LIB_TEXT_GGUF_TOKENIZER_H
#define LIB_TEXT_GGUF_TOKENIZER_H

#include "lib/base/gguf.h"
#include "lib/base/warnings.h"

#include <jansson.h>

/* *root becomes the JSON, which the caller json_decrefs. */
int gguf_tokenizer(json_t **root, const struct gguf *gguf, struct warnings *warnings,
                   struct error *err);

/* For gguf_tokenizer.c alone. */

/* What tokenizer.ggml.pre means. */
struct gguf_split {
    json_t *normalizer, *pre_tokenizer; /* new references; NULL: null */
    bool ignore_merges, add_bos;
};
int gguf_split(struct gguf_split *split, const struct gguf *gguf, struct warnings *warnings,
               struct error *err);

/* The merges of a vocabulary {token: id} with a score for each id, NaN where the token
 * takes no part: each way to cut a token into two others, the highest score first. NULL with the
 * error set. */
json_t *gguf_merges(const json_t *vocab, const float *scores, struct error *err);

#endif
