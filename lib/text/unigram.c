/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/unigram.h"

#include "lib/text/buffer.h"
#include "lib/text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_special(const struct unigram *unigram, int32_t id)
{
    return unigram->vocabulary->tokens[id].flags & TOKEN_SPECIAL;
}

static int add_pieces(struct unigram *unigram, struct trie_entry *entries, struct error *err)
{
    const struct vocabulary *vocabulary = unigram->vocabulary;
    size_t count = 0;
    for (int32_t id = 0; id < vocabulary->size; id++) {
        const struct vocabulary_token *token = &vocabulary->tokens[id];
        if (!(token->flags & TOKEN_MODEL))
            continue;
        const char *content = vocabulary_content(vocabulary, id);
        if (token->length > TOKEN_TRIE_MAX_LENGTH)
            return error_set(err, ERROR_INVALID,
                             "model: vocab[%d]: \"%.60s\": expected at most %d bytes, got %u", id,
                             content, TOKEN_TRIE_MAX_LENGTH, (unsigned)token->length);
        unigram->has_special |= is_special(unigram, id);
        entries[count++] = (struct trie_entry){content, token->length, id};
    }
    return token_trie_build(&unigram->trie, entries, count, err) ? error_prefix(err, "model: vocab")
                                                                 : 0;
}

int unigram_finish(struct unigram *unigram, struct error *err)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        unigram->fallback[byte] = vocabulary_find_model(unigram->vocabulary, text, 6);
    }
    struct trie_entry *entries = calloc(unigram->vocabulary->count + 1, sizeof *entries);
    if (!entries)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu tokens",
                         unigram->vocabulary->count);
    int failed = add_pieces(unigram, entries, err);
    free(entries);
    return failed;
}

void unigram_clear(struct unigram *unigram)
{
    free(unigram->scores);
    token_trie_clear(&unigram->trie);
    *unigram = (struct unigram){0};
}

void unigram_scratch_clear(struct unigram_scratch *scratch)
{
    free(scratch->lengths);
    *scratch = (struct unigram_scratch){0};
}

/* One piece while it is cut. */
struct cutting {
    const struct unigram *unigram;
    const char *piece;
    bool no_special;
    struct unigram_scratch *scratch;
};

static void offer(struct cutting *cutting, size_t start, size_t end, double score)
{
    struct unigram_scratch *scratch = cutting->scratch;
    double *best = &scratch->best[end % UNIGRAM_WINDOW];
    double sum = score + scratch->best[start % UNIGRAM_WINDOW];
    if (scratch->lengths[end] && !(sum > *best))
        return;
    *best = sum;
    scratch->lengths[end] = (uint16_t)(end - start);
}

/* lengths[at] becomes that of the last token of the best cut up to `at`. */
static int search(struct cutting *cutting, size_t length, struct error *err)
{
    const struct unigram *unigram = cutting->unigram;
    cutting->scratch->best[0] = 0;
    for (size_t start = 0, used; start < length; start += used) {
        uint32_t node = 0;
        bool single = false; /* a token is this one character */
        utf8_decode(cutting->piece + start, &used);
        for (size_t at = start; at < length;) {
            if (!token_trie_step(&unigram->trie, &node, (unsigned char)cutting->piece[at++]))
                break;
            int32_t id = unigram->trie.nodes[node].id;
            if (id < 0 || (cutting->no_special && is_special(unigram, id)))
                continue;
            single |= at - start == used;
            offer(cutting, start, at, unigram->scores[id]);
        }
        if (single)
            continue;
        if (unigram->unknown_id < 0)
            return error_set(err, ERROR_INVALID, "tokenizer: no token for \"%.*s\", and no unk_id",
                             (int)used, cutting->piece + start);
        offer(cutting, start, start + used, unigram->unknown_score);
    }
    return 0;
}

/* lengths[at] becomes that of the token of the best cut that begins at `at`. */
static void turn_round(uint16_t *lengths, size_t length)
{
    size_t at = length;
    uint16_t token = lengths[at];
    while (at > 0) {
        at -= token;
        uint16_t before = lengths[at];
        lengths[at] = token;
        token = before;
    }
}

static int32_t find(const struct cutting *cutting, size_t start, size_t end)
{
    const struct vocabulary *vocabulary = cutting->unigram->vocabulary;
    if (end - start > vocabulary->longest)
        return -1;
    int32_t id = vocabulary_find_model(vocabulary, cutting->piece + start, end - start);
    return id >= 0 && cutting->no_special && is_special(cutting->unigram, id) ? -1 : id;
}

/* Unknown characters that follow each other are one text, which the library looks up once more. */
static int push_unknown(const struct cutting *cutting, size_t start, size_t end,
                        struct token_list *ids, struct error *err)
{
    const struct unigram *unigram = cutting->unigram;
    const unsigned char *piece = (const unsigned char *)cutting->piece;
    int32_t whole = find(cutting, start, end);
    bool spelled = whole < 0 && unigram->byte_fallback;
    for (size_t at = start; spelled && at < end; at++)
        spelled = unigram->fallback[piece[at]] >= 0;
    if (!spelled)
        return token_list_push(ids, whole >= 0 ? whole : unigram->unknown_id, err);
    for (size_t at = start; at < end; at++)
        if (token_list_push(ids, unigram->fallback[piece[at]], err))
            return -1;
    return 0;
}

static int push_ids(const struct cutting *cutting, size_t length, struct token_list *ids,
                    struct error *err)
{
    size_t known_up_to = 0; /* from here on all was unknown */
    for (size_t at = 0, end; at < length; at = end) {
        end = at + cutting->scratch->lengths[at];
        int32_t id = find(cutting, at, end);
        if (id < 0 || id == cutting->unigram->unknown_id)
            continue;
        if ((known_up_to < at && push_unknown(cutting, known_up_to, at, ids, err)) ||
            token_list_push(ids, id, err))
            return -1;
        known_up_to = end;
    }
    return known_up_to < length ? push_unknown(cutting, known_up_to, length, ids, err) : 0;
}

int unigram_encode(const struct unigram *unigram, const char *piece, size_t length, bool no_special,
                   struct unigram_scratch *scratch, struct token_list *ids, struct error *err)
{
    struct cutting cutting = {.unigram = unigram,
                              .piece = piece,
                              .no_special = no_special && unigram->has_special,
                              .scratch = scratch};
    if (array_grow((void **)&scratch->lengths, &scratch->capacity, length + 1,
                   sizeof *scratch->lengths, err))
        return -1;
    memset(scratch->lengths, 0, (length + 1) * sizeof *scratch->lengths);
    if (search(&cutting, length, err))
        return -1;
    turn_round(scratch->lengths, length);
    return push_ids(&cutting, length, ids, err);
}
