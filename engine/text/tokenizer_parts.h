/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the tokenizer: its parts, and how they are read from tokenizer.json. */
#ifndef ENGINE_TEXT_TOKENIZER_PARTS_H
#define ENGINE_TEXT_TOKENIZER_PARTS_H

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/decoder.h"
#include "engine/text/normalize.h"
#include "engine/text/pretokenize.h"
#include "engine/text/tokenizer.h"
#include "engine/text/vocabulary.h"

#include <jansson.h>

struct tokenizer {
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct added_tokens plain_tokens;      /* looked for in the text as it comes */
    struct added_tokens normalized_tokens; /* looked for in the normalized text */
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct decoder decoder;
    struct token_list prefix; /* what the post-processor puts before a text's ids */
    struct token_list suffix; /* and after */
};

/* Each reads one section of tokenizer.json (NULL or null: none) into the part. The error names the
 * place below tokenizer.json. */
int normalizer_read(struct normalizer *normalizer, const json_t *json, struct error *err);
int pretokenizer_read(struct pretokenizer *pretokenizer, const json_t *json, bool *byte_level,
                      struct error *err);
int decoder_read(struct decoder *decoder, const json_t *json, struct error *err);
int template_read(struct tokenizer *tokenizer, const json_t *json, struct error *err);

/* The members of a JSON object, with the place for errors ("pre_tokenizer"). */
struct place {
    const json_t *object;
    const char *name;
    struct error *err;
};

/* The string `key`, or NULL with the error set. */
const char *place_string(const struct place *place, const char *key);

/* The boolean `key` into *value; when absent or null: fallback. */
int place_bool(const struct place *place, const char *key, bool fallback, bool *value);

/* The array `key`, or NULL with the error set. */
const json_t *place_array(const struct place *place, const char *key);

/* The one character that the string `key` must be, as UTF-8 with a NUL. */
int place_character(const struct place *place, const char *key, char character[5]);

/* The pattern {"String": ...} or {"Regex": ...} of "pattern"; the caller frees it. */
struct pattern *place_pattern(const struct place *place);

/* The value of `key` among `names` ([count]): its index, or -1 with the error set. */
int place_choice(const struct place *place, const char *key, const char *const *names,
                 size_t count);

#endif
