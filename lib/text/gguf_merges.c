/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's BPE joins the two neighbours whose token has the highest score. As merges, that
 * is each way to cut a token into two, ranked by the token's score. */
#include "lib/text/gguf_tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PIECE_BYTES = 512 }; /* longer ones would make the search slow */

struct cut {
    const char *token; /* borrowed from the vocabulary */
    uint32_t left_bytes, right_bytes, left_chars, right_chars;
    int32_t left, right; /* ids */
    int32_t id;
    float score;
};

struct cuts {
    struct cut *items; /* [count] */
    size_t count, capacity;
};

static int push(struct cuts *cuts, const struct cut *cut, struct error *err)
{
    if (cuts->count == cuts->capacity) {
        size_t capacity = cuts->capacity ? 2 * cuts->capacity : 1024;
        struct cut *grown = reallocarray(cuts->items, capacity, sizeof *grown);
        if (!grown)
            return error_set(err, ERROR_NO_MEMORY, "no memory for merges");
        cuts->items = grown;
        cuts->capacity = capacity;
    }
    cuts->items[cuts->count++] = *cut;
    return 0;
}

/* The id of a part that takes part, or -1. */
static int32_t find(const json_t *vocab, const float *scores, const char *part, size_t length)
{
    const json_t *id = json_object_getn(vocab, part, length);
    return id && !isnan(scores[json_integer_value(id)]) ? (int32_t)json_integer_value(id) : -1;
}

static uint32_t count_chars(const char *text, size_t length)
{
    uint32_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

static int cut_token(struct cuts *cuts, const json_t *vocab, const float *scores, const char *token,
                     int32_t id, struct error *err)
{
    const size_t length = strlen(token);
    const uint32_t chars = count_chars(token, length);
    uint32_t before = 0;
    for (size_t at = 1; at < length; at++) {
        struct cut cut = {token, (uint32_t)at, (uint32_t)(length - at), 0, 0, -1, -1,
                          id,    scores[id]};
        if (((unsigned char)token[at] & 0xc0) == 0x80)
            continue; /* inside a character */
        before++;
        cut.left_chars = before;
        cut.right_chars = chars - before;
        cut.left = find(vocab, scores, token, at);
        cut.right = cut.left < 0 ? -1 : find(vocab, scores, token + at, length - at);
        if (cut.right >= 0 && push(cuts, &cut, err) != 0)
            return -1;
    }
    return 0;
}

#define COMPARE(x, y) \
    if ((x) != (y))   \
    return (x) < (y) ? -1 : 1

/* transformers' order: by score, then by the parts' characters, the longer first; then tokens in
 * their order, and the cuts of one token by the ids of its parts. */
static int by_rank(const void *one, const void *other)
{
    const struct cut *a = one, *b = other;
    COMPARE(b->score, a->score);
    COMPARE(b->left_chars, a->left_chars);
    COMPARE(b->right_chars, a->right_chars);
    COMPARE(a->id, b->id);
    COMPARE(a->left, b->left);
    COMPARE(a->right, b->right);
    return 0;
}

static int cut_all(struct cuts *cuts, const json_t *vocab, const float *scores, struct error *err)
{
    const char *token;
    json_t *value;
    json_object_foreach((json_t *)vocab, token, value)
    {
        const int32_t id = (int32_t)json_integer_value(value);
        if (isnan(scores[id]))
            continue;
        if (strlen(token) > MAX_PIECE_BYTES)
            return error_set(err, ERROR_INVALID, "\"%.60s\": expected at most %d bytes, got %zu",
                             token, MAX_PIECE_BYTES, strlen(token));
        if (cut_token(cuts, vocab, scores, token, id, err) != 0)
            return -1;
    }
    if (cuts->count > 0)
        qsort(cuts->items, cuts->count, sizeof *cuts->items, by_rank);
    return 0;
}

json_t *gguf_merges(const json_t *vocab, const float *scores, struct error *err)
{
    struct cuts cuts = {0};
    json_t *merges = json_array();
    int result = merges ? cut_all(&cuts, vocab, scores, err)
                        : error_set(err, ERROR_NO_MEMORY, "no memory for merges");
    for (size_t i = 0; result == 0 && i < cuts.count; i++) {
        const struct cut *cut = &cuts.items[i];
        json_t *pair = json_array();
        json_array_append_new(pair, json_stringn(cut->token, cut->left_bytes));
        json_array_append_new(pair, json_stringn(cut->token + cut->left_bytes, cut->right_bytes));
        if (json_array_append_new(merges, pair) != 0)
            result = error_set(err, ERROR_NO_MEMORY, "no memory for merges");
    }
    free(cuts.items);
    if (result == 0)
        return merges;
    json_decref(merges);
    return NULL;
}
