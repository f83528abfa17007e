/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of texts: a slot each for what is constant (S, c, running maxima, rings) and pages of
 * 64 tokens for the keys and values of full windows, both out of one budget.
 *
 * A state reserves at creation what its text can need and takes pages as it grows, so a step never
 * fails for memory. Pages are counted: a clone shares the full ones (they are never written again)
 * and copies the last. Pages lie from the beginning of the budget on and slots from its end, the
 * lowest free place first; where one kind reaches into what the other needs, its highest are moved
 * into its gaps. So at any moment in use + reserved ahead + free = budget, and what is free can be
 * reserved to the last slot or page. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "engine/engine.h"
#include "engine/ops/ops.h"

/* Numbers and names are those of the state file (server/README.md). */
#define STATE_PARTS(X)                            \
    X(STATE_PART_RECURRENT, 1, "recurrent state") \
    X(STATE_PART_MAXIMA, 2, "running maxima")     \
    X(STATE_PART_RING, 3, "ring of keys")         \
    X(STATE_PART_KV, 4, "KV page")
#define STATE_PART_VALUE(value, number, name) value = number,

enum state_part_kind { STATE_PARTS(STATE_PART_VALUE) };

/* What a layer keeps of a text: heads one after the other, each `head_bytes` long. A new slot's
 * recurrent parts are 0 and its maxima -infinity; rings begin unwritten. */
struct state_part {
    enum state_part_kind kind;
    int layer, heads;
    int rows;                  /* dv of S, then c where there is one; dv of keys' values */
    int features;              /* m2 of S, of keys */
    int window;                /* W of a ring */
    size_t offset, head_bytes; /* in the slot; of kind KV in a page */
};

struct state_layout {
    size_t slot_bytes;        /* of a text; f32 */
    size_t page_bytes;        /* of 64 tokens, all layers; 0: no layer has a full window */
    enum kv_format kv;        /* of the pages */
    struct state_part *parts; /* in the order of their offsets, those of the pages among them */
    int num_parts;
    int64_t max_positions; /* learned positions; 0: no limit */
};

/* Lays a part behind those there are, 64-byte aligned; sets part.offset in its copy. */
int state_layout_add(struct state_layout *layout, struct state_part part, size_t *offset,
                     struct error *err);
void state_layout_clear(struct state_layout *layout);

/* Pages that hold positions [0, tokens). */
static inline int64_t state_layout_pages(const struct state_layout *layout, int64_t tokens)
{
    if (layout->page_bytes == 0 || tokens <= 0)
        return 0;
    return tokens / OPS_TILE + (tokens % OPS_TILE != 0);
}

struct state_memory;

/* Borrows the layout. `poison` fills the budget with NaN first. */
int state_memory_create(struct state_memory **out, const struct ops *ops, struct backend *backend,
                        const struct state_layout *layout, size_t budget_bytes, bool poison,
                        struct error *err);
void state_memory_free(struct state_memory *memory);
void state_memory_report(const struct state_memory *memory, struct engine_memory *report);
bool state_memory_populate(struct state_memory *memory); /* engine_populate */
size_t state_memory_needed(const struct state_memory *memory, int64_t max_tokens); /* bytes */

struct state {
    struct state_memory *memory;
    int64_t position, max_tokens;
    char *slot;       /* device; may be another whenever a state takes a slot or pages */
    char **pages;     /* likewise; [room for max_pages], the first num_pages are there */
    int32_t *page_id; /* [room for max_pages] */
    int64_t num_pages, max_pages;
    bool cached;
    struct state *before, *next; /* of the memory's */
};

/* Takes the pages for positions up to `end`; cannot fail inside the reservation. */
void state_grow(struct state *state, int64_t end);
/* Gives back what positions from `end` on had taken. */
void state_shrink(struct state *state, int64_t end);

/* Of an engine: implemented by engine.c. */
struct state_memory *engine_state_memory(const struct engine *engine);
const struct state_layout *engine_state_layout(const struct engine *engine);

#endif
