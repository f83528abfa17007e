/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/state.h"

#include "engine/state_memory.h"

#include <math.h>
#include <stdlib.h>

static struct state *state_allocate(struct state_memory *memory, int64_t max_tokens,
                                    struct error *err)
{
    size_t pages = (size_t)state_memory_pages(memory, max_tokens);
    struct state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        error_set(err, ERROR_NO_MEMORY, "state: no memory");
        return NULL;
    }
    state->memory = memory;
    state->max_tokens = max_tokens;
    state->max_pages = (int64_t)pages;
    state->pages = calloc(pages + 1, sizeof *state->pages);
    state->page_id = calloc(pages + 1, sizeof *state->page_id);
    if (state->pages == NULL || state->page_id == NULL) {
        error_set(err, ERROR_NO_MEMORY, "state: no memory for %zu pages", pages);
        free(state->pages);
        free(state->page_id);
        free(state);
        return NULL;
    }
    return state;
}

static int check_length(const struct state_memory *memory, int64_t position, int64_t max_tokens,
                        struct error *err)
{
    int64_t limit = memory->layout.max_positions;
    if (max_tokens < 0)
        return error_set(err, ERROR_INVALID, "max_tokens: expected 0 or more, got %lld",
                         (long long)max_tokens);
    if (limit > 0 && max_tokens > limit)
        return error_set(err, ERROR_INVALID, "max_tokens: the model has %lld positions, got %lld",
                         (long long)limit, (long long)max_tokens);
    if (memory->ops->max_pages > 0 &&
        state_memory_pages(memory, max_tokens) > memory->ops->max_pages)
        return error_set(err, ERROR_INVALID,
                         "max_tokens: expected at most %lld on this device, got %lld",
                         (long long)memory->ops->max_pages * OPS_TILE, (long long)max_tokens);
    if (max_tokens < position)
        return error_set(err, ERROR_INVALID, "max_tokens: the text has %lld tokens, got %lld",
                         (long long)position, (long long)max_tokens);
    return 0;
}

/* A state at `position` with a slot, whose first `shared` pages are still to be set. */
static int state_begin(struct state **out, struct state_memory *memory, int64_t position,
                       int64_t max_tokens, int64_t shared, struct error *err)
{
    if (check_length(memory, position, max_tokens, err) != 0)
        return -1;
    int64_t pages = state_memory_pages(memory, max_tokens) - shared;
    if (state_memory_reserve(memory, 1, pages, state_memory_needed(memory, max_tokens), err) != 0)
        return -1;
    struct state *state = state_allocate(memory, max_tokens, err);
    if (state == NULL) {
        memory->pending -= pages;
        return -1;
    }
    state->next = memory->first;
    if (state->next != NULL)
        state->next->before = state;
    memory->first = state;
    state_memory_take_slot(state);
    state->position = position;
    state->num_pages = shared;
    *out = state;
    return 0;
}

int state_new(struct state **out, struct state_memory *memory, int64_t max_tokens,
              struct error *err)
{
    struct state *state;
    if (state_begin(&state, memory, 0, max_tokens, 0, err) != 0)
        return -1;
    for (int i = 0; i < memory->layout.num_parts; i++) {
        const struct state_part *part = &memory->layout.parts[i];
        if (!state_part_is(part, STATE_IN_TILES))
            memory->ops->fill(memory->backend, state->slot + part->offset,
                              state_part_is(part, STATE_IS_LOWEST) ? -INFINITY : 0.0f,
                              (size_t)part->heads * part->head_bytes / sizeof(float));
    }
    *out = state;
    return 0;
}

int state_clone(struct state **out, const struct state *source, int64_t max_tokens,
                struct error *err)
{
    struct state_memory *memory = source->memory;
    int64_t shared = memory->layout.page_bytes == 0 ? 0 : source->position / OPS_TILE;
    struct state *state;
    if (state_begin(&state, memory, source->position, max_tokens, shared, err) != 0)
        return -1;
    memory->ops->copy(memory->backend, state->slot, source->slot, memory->layout.slot_bytes);
    for (int64_t i = 0; i < shared; i++) {
        state->pages[i] = source->pages[i];
        state->page_id[i] = source->page_id[i];
        memory->references[source->page_id[i]]++;
        state_memory_add_user(memory, source->page_id[i]);
    }
    if (source->num_pages > shared) {
        state_memory_take_page(state);
        memory->ops->copy(memory->backend, state->pages[shared], source->pages[shared],
                          memory->layout.page_bytes);
    }
    *out = state;
    return 0;
}

/* Room for the addresses of `pages` pages. On failure that of before. */
static int resize_tables(struct state *state, int64_t pages, struct error *err)
{
    char **addresses = realloc(state->pages, ((size_t)pages + 1) * sizeof *addresses);
    state->pages = addresses == NULL ? state->pages : addresses;
    int32_t *ids = realloc(state->page_id, ((size_t)pages + 1) * sizeof *ids);
    state->page_id = ids == NULL ? state->page_id : ids;
    if (addresses == NULL || ids == NULL)
        return error_set(err, ERROR_NO_MEMORY, "state: no memory for %lld pages", (long long)pages);
    return 0;
}

int state_reserve(struct state *state, int64_t max_tokens, struct error *err)
{
    struct state_memory *memory = state->memory;
    if (check_length(memory, state->position, max_tokens, err) != 0)
        return -1;
    int64_t more = state_memory_pages(memory, max_tokens) - state->max_pages;
    if (more <= 0) {
        memory->pending += more;
        resize_tables(state, state->max_pages + more, NULL);
    } else {
        if (state_memory_reserve(memory, 0, more, state_memory_needed(memory, max_tokens), err) !=
            0)
            return -1;
        if (resize_tables(state, state->max_pages + more, err) != 0) {
            memory->pending -= more;
            return -1;
        }
    }
    state->max_pages += more;
    state->max_tokens = max_tokens;
    return 0;
}

int state_load(struct state **out, struct state_memory *memory, const void *image, int64_t position,
               int64_t max_tokens, struct error *err)
{
    const struct state_layout *layout = &memory->layout;
    const char *from = image;
    struct state *state;
    if (position < 0)
        return error_set(err, ERROR_INVALID, "position: expected 0 or more, got %lld",
                         (long long)position);
    if (state_begin(&state, memory, position, max_tokens, 0, err) != 0)
        return -1;
    if (layout->slot_bytes > 0)
        memory->ops->copy_in(memory->backend, state->slot, from, layout->slot_bytes);
    from += layout->slot_bytes;
    while (state->num_pages < state_memory_pages(memory, position)) {
        state_memory_take_page(state);
        memory->ops->copy_in(memory->backend, state->pages[state->num_pages - 1], from,
                             layout->page_bytes);
        from += layout->page_bytes;
    }
    *out = state;
    return 0;
}

void state_set_cached(struct state *state, bool cached)
{
    struct state_memory *memory = state->memory;
    if (state->cached == cached)
        return;
    state->cached = cached;
    memory->cached += cached ? 1 : -1;
    for (int64_t i = 0; i < state->num_pages; i++)
        (cached ? state_memory_remove_user : state_memory_add_user)(memory, state->page_id[i]);
}

void state_free(struct state *state)
{
    if (state == NULL)
        return;
    struct state_memory *memory = state->memory;
    state_set_cached(state, false);
    memory->pending -= state->max_pages - state->num_pages;
    for (int64_t i = 0; i < state->num_pages; i++)
        state_memory_remove_user(memory, state->page_id[i]);
    for (int64_t i = 0; i < state->num_pages; i++)
        if (--memory->references[state->page_id[i]] == 0)
            pool_give(&memory->pages, state->page_id[i]);
    if (state->slot != NULL)
        pool_give(&memory->slots, pool_item(&memory->slots, state->slot));
    memory->states--;
    *(state->before != NULL ? &state->before->next : &memory->first) = state->next;
    if (state->next != NULL)
        state->next->before = state->before;
    free(state->pages);
    free(state->page_id);
    free(state);
}

void state_grow(struct state *state, int64_t end)
{
    struct state_memory *memory = state->memory;
    int64_t pages = state_memory_pages(memory, end);
    while (state->num_pages < pages) {
        state_memory_take_page(state);
        /* attention reads whole tiles: what is not yet written must be finite */
        memory->ops->fill(memory->backend, state->pages[state->num_pages - 1], 0.0f,
                          memory->layout.page_bytes / sizeof(float));
    }
}

void state_shrink(struct state *state, int64_t end)
{
    struct state_memory *memory = state->memory;
    while (state->num_pages > state_memory_pages(memory, end)) {
        int32_t item = state->page_id[--state->num_pages];
        state_memory_remove_user(memory, item);
        if (--memory->references[item] == 0)
            pool_give(&memory->pages, item);
        memory->pending++;
    }
}

int64_t state_pages(const struct state *state, int64_t position)
{
    int64_t pages = state_memory_pages(state->memory, position);
    return pages < state->max_pages ? pages : state->max_pages;
}

int64_t state_position(const struct state *state)
{
    return state->position;
}

int64_t state_reserved(const struct state *state)
{
    return state->max_tokens;
}

/* How many of a state's pages this count has not met: those above the first that it has, as a clone
 * shares pages from the first on. */
static int64_t count_pages(const struct state *state)
{
    struct state_memory *memory = state->memory;
    int64_t page = state->num_pages;
    while (page > 0 && memory->counted[state->page_id[page - 1]] != memory->count)
        memory->counted[state->page_id[--page]] = memory->count;
    return state->num_pages - page;
}

size_t state_bytes(struct state *const *states, size_t count)
{
    size_t bytes = 0;
    if (count > 0)
        states[0]->memory->count++;
    for (size_t i = 0; i < count; i++) {
        const struct state_layout *layout = &states[i]->memory->layout;
        bytes += layout->slot_bytes + (size_t)count_pages(states[i]) * layout->page_bytes;
    }
    return bytes;
}
