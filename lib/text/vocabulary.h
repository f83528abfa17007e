/* SPDX-License-Identifier: Apache-2.0 */
/* The table of tokens: finds the content of an id, and through a hash table the id of a content. */
#ifndef LIB_TEXT_VOCABULARY_H
#define LIB_TEXT_VOCABULARY_H

#include "lib/text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

/* Ids must be below this, since tables are as long as the largest id. */
#define VOCABULARY_MAX_IDS (1 << 22)

enum token_flag {
    TOKEN_KNOWN = 1,   /* the id exists */
    TOKEN_MODEL = 2,   /* in the model's vocabulary, not only among the added tokens */
    TOKEN_SPECIAL = 4, /* an added token marked special */
    TOKEN_ADDED = 8,
};

struct vocabulary_token {
    uint32_t offset; /* where the content begins in `contents`; a NUL follows it */
    uint32_t length; /* bytes */
    unsigned flags;
};

/* Zero-initialise; vocabulary_clear frees it. */
struct vocabulary {
    struct vocabulary_token *tokens; /* [size] */
    int32_t size;                    /* one more than the largest id */
    size_t capacity;
    struct text_buffer contents;
    int32_t *slots; /* [slot_mask + 1] ids, -1 free */
    size_t slot_mask;
    size_t count;   /* known tokens */
    size_t longest; /* bytes of the longest content in the model's vocabulary */
};

/* Sizes the tables for about `count` tokens. Call it once, first. */
int vocabulary_init(struct vocabulary *vocabulary, size_t count, struct error *err);

/* Adds a token. Both id and content must be new. */
int vocabulary_add(struct vocabulary *vocabulary, int32_t id, const char *content, size_t length,
                   unsigned flags, struct error *err);

/* The id of a content ([length] bytes), or -1. */
int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *content, size_t length);

/* The same, but only in the model's vocabulary. */
int32_t vocabulary_find_model(const struct vocabulary *vocabulary, const char *content,
                              size_t length);

/* The content of a known token. */
static inline const char *vocabulary_content(const struct vocabulary *vocabulary, int32_t id)
{
    return vocabulary->contents.data + vocabulary->tokens[id].offset;
}

static inline bool vocabulary_knows(const struct vocabulary *vocabulary, int32_t id)
{
    return id >= 0 && id < vocabulary->size && vocabulary->tokens[id].flags & TOKEN_KNOWN;
}

void vocabulary_clear(struct vocabulary *vocabulary);

#endif
