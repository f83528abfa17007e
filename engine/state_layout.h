/* SPDX-License-Identifier: Apache-2.0 */
/* What a text keeps between steps, and where each part lies: in its slot, which has one size for
 * all texts of a model, or in its KV pages, of which it takes more as it grows. */
#ifndef ENGINE_STATE_LAYOUT_H
#define ENGINE_STATE_LAYOUT_H

#include "engine/ops/ops.h"
#include "lib/base/error.h"

#include <stddef.h>
#include <stdint.h>

/* What sets a kind of part apart from the plain one, which lies in the slot and is 0 in a new one.
 */
enum state_part_trait {
    STATE_IN_PAGES = 1, /* it lies in the pages, in their format, not in the slot as f32 */
    STATE_IN_TILES = 2, /* tiles of keys and values (ops_tile_bytes): unwritten in a new slot; of a
                           text that is saved only the places that it wrote count */
    STATE_OF_SEGMENTS = 4,  /* its window is l, the tokens of a segment: tiles have places for their
                               vectors; else it counts only while a segment is in hand */
    STATE_IS_LOWEST = 8,    /* -infinity in a new slot */
    STATE_IN_VERSION_2 = 16 /* version 1 of the file format does not have it */
};
/* A kind of part, of which nobody else but who writes and reads its numbers needs to know. Numbers
 * and names are those of the state file (state-file.md). */
#define STATE_PARTS(X)                                              \
    X(STATE_PART_RECURRENT, 1, "recurrent state", 0)                \
    X(STATE_PART_MAXIMA, 2, "running maxima", STATE_IS_LOWEST)      \
    X(STATE_PART_RING, 3, "ring of keys", STATE_IN_TILES)           \
    X(STATE_PART_KV, 4, "KV page", STATE_IN_PAGES | STATE_IN_TILES) \
    X(STATE_PART_SUMS, 5, "sums of a segment", STATE_OF_SEGMENTS)   \
    X(STATE_PART_SEGMENTS, 6, "segments of a KV page",              \
      STATE_IN_PAGES | STATE_IN_TILES | STATE_OF_SEGMENTS)          \
    X(STATE_PART_CONV, 7, "rows of a convolution", STATE_IN_VERSION_2)
#define STATE_PART_VALUE(value, number, ...) value = number,

enum state_part_kind { STATE_PARTS(STATE_PART_VALUE) };

/* What a layer keeps of a text: its heads one after the other, `head_bytes` each. */
struct state_part {
    enum state_part_kind kind;
    int layer, heads;
    int rows;                  /* dv of S, plus one for c if there is one; dv of keys' values, 0 of
                                  values in keys; K - 1 of a convolution */
    int features;              /* of S (ops_state_features); m2 of keys; a convolution's channels */
    int window;                /* W of a ring; l of sums and segments; K of a convolution */
    int places;                /* keys of a tile; of segments: their vectors in a page */
    size_t offset, head_bytes; /* in the slot, or in a page */
};

#define STATE_PART_HAS(value, number, name, traits) part->kind == value ? ((traits)&trait) != 0:

static inline bool state_part_is(const struct state_part *part, enum state_part_trait trait)
{
    return STATE_PARTS(STATE_PART_HAS) false;
}

/* Whether a part lies in the pages, in their format. */
static inline bool state_part_pages(const struct state_part *part)
{
    return state_part_is(part, STATE_IN_PAGES);
}

struct state_layout {
    size_t slot_bytes;        /* of a text; f32 */
    size_t page_bytes;        /* of 64 tokens, all layers; 0: no layer has a full window */
    enum kv_format kv;        /* of the pages */
    struct state_part *parts; /* in the order of their offsets, including those of the pages */
    int num_parts;
    int64_t max_positions; /* learned positions; 0: no limit */
};

/* Adds a part after the others, 64-byte aligned, and sets part.offset in its copy. */
int state_layout_add(struct state_layout *layout, struct state_part part, size_t *offset,
                     struct error *err);
void state_layout_clear(struct state_layout *layout);

/* The number of pages that hold positions [0, tokens). */
static inline int64_t state_layout_pages(const struct state_layout *layout, int64_t tokens)
{
    if (layout->page_bytes == 0 || tokens <= 0)
        return 0;
    return tokens / OPS_TILE + (tokens % OPS_TILE != 0);
}

#endif
