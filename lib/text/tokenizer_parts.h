/* SPDX-License-Identifier: Apache-2.0 */
/* What a tokenizer is made of. Each part is read from its section of tokenizer.json. */
#ifndef LIB_TEXT_TOKENIZER_PARTS_H
#define LIB_TEXT_TOKENIZER_PARTS_H

#include "lib/base/fields.h"
#include "lib/base/warnings.h"
#include "lib/text/added_tokens.h"
#include "lib/text/bpe.h"
#include "lib/text/decoder.h"
#include "lib/text/normalize.h"
#include "lib/text/pretokenize.h"
#include "lib/text/token_list.h"
#include "lib/text/unigram.h"
#include "lib/text/vocabulary.h"
#include "lib/text/world.h"

/* How a piece of text becomes ids. */
enum tokenizer_model {
    MODEL_BPE,
    MODEL_UNIGRAM,
    MODEL_WORLD, /* of other files than tokenizer.json */
};

struct tokenizer {
    enum tokenizer_model model;
    struct vocabulary vocabulary;
    struct bpe bpe;                        /* MODEL_BPE */
    struct unigram unigram;                /* MODEL_UNIGRAM */
    struct world world;                    /* MODEL_WORLD */
    struct added_tokens plain_tokens;      /* looked for in the text as it comes */
    struct added_tokens normalized_tokens; /* looked for in the normalized text */
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct decoder decoder;
    struct token_list prefix;  /* what the post-processor puts before a text's ids */
    struct token_list suffix;  /* and after */
    bool split_special_tokens; /* special tokens in a text are text */
    int32_t limit;             /* ids from here on are refused; 0: none */
    struct warnings warnings;
};

/* Each reads one section of tokenizer.json (NULL or null: none) into the part. The error names the
 * place below tokenizer.json. */
int normalizer_read(struct normalizer *normalizer, const json_t *json, struct error *err);
/* *byte_level: whether a ByteLevel came last, which is then left to the model; NULL: it is not. */
int pretokenizer_read(struct pretokenizer *pretokenizer, const struct normalizer *normalizer,
                      const json_t *json, bool *byte_level, struct error *err);
int added_tokens_read(struct tokenizer *tokenizer, const json_t *list, const json_t *more,
                      struct error *err);
int decoder_read(struct decoder *decoder, const json_t *json, struct error *err);
int template_read(struct tokenizer *tokenizer, const json_t *json, struct error *err);

/* Reads "model" into the tokenizer; `added` tokens come beside it. own: it may be of a type that a
 * tokenizer.json does not have. model_finish makes it ready once all else is read. */
int model_read(struct tokenizer *tokenizer, json_t *json, size_t added, bool own,
               struct error *err);
int model_finish(struct tokenizer *tokenizer, struct error *err);

/* The name `key` among names [count]: its index, or -1 with the error set, which is
 * ERROR_UNSUPPORTED for a name that we do not know. */
int tokenizer_parts_choice(const struct fields *fields, const char *key, const char *const *names,
                           int count, struct error *err);

struct byte_level {
    bool prefix_space, use_regex;
};

/* The keys of a ByteLevel, which the library wants wherever it stands, though only a pre-tokenizer
 * does what they say. */
int tokenizer_parts_byte_level(const struct fields *fields, struct byte_level *keys,
                               struct error *err);

#endif
