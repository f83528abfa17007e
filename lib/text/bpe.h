/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair encoding of one piece of text: maps characters to ids, then applies merges, lowest rank
 * first.
 *
 * The order is Hugging Face's: of the pairs with the lowest rank, the leftmost is merged first.
 * Short pieces are scanned for it. Long pieces keep a list of places per rank and a heap of ranks:
 * a merge costs O(log ranks) at most, and almost nothing where a few merges apply in many places.
 */
#ifndef LIB_TEXT_BPE_H
#define LIB_TEXT_BPE_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"
#include "lib/text/token_list.h"
#include "lib/text/vocabulary.h"

#include <stdbool.h>
#include <stdint.h>

struct merge_slot {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: free */
    uint32_t rank;
    int32_t merged;
};

/* Zero-initialise; bpe_clear frees. */
struct bpe {
    const struct vocabulary *vocabulary; /* borrowed */
    struct merge_slot *slots;            /* [slot_mask + 1] */
    size_t slot_mask;
    size_t merge_count;
    int32_t *merged_of_rank; /* [merge_count] */
    bool byte_level;         /* pieces are raw bytes; contents spell them in GPT-2's alphabet */
    bool byte_fallback;
    bool fuse_unknown;
    bool ignore_merges;
    bool makes_special;    /* a merge makes a special token */
    int32_t unknown_id;    /* -1: characters outside the vocabulary vanish */
    int32_t byte_ids[256]; /* byte_level: the id of each byte's character; -1: none */
    int32_t fallback[256]; /* byte_fallback: the id of "<0xAB>"; -1: none */
};

/* Allocates room for `count` merges. */
int bpe_init(struct bpe *bpe, const struct vocabulary *vocabulary, size_t count, struct error *err);

/* Adds the merge with the next rank. Its three ids must be in the vocabulary. */
int bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, struct error *err);

/* Looks up byte_ids and fallback, and finds makes_special. Call it when the vocabulary and the
 * merges are complete and the flags are set. */
void bpe_finish(struct bpe *bpe);
void bpe_clear(struct bpe *bpe);

struct bpe_symbol {
    int32_t id; /* -1: merged into the symbol before */
    int32_t previous;
    int32_t next;
};

/* The places in a piece where one merge may apply: a list in the pool, in order of position. */
struct bpe_bucket {
    uint32_t head; /* index into the pool; 0: empty */
    uint32_t tail;
    uint32_t unsorted; /* whether the list is out of order */
};

struct bpe_entry {
    int32_t position;
    uint32_t next; /* the next entry of the bucket, or of the free list; 0: none */
};

/* Scratch memory of bpe_encode, reused for each piece. Zero-initialise; bpe_scratch_clear frees it.
 */
struct bpe_scratch {
    struct bpe_symbol *symbols; /* [count] */
    size_t count;
    size_t capacity;
    struct bpe_bucket *buckets; /* [merge_count], by rank; all empty between pieces */
    struct bpe_entry *pool;     /* [pool_count]; entry 0 is not used */
    size_t pool_count;
    size_t pool_capacity;
    uint32_t free_entry; /* head of the free list */
    uint32_t *ranks; /* [rank_count], a heap of the buckets that are not empty, lowest rank first */
    size_t rank_count;
    size_t rank_capacity;
    struct text_buffer spelled; /* a piece in GPT-2's alphabet */
    bool no_special;            /* special tokens are not made of characters: the caller sets it */
};
void bpe_scratch_clear(struct bpe_scratch *scratch);

/* Appends the ids of a piece ([length] bytes of valid UTF-8, under 2 GiB) to *ids. */
int bpe_encode(const struct bpe *bpe, const char *piece, size_t length, struct bpe_scratch *scratch,
               struct token_list *ids, struct error *err);

#endif
