/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/state.h"

#include "engine/base/bytes.h"
#include "engine/pool.h"
#include "engine/state_image.h"
#include "engine/state_save.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Memory that is there before texts need it, for slots and for pages, and a piece of it: a huge
 * page, which takes 0.1 to some milliseconds. */
enum { POPULATED_BYTES = 64 << 20, POPULATE_BYTES = 2 << 20 };

struct state_memory {
    const struct ops *ops;
    struct backend *backend;
    struct state_layout layout;
    size_t budget;
    char *region; /* [region_bytes]: slots and pages, which never meet */
    size_t region_bytes;
    struct pool slots, pages;
    size_t slots_there, pages_there; /* bytes that are populated, from their end of the region */
    bool unpopulated;                /* the system would not */
    struct state *first;             /* of all there are */
    int32_t *references;             /* of pages: [pages.capacity] */
    int32_t *users;                  /* of those, states that are not set aside: [pages.capacity] */
    int32_t used_pages;              /* that have users */
    int32_t cached;                  /* states set aside */
    int64_t pending;                 /* pages reserved by states alive and not yet taken */
    uint64_t *counted; /* of pages: the last count of state_bytes that met it: [pages.capacity] */
    uint64_t count;    /* of state_bytes, so far */
    int states;
};

int state_layout_add(struct state_layout *layout, struct state_part part, size_t *offset,
                     struct error *err)
{
    size_t *total = part.kind == STATE_PART_KV ? &layout->page_bytes : &layout->slot_bytes;
    size_t bytes, end;
    if (!size_mul((size_t)part.heads, part.head_bytes, &bytes) || !size_add(bytes, 63, &bytes) ||
        !size_add(*total, bytes / 64 * 64, &end) || end > SIZE_MAX / 4)
        return error_set(err, ERROR_INVALID, "the state of a text is too large");
    struct state_part *parts =
        realloc(layout->parts, (size_t)(layout->num_parts + 1) * sizeof *parts);
    if (parts == NULL)
        return error_set(err, ERROR_NO_MEMORY, "state layout: no memory");
    part.offset = *offset = *total;
    *total = end;
    layout->parts = parts;
    layout->parts[layout->num_parts++] = part;
    return 0;
}

void state_layout_clear(struct state_layout *layout)
{
    free(layout->parts);
    layout->parts = NULL;
}

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

static int64_t pages_for(const struct state_memory *memory, int64_t tokens)
{
    return state_layout_pages(&memory->layout, tokens);
}

size_t state_memory_needed(const struct state_memory *memory, int64_t max_tokens)
{
    return state_image_size(&memory->layout, max_tokens);
}

/* Reserves `slots` slots and `pages` pages, or says why not. `total` is what the text needs by
 * itself. */
static int reserve(struct state_memory *memory, int slots, int64_t pages, size_t total,
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

static struct state *state_allocate(struct state_memory *memory, int64_t max_tokens,
                                    struct error *err)
{
    size_t pages = (size_t)pages_for(memory, max_tokens);
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

static void take_slot(struct state *state)
{
    struct state_memory *memory = state->memory;
    memory->states++;
    if (memory->layout.slot_bytes == 0)
        return;
    int32_t item = take(memory, &memory->slots, &memory->pages);
    state->slot = pool_address(&memory->slots, item);
}

/* A state that is not set aside begins or ceases to use a page. */
static void add_user(struct state_memory *memory, int32_t page)
{
    memory->used_pages += memory->users[page]++ == 0;
}

static void remove_user(struct state_memory *memory, int32_t page)
{
    memory->used_pages -= --memory->users[page] == 0;
}

static void take_page(struct state *state)
{
    struct state_memory *memory = state->memory;
    int32_t item = take(memory, &memory->pages, &memory->slots);
    memory->pending--;
    memory->references[item] = 1;
    add_user(memory, item);
    state->page_id[state->num_pages] = item;
    state->pages[state->num_pages++] = pool_address(&memory->pages, item);
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
    if (memory->ops->max_pages > 0 && pages_for(memory, max_tokens) > memory->ops->max_pages)
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
    int64_t pages = pages_for(memory, max_tokens) - shared;
    if (reserve(memory, 1, pages, state_memory_needed(memory, max_tokens), err) != 0)
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
    take_slot(state);
    state->position = position;
    state->num_pages = shared;
    *out = state;
    return 0;
}

int state_create(struct state **out, struct engine *engine, int64_t max_tokens, struct error *err)
{
    struct state_memory *memory = engine_state_memory(engine);
    struct state *state;
    if (state_begin(&state, memory, 0, max_tokens, 0, err) != 0)
        return -1;
    for (int i = 0; i < memory->layout.num_parts; i++) {
        const struct state_part *part = &memory->layout.parts[i];
        if (part->kind == STATE_PART_RECURRENT || part->kind == STATE_PART_MAXIMA)
            memory->ops->fill(memory->backend, state->slot + part->offset,
                              part->kind == STATE_PART_MAXIMA ? -INFINITY : 0.0f,
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
        add_user(memory, source->page_id[i]);
    }
    if (source->num_pages > shared) {
        take_page(state);
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
    int64_t more = pages_for(memory, max_tokens) - state->max_pages;
    if (more <= 0) {
        memory->pending += more;
        resize_tables(state, state->max_pages + more, NULL);
    } else {
        if (reserve(memory, 0, more, state_memory_needed(memory, max_tokens), err) != 0)
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

static void scrub(const struct ops_save *save)
{
    state_image_scrub(save->context, save->position, save->to);
}

struct state_save state_save_begin(const struct state *state, void *image)
{
    struct state_memory *memory = state->memory;
    const struct ops_save save = {.to = image,
                                  .head = state->slot,
                                  .head_bytes = memory->layout.slot_bytes,
                                  .pages = state->pages,
                                  .num_pages = state->num_pages,
                                  .page_bytes = memory->layout.page_bytes,
                                  .there = scrub,
                                  .context = &memory->layout,
                                  .position = state->position};
    return (struct state_save){memory, memory->ops->save(memory->backend, &save)};
}

int state_save_wait(const struct state_save *save, struct error *err)
{
    const struct state_memory *memory = save->memory;
    return memory == NULL ? 0 : memory->ops->save_wait(memory->backend, save->number, err);
}

int state_save(const struct state *state, void *image, struct error *err)
{
    struct state_save save = state_save_begin(state, image);
    return state_save_wait(&save, err);
}

int state_restore(struct state **out, struct engine *engine, const void *image, int64_t position,
                  int64_t max_tokens, struct error *err)
{
    struct state_memory *memory = engine_state_memory(engine);
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
    while (state->num_pages < pages_for(memory, position)) {
        take_page(state);
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
        (cached ? remove_user : add_user)(memory, state->page_id[i]);
}

void state_free(struct state *state)
{
    if (state == NULL)
        return;
    struct state_memory *memory = state->memory;
    state_set_cached(state, false);
    memory->pending -= state->max_pages - state->num_pages;
    for (int64_t i = 0; i < state->num_pages; i++)
        remove_user(memory, state->page_id[i]);
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
    int64_t pages = pages_for(memory, end);
    while (state->num_pages < pages) {
        take_page(state);
        /* attention reads whole tiles: what is not yet written must be finite */
        memory->ops->fill(memory->backend, state->pages[state->num_pages - 1], 0.0f,
                          memory->layout.page_bytes / sizeof(float));
    }
}

void state_shrink(struct state *state, int64_t end)
{
    struct state_memory *memory = state->memory;
    while (state->num_pages > pages_for(memory, end)) {
        int32_t item = state->page_id[--state->num_pages];
        remove_user(memory, item);
        if (--memory->references[item] == 0)
            pool_give(&memory->pages, item);
        memory->pending++;
    }
}

int64_t state_pages(const struct state *state, int64_t position)
{
    int64_t pages = pages_for(state->memory, position);
    return pages < state->max_pages ? pages : state->max_pages;
}

int64_t state_position(const struct state *state)
{
    return state->position;
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
