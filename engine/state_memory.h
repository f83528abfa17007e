/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of texts. Each text has a slot for what is constant (S, c, running maxima, rings) and
 * pages of 64 tokens for the keys and values of full windows, both out of one budget.
 *
 * A state reserves at creation what its text can need, and takes pages as it grows, so a step never
 * fails for memory. Pages have reference counts: a clone shares the full pages, which are never
 * written again, and copies the last.
 *
 * Pages fill the budget from its beginning and slots from its end, the lowest free place first.
 * Where one kind reaches into what the other needs, its highest items are moved into its gaps. So
 * at any moment in use + reserved ahead + free = budget, and all free memory can be reserved, to
 * the last slot or page. */
#ifndef ENGINE_STATE_MEMORY_H
#define ENGINE_STATE_MEMORY_H

#include "engine/ops/ops.h"
#include "engine/pool.h"
#include "engine/state_layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_memory;

/* Only state.c and state_save.c use the members; other files call the functions below. */
struct state_memory {
    const struct ops *ops;
    struct backend *backend;
    struct state_layout layout;
    size_t budget;
    char *region; /* [region_bytes]: slots and pages, which never meet */
    size_t region_bytes;
    struct pool slots, pages;
    size_t slots_there, pages_there; /* populated bytes, from their end of the region */
    bool unpopulated;                /* the system refused to populate */
    struct state *first;             /* of all states */
    int32_t *references;             /* of pages: [pages.capacity] */
    int32_t *users;     /* of pages, by states that are not set aside: [pages.capacity] */
    int32_t used_pages; /* pages that have users */
    int32_t cached;     /* states set aside */
    int64_t pending;    /* pages that states have reserved and not yet taken */
    uint64_t
        *counted;   /* of pages: the last call of state_bytes that counted it: [pages.capacity] */
    uint64_t count; /* calls of state_bytes so far */
    int states;
};

/* One text's state; other files use it through engine/state.h. */
struct state {
    struct state_memory *memory;
    int64_t position, max_tokens;
    char *slot;       /* on the device; may change whenever a state takes a slot or pages */
    char **pages;     /* likewise; [room for max_pages], the first num_pages are taken */
    int32_t *page_id; /* [room for max_pages] */
    int64_t num_pages, max_pages;
    bool cached;
    struct state *before, *next; /* in the list of all states */
};

/* Borrows the layout. `poison` fills the budget with NaN first. */
int state_memory_create(struct state_memory **out, const struct ops *ops, struct backend *backend,
                        const struct state_layout *layout, size_t budget_bytes, bool poison,
                        struct error *err);
void state_memory_free(struct state_memory *memory);
void state_memory_report(const struct state_memory *memory, struct engine_memory *report);
bool state_memory_populate(struct state_memory *memory); /* engine_populate */
/* What a text of max_tokens positions needs: its bytes with the slot; its pages. */
size_t state_memory_needed(const struct state_memory *memory, int64_t max_tokens);
int64_t state_memory_pages(const struct state_memory *memory, int64_t max_tokens);

/* Reserves `slots` slots and `pages` pages, or says why it cannot. total: the bytes that the text
 * needs by itself. */
int state_memory_reserve(struct state_memory *memory, int slots, int64_t pages, size_t total,
                         struct error *err);
/* The state takes its slot, or one more page, out of its reservation. */
void state_memory_take_slot(struct state *state);
void state_memory_take_page(struct state *state);
/* A state that is not set aside begins, or stops, to use a page. */
void state_memory_add_user(struct state_memory *memory, int32_t page);
void state_memory_remove_user(struct state_memory *memory, int32_t page);

#endif
