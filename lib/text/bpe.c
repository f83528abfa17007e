/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/bpe.h"

#include "lib/text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PROBES = 512, /* as in vocabulary.c */
    SHORT_PIECE = 32, /* symbols: up to here scanning is faster */
    NO_RANK = INT32_MAX,
};

int bpe_init(struct bpe *bpe, const struct vocabulary *vocabulary, size_t count, struct error *err)
{
    bpe->vocabulary = vocabulary;
    size_t slots = 64;
    while (slots < 2 * count)
        slots *= 2;
    bpe->slots = malloc(slots * sizeof *bpe->slots);
    bpe->merged_of_rank = malloc((count + 1) * sizeof *bpe->merged_of_rank);
    if (!bpe->slots || !bpe->merged_of_rank)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu merges", count);
    for (size_t i = 0; i < slots; i++)
        bpe->slots[i].pair = UINT64_MAX;
    bpe->slot_mask = slots - 1;
    return 0;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static size_t hash_pair(const struct bpe *bpe, uint64_t pair)
{
    uint64_t hash = pair * 0x9E3779B97F4A7C15u;
    return (size_t)(hash ^ hash >> 32) & bpe->slot_mask;
}

int bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, struct error *err)
{
    uint64_t pair = pair_of(left, right);
    size_t slot = hash_pair(bpe, pair);
    for (int probes = 0; bpe->slots[slot].pair != UINT64_MAX; probes++) {
        if (bpe->slots[slot].pair == pair)
            break; /* given twice: the later rank counts, as in the library */
        if (probes == MAX_PROBES)
            return error_set(err, ERROR_INVALID, "too many pairs with the same hash");
        slot = (slot + 1) & bpe->slot_mask;
    }
    bpe->slots[slot] = (struct merge_slot){pair, (uint32_t)bpe->merge_count, merged};
    bpe->merged_of_rank[bpe->merge_count++] = merged;
    return 0;
}

static bool is_special(const struct bpe *bpe, int32_t id)
{
    return bpe->vocabulary->tokens[id].flags & TOKEN_SPECIAL;
}

/* The merge of two neighbours, or NULL. */
static const struct merge_slot *find_merge(const struct bpe *bpe, const struct bpe_scratch *scratch,
                                           int32_t left, int32_t right)
{
    const bool leave_special = bpe->makes_special && scratch->no_special;
    uint64_t pair = pair_of(left, right);
    for (size_t slot = hash_pair(bpe, pair); bpe->slots[slot].pair != UINT64_MAX;
         slot = (slot + 1) & bpe->slot_mask)
        if (bpe->slots[slot].pair == pair)
            return leave_special && is_special(bpe, bpe->slots[slot].merged) ? NULL
                                                                             : &bpe->slots[slot];
    return NULL;
}

void bpe_finish(struct bpe *bpe)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        size_t length = utf8_encode(byte_level_character((unsigned char)byte), text);
        bpe->byte_ids[byte] = vocabulary_find_model(bpe->vocabulary, text, length);
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        bpe->fallback[byte] = vocabulary_find_model(bpe->vocabulary, text, 6);
    }
    for (size_t i = 0; i < bpe->merge_count; i++)
        bpe->makes_special |= is_special(bpe, bpe->merged_of_rank[i]);
}

void bpe_clear(struct bpe *bpe)
{
    free(bpe->slots);
    free(bpe->merged_of_rank);
    *bpe = (struct bpe){0};
}

void bpe_scratch_clear(struct bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->buckets);
    free(scratch->pool);
    free(scratch->ranks);
    text_buffer_clear(&scratch->spelled);
    *scratch = (struct bpe_scratch){0};
}

static void add_symbol(struct bpe_scratch *scratch, int32_t id)
{
    int32_t at = (int32_t)scratch->count++;
    scratch->symbols[at] = (struct bpe_symbol){id, at - 1, at + 1};
}

/* One character that the vocabulary lacks, as bytes; false when it lacks one of those too. */
static bool add_fallback(const struct bpe *bpe, struct bpe_scratch *scratch, const char *character,
                         size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bpe->fallback[(unsigned char)character[i]] < 0)
            return false;
    for (size_t i = 0; i < length; i++)
        add_symbol(scratch, bpe->fallback[(unsigned char)character[i]]);
    return true;
}

/* The symbols of a piece before any merge. */
static void add_symbols(const struct bpe *bpe, const char *piece, size_t length,
                        struct bpe_scratch *scratch)
{
    bool unknown = false; /* one is due, before the next known character */
    for (size_t at = 0, used; at < length; at += used) {
        int32_t id;
        if (bpe->byte_level) {
            used = 1;
            id = bpe->byte_ids[(unsigned char)piece[at]];
        } else {
            utf8_decode(piece + at, &used);
            id = vocabulary_find_model(bpe->vocabulary, piece + at, used);
            /* The library puts bytes before an unknown that is due. */
            if (id < 0 && bpe->byte_fallback && add_fallback(bpe, scratch, piece + at, used))
                continue;
        }
        if (id < 0 && bpe->unknown_id < 0)
            continue;
        if (unknown && (id >= 0 || !bpe->fuse_unknown))
            add_symbol(scratch, bpe->unknown_id);
        unknown = id < 0;
        if (id >= 0)
            add_symbol(scratch, id);
    }
    if (unknown)
        add_symbol(scratch, bpe->unknown_id);
    if (scratch->count)
        scratch->symbols[scratch->count - 1].next = -1;
}

/* Merges symbols[at] with its right neighbour. */
static void merge_at(struct bpe_symbol *symbols, int32_t at, int32_t merged)
{
    int32_t right = symbols[at].next;
    symbols[at].id = merged;
    symbols[at].next = symbols[right].next;
    symbols[right].id = -1;
    if (symbols[at].next >= 0)
        symbols[symbols[at].next].previous = at;
}

static int32_t rank_at(const struct bpe *bpe, const struct bpe_scratch *scratch, const int32_t *ids,
                       int at)
{
    const struct merge_slot *merge = find_merge(bpe, scratch, ids[at], ids[at + 1]);
    return merge ? (int32_t)merge->rank : NO_RANK;
}

/* At most SHORT_PIECE symbols, straight to ids: finds the lowest rank by looking at all. */
static int merge_short(const struct bpe *bpe, const struct bpe_scratch *scratch,
                       struct token_list *ids, struct error *err)
{
    int count = (int)scratch->count;
    int32_t parts[SHORT_PIECE], ranks[SHORT_PIECE];
    for (int i = 0; i < count; i++)
        parts[i] = scratch->symbols[i].id;
    for (int i = 0; i + 1 < count; i++)
        ranks[i] = rank_at(bpe, scratch, parts, i);
    for (;;) {
        int best = -1;
        int32_t lowest = NO_RANK;
        for (int i = 0; i + 1 < count; i++)
            if (ranks[i] < lowest) {
                lowest = ranks[i];
                best = i;
            }
        if (best < 0)
            break;
        parts[best] = bpe->merged_of_rank[lowest];
        count--;
        for (int i = best + 1; i < count; i++) {
            parts[i] = parts[i + 1];
            ranks[i - 1] = ranks[i];
        }
        if (best + 1 < count)
            ranks[best] = rank_at(bpe, scratch, parts, best);
        if (best > 0)
            ranks[best - 1] = rank_at(bpe, scratch, parts, best - 1);
    }
    for (int i = 0; i < count; i++)
        if (token_list_push(ids, parts[i], err))
            return -1;
    return 0;
}

static int ranks_push(struct bpe_scratch *scratch, uint32_t rank, struct error *err)
{
    if (array_grow((void **)&scratch->ranks, &scratch->rank_capacity, scratch->rank_count + 1,
                   sizeof *scratch->ranks, err))
        return -1;
    uint32_t *heap = scratch->ranks;
    size_t at = scratch->rank_count++;
    for (; at > 0 && heap[(at - 1) / 2] > rank; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = rank;
    return 0;
}

static void ranks_pop(struct bpe_scratch *scratch)
{
    uint32_t *heap = scratch->ranks;
    size_t count = --scratch->rank_count;
    uint32_t rank = heap[count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= rank)
            break;
        heap[at] = heap[child];
    }
    heap[at] = rank;
}

static int bucket_push(struct bpe_scratch *scratch, uint32_t rank, int32_t position,
                       struct error *err)
{
    uint32_t at = scratch->free_entry;
    if (at) {
        scratch->free_entry = scratch->pool[at].next;
    } else {
        if (scratch->pool_count == 0)
            scratch->pool_count = 1;
        if (array_grow((void **)&scratch->pool, &scratch->pool_capacity, scratch->pool_count + 1,
                       sizeof *scratch->pool, err))
            return -1;
        at = (uint32_t)scratch->pool_count++;
    }
    scratch->pool[at] = (struct bpe_entry){position, 0};
    struct bpe_bucket *bucket = &scratch->buckets[rank];
    if (bucket->head) {
        bucket->unsorted |= position < scratch->pool[bucket->tail].position;
        scratch->pool[bucket->tail].next = at;
        bucket->tail = at;
        return 0;
    }
    *bucket = (struct bpe_bucket){at, at, 0};
    return ranks_push(scratch, rank, err);
}

static int compare_positions(const void *left, const void *right)
{
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

/* Happens once at most while a bucket is emptied: whatever merges after its first entry makes only
 * longer symbols than its own two, so nothing is added to it before it is empty. */
static int bucket_sort(struct bpe_scratch *scratch, struct bpe_bucket *bucket, struct error *err)
{
    size_t count = 0, capacity = 0;
    int32_t *positions = NULL;
    for (uint32_t at = bucket->head; at; at = scratch->pool[at].next)
        count++;
    if (array_grow((void **)&positions, &capacity, count, sizeof *positions, err))
        return -1;
    count = 0;
    for (uint32_t at = bucket->head; at; at = scratch->pool[at].next)
        positions[count++] = scratch->pool[at].position;
    qsort(positions, count, sizeof *positions, compare_positions);
    count = 0;
    for (uint32_t at = bucket->head; at; at = scratch->pool[at].next)
        scratch->pool[at].position = positions[count++];
    free(positions);
    bucket->unsorted = 0;
    return 0;
}

/* Takes the leftmost place of the lowest rank. */
static int take_lowest(struct bpe_scratch *scratch, uint32_t *rank, int32_t *position,
                       struct error *err)
{
    *rank = scratch->ranks[0];
    struct bpe_bucket *bucket = &scratch->buckets[*rank];
    if (bucket->unsorted && bucket_sort(scratch, bucket, err))
        return -1;
    uint32_t at = bucket->head;
    *position = scratch->pool[at].position;
    bucket->head = scratch->pool[at].next;
    scratch->pool[at].next = scratch->free_entry;
    scratch->free_entry = at;
    if (!bucket->head)
        ranks_pop(scratch);
    return 0;
}

static int push_pair(const struct bpe *bpe, struct bpe_scratch *scratch, int32_t left,
                     struct error *err)
{
    const struct bpe_symbol *symbols = scratch->symbols;
    const struct merge_slot *merge =
        find_merge(bpe, scratch, symbols[left].id, symbols[symbols[left].next].id);
    return merge ? bucket_push(scratch, merge->rank, left, err) : 0;
}

static int merge_long(const struct bpe *bpe, struct bpe_scratch *scratch, struct error *err)
{
    struct bpe_symbol *symbols = scratch->symbols;
    if (!scratch->buckets)
        scratch->buckets = calloc(bpe->merge_count + 1, sizeof *scratch->buckets);
    if (!scratch->buckets)
        return error_set(err, ERROR_NO_MEMORY, "tokenizer: no memory for %zu merges",
                         bpe->merge_count);
    for (int32_t i = 0; symbols[i].next >= 0; i = symbols[i].next)
        if (push_pair(bpe, scratch, i, err))
            return -1;
    while (scratch->rank_count > 0) {
        uint32_t rank;
        int32_t at;
        if (take_lowest(scratch, &rank, &at, err))
            return -1;
        if (symbols[at].id < 0 || symbols[at].next < 0)
            continue;
        /* A place is stale when its pair has changed since. */
        int32_t merged = bpe->merged_of_rank[rank];
        const struct merge_slot *merge =
            find_merge(bpe, scratch, symbols[at].id, symbols[symbols[at].next].id);
        if (!merge || merge->merged != merged)
            continue;
        merge_at(symbols, at, merged);
        if (symbols[at].previous >= 0 && push_pair(bpe, scratch, symbols[at].previous, err))
            return -1;
        if (symbols[at].next >= 0 && push_pair(bpe, scratch, at, err))
            return -1;
    }
    return 0;
}

/* *id becomes that of a whole piece, as ignore_merges takes it, or -1. */
static int find_whole(const struct bpe *bpe, const char *piece, size_t length,
                      struct bpe_scratch *scratch, int32_t *id, struct error *err)
{
    struct text_buffer *spelled = &scratch->spelled;
    *id = -1;
    if (!bpe->ignore_merges || length > bpe->vocabulary->longest)
        return 0;
    if (bpe->byte_level) {
        spelled->length = 0;
        if (text_buffer_reserve(spelled, 2 * length, err))
            return -1;
        for (size_t i = 0; i < length; i++)
            spelled->length += utf8_encode(byte_level_character((unsigned char)piece[i]),
                                           spelled->data + spelled->length);
        piece = spelled->data;
        length = spelled->length;
    }
    *id = vocabulary_find_model(bpe->vocabulary, piece, length);
    if (*id >= 0 && scratch->no_special && is_special(bpe, *id))
        *id = -1;
    return 0;
}

int bpe_encode(const struct bpe *bpe, const char *piece, size_t length, struct bpe_scratch *scratch,
               struct token_list *ids, struct error *err)
{
    int32_t whole;
    if (find_whole(bpe, piece, length, scratch, &whole, err))
        return -1;
    if (whole >= 0)
        return token_list_push(ids, whole, err);
    if (length >= INT32_MAX)
        return error_set(err, ERROR_INVALID, "tokenizer: a piece of %zu bytes", length);
    scratch->count = 0;
    if (array_grow((void **)&scratch->symbols, &scratch->capacity, length + 1,
                   sizeof *scratch->symbols, err))
        return -1;
    add_symbols(bpe, piece, length, scratch);
    if (scratch->count <= SHORT_PIECE)
        return merge_short(bpe, scratch, ids, err);
    if (merge_long(bpe, scratch, err))
        return -1;
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next)
        if (token_list_push(ids, scratch->symbols[i].id, err))
            return -1;
    return 0;
}
