/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/state_memory.h"

#include "engine/engine_types.h"
#include "engine/state_image.h"

#include <math.h>
#include <stdlib.h>

/* Memory that is there before texts need it, for slots and for pages, and a piece of it: a huge
 * page, which takes 0.1 to some milliseconds. */
enum { POPULATED_BYTES = 64 << 20, POPULATE_BYTES = 2 << 20 };

/* The largest power of two that every slot and page is a multiple of, up to 256. */
static size_t alignment(const struct state_layout *layout)
{
    size_t sizes = layout->slot_bytes | layout->page_bytes | 256;
    return sizes & -sizes;
}

/* Pages from the beginning of the budget on, slots from its end. */
static int open_pools(struct state_memory *memory, bool poison, struct error *err)
{
    const struct state_layout *layout = &memory->layout;
    void *base = NULL;
    memory->region_bytes = memory->budget - memory->budget % alignment(layout);
    if (memory->region_bytes > 0 &&
        memory->ops->reserve(memory->backend, memory->region_bytes, &base, err) != 0)
        return -1;
    memory->region = base;
    if (poison && base != NULL)
        memory->ops->fill(memory->backend, base, NAN, memory->region_bytes / sizeof(float));
    if (pool_open(&memory->slots, base, memory->region_bytes, layout->slot_bytes, true, err) != 0)
        return -1;
    return pool_open(&memory->pages, base, memory->region_bytes, layout->page_bytes, false, err);
}

int state_memory_create(struct state_memory **out, const struct ops *ops, struct backend *backend,
                        const struct state_layout *layout, size_t budget_bytes, bool poison,
                        struct error *err)
{
    struct state_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return error_set(err, ERROR_NO_MEMORY, "state memory: no memory");
    memory->ops = ops;
    memory->backend = backend;
    memory->layout = *layout;
    memory->budget = budget_bytes;
    if (open_pools(memory, poison, err) != 0)
        goto fail;
    memory->references = calloc((size_t)memory->pages.capacity + 1, sizeof *memory->references);
    memory->users = calloc((size_t)memory->pages.capacity + 1, sizeof *memory->users);
    memory->counted = calloc((size_t)memory->pages.capacity + 1, sizeof *memory->counted);
    if (memory->references == NULL || memory->users == NULL || memory->counted == NULL) {
        error_set(err, ERROR_NO_MEMORY, "state memory: no memory");
        goto fail;
    }
    *out = memory;
    return 0;
fail:
    state_memory_free(memory);
    return -1;
}

void state_memory_free(struct state_memory *memory)
{
    if (memory == NULL)
        return;
    if (memory->region != NULL)
        memory->ops->release(memory->backend, memory->region, memory->region_bytes);
    pool_close(&memory->slots);
    pool_close(&memory->pages);
    free(memory->references);
    free(memory->users);
    free(memory->counted);
    free(memory);
}

void state_memory_report(const struct state_memory *memory, struct engine_memory *report)
{
    const struct pool *slots = &memory->slots, *pages = &memory->pages;
    *report = (struct engine_memory){
        .recurrent_bytes = pool_used_bytes(slots),
        .kv_bytes = pool_used_bytes(pages),
        .recurrent_reserved_bytes = pool_used_bytes(slots),
        .kv_reserved_bytes = pool_used_bytes(pages) + (size_t)memory->pending * pages->item_bytes,
        .recurrent_peak_bytes = (size_t)slots->peak * slots->item_bytes,
        .kv_peak_bytes = (size_t)pages->peak * pages->item_bytes,
        .recurrent_cached_bytes = (size_t)memory->cached * slots->item_bytes,
        .kv_cached_bytes = (size_t)(pages->used - memory->used_pages) * pages->item_bytes,
        .states = memory->states,
        .cached = memory->cached,
    };
}

/* The next piece for a pool, of which *there bytes are there; others: of the other pool, from the
 * other end on. False: enough is there already. */
static bool next_piece(const struct state_memory *memory, const struct pool *pool, size_t others,
                       size_t *there, size_t *piece)
{
    size_t wanted = pool->item_bytes == 0 ? 0 : pool_extent(pool) + POPULATED_BYTES;
    size_t most = memory->region_bytes - others;
    wanted = wanted < most ? wanted : most;
    if (*there >= wanted)
        return false;
    *piece = wanted - *there < POPULATE_BYTES ? wanted - *there : POPULATE_BYTES;
    *there += *piece;
    return true;
}

bool state_memory_populate(struct state_memory *memory)
{
    size_t piece;
    char *at;
    if (memory->ops->populate == NULL || memory->unpopulated)
        return false;
    if (next_piece(memory, &memory->slots, memory->pages_there, &memory->slots_there, &piece))
        at = memory->region + (memory->region_bytes - memory->slots_there);
    else if (next_piece(memory, &memory->pages, memory->slots_there, &memory->pages_there, &piece))
        at = memory->region + (memory->pages_there - piece);
    else
        return false;
    memory->unpopulated = !memory->ops->populate(memory->backend, at, piece);
    return !memory->unpopulated;
}

int64_t state_memory_pages(const struct state_memory *memory, int64_t tokens)
{
    return state_layout_pages(&memory->layout, tokens);
}

size_t state_memory_needed(const struct state_memory *memory, int64_t max_tokens)
{
    return state_image_size(&memory->layout, max_tokens);
}

int state_memory_reserve(struct state_memory *memory, int slots, int64_t pages, size_t total,
                         struct error *err)
{
    if (total > memory->budget)
        return error_set(err, ERROR_INVALID,
                         "the text needs %zu bytes of state memory, the budget is %zu", total,
                         memory->budget);
    size_t promised = pool_used_bytes(&memory->slots) + pool_used_bytes(&memory->pages) +
                      (size_t)memory->pending * memory->pages.item_bytes;
    size_t wanted =
        (size_t)slots * memory->layout.slot_bytes + (size_t)pages * memory->layout.page_bytes;
    if (wanted > memory->budget - promised ||
        (memory->layout.slot_bytes > 0 && slots > memory->slots.capacity - memory->slots.used) ||
        pages > memory->pages.capacity - memory->pages.used - memory->pending)
        return error_set(err, ERROR_NO_MEMORY,
                         "the text needs %zu bytes of state memory, %zu of %zu are free", wanted,
                         memory->budget - promised, memory->budget);
    memory->pending += pages;
    return 0;
}

/* The state's slot is another. */
static void move_slot(struct state_memory *memory, const char *from, char *to)
{
    struct state *state = memory->first;
    while (state->slot != from)
        state = state->next;
    state->slot = to;
}

/* A page of some states has another number. */
static void move_page(struct state_memory *memory, int32_t from, int32_t to)
{
    int32_t left = memory->references[to] = memory->references[from];
    memory->users[to] = memory->users[from];
    memory->users[from] = 0;
    for (struct state *state = memory->first; state != NULL && left > 0; state = state->next)
        for (int64_t i = 0; i < state->num_pages; i++)
            if (state->page_id[i] == from) {
                state->page_id[i] = to;
                state->pages[i] = pool_address(&memory->pages, to);
                left--;
                break;
            }
}

/* Copies the highest item into the lowest place that is free. What was queued before uses the old
 * place, what comes after the new one. */
static void lower(struct state_memory *memory, struct pool *pool)
{
    int32_t from, to = pool_lower(pool, &from);
    char *from_at = pool_address(pool, from), *to_at = pool_address(pool, to);
    memory->ops->copy(memory->backend, to_at, from_at, pool->item_bytes);
    if (pool == &memory->slots)
        move_slot(memory, from_at, to_at);
    else
        move_page(memory, from, to);
}

/* An item of what has been reserved. Where the others reach into it they have gaps below, since
 * all together fit: into these they go. */
static int32_t take(struct state_memory *memory, struct pool *pool, struct pool *others)
{
    int32_t item = pool_take(pool);
    while (pool_extent(pool) + pool_extent(others) > memory->region_bytes)
        lower(memory, others);
    return item;
}

void state_memory_take_slot(struct state *state)
{
    struct state_memory *memory = state->memory;
    memory->states++;
    if (memory->layout.slot_bytes == 0)
        return;
    int32_t item = take(memory, &memory->slots, &memory->pages);
    state->slot = pool_address(&memory->slots, item);
}

void state_memory_add_user(struct state_memory *memory, int32_t page)
{
    memory->used_pages += memory->users[page]++ == 0;
}

void state_memory_remove_user(struct state_memory *memory, int32_t page)
{
    memory->used_pages -= --memory->users[page] == 0;
}

void state_memory_take_page(struct state *state)
{
    struct state_memory *memory = state->memory;
    int32_t item = take(memory, &memory->pages, &memory->slots);
    memory->pending--;
    memory->references[item] = 1;
    state_memory_add_user(memory, item);
    state->page_id[state->num_pages] = item;
    state->pages[state->num_pages++] = pool_address(&memory->pages, item);
}
