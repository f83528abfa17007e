/* The memory of texts: a slot each for what is constant (S, c, running maxima, rings) and pages of
 * 64 tokens for the keys and values of full windows, both out of one budget.
 *
 * A state reserves at creation what its text can need and takes pages as it grows, so a step never
 * fails for memory. Pages are counted: a clone shares the full ones (they are never written again)
 * and copies the last. Memory is committed when first used and the budget bounds what is committed,
 * not only what is in use. At any moment in use + reserved ahead + free = budget, less what does
 * not make a whole slot or page. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "engine/engine.h"
#include "engine/ops.h"

/* A run of a new slot that begins as `value`; the rest is never read before it is written. */
struct state_fill {
    size_t offset, count; /* bytes, floats */
    float value;
};

struct state_layout {
    size_t slot_bytes; /* of a text */
    size_t page_bytes; /* of 64 tokens, all layers; 0: no layer has a full window */
    struct state_fill *fills;
    int num_fills;
    int64_t max_positions; /* learned positions; 0: no limit */
};

struct state_memory;

/* Keeps a copy of the layout but borrows its fills. `poison` fills the budget with NaN first. */
int state_memory_create(struct state_memory **out, const struct ops *ops, struct backend *backend,
                        const struct state_layout *layout, size_t budget_bytes, bool poison,
                        struct error *err);
void state_memory_free(struct state_memory *memory);
void state_memory_report(const struct state_memory *memory, struct engine_memory *report);
size_t state_memory_needed(const struct state_memory *memory, int64_t max_tokens); /* bytes */

struct state {
    struct state_memory *memory;
    int64_t position, max_tokens;
    char *slot;       /* device */
    char **pages;     /* device; [max_pages], the first num_pages are there */
    int32_t *page_id; /* [max_pages] */
    int64_t num_pages, max_pages;
};

/* Takes the pages for positions up to `end`; cannot fail inside the reservation. */
void state_grow(struct state *state, int64_t end);

/* Of an engine: implemented by engine.c. */
struct state_memory *engine_state_memory(const struct engine *engine);

#endif
