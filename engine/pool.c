/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/pool.h"

#include <assert.h>
#include <stdlib.h>

enum { WORD = 64 };

int pool_open(struct pool *pool, char *base, size_t bytes, size_t item_bytes, bool backwards,
              struct error *err)
{
    *pool = (struct pool){.item_bytes = item_bytes};
    if (item_bytes == 0)
        return 0;
    size_t capacity = bytes / item_bytes;
    pool->capacity = capacity > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)capacity;
    pool->stride = backwards ? -(ptrdiff_t)item_bytes : (ptrdiff_t)item_bytes;
    pool->first = backwards && capacity > 0 ? base + (bytes - item_bytes) : base;
    pool->taken = calloc((size_t)pool->capacity / WORD + 1, sizeof *pool->taken);
    if (pool->taken == NULL)
        return error_set(err, ERROR_NO_MEMORY, "state memory: no memory for %d items",
                         pool->capacity);
    return 0;
}

void pool_close(struct pool *pool)
{
    free(pool->taken);
}

static bool is_taken(const struct pool *pool, int32_t item)
{
    return pool->taken[item / WORD] >> item % WORD & 1;
}

static int32_t mark_lowest(struct pool *pool)
{
    int32_t word = pool->lowest / WORD;
    while (pool->taken[word] == UINT64_MAX)
        word++;
    int32_t item = word * WORD + __builtin_ctzll(~pool->taken[word]);
    assert(item < pool->capacity);
    pool->taken[word] |= UINT64_C(1) << item % WORD;
    pool->lowest = item + 1;
    pool->top = item < pool->top ? pool->top : item + 1;
    return item;
}

static void unmark(struct pool *pool, int32_t item)
{
    pool->taken[item / WORD] &= ~(UINT64_C(1) << item % WORD);
    pool->lowest = item < pool->lowest ? item : pool->lowest;
    while (pool->top > 0 && !is_taken(pool, pool->top - 1))
        pool->top--;
}

int32_t pool_take(struct pool *pool)
{
    pool->used++;
    pool->peak = pool->used > pool->peak ? pool->used : pool->peak;
    return mark_lowest(pool);
}

void pool_give(struct pool *pool, int32_t item)
{
    pool->used--;
    unmark(pool, item);
}

int32_t pool_lower(struct pool *pool, int32_t *from)
{
    *from = pool->top - 1;
    int32_t to = mark_lowest(pool);
    assert(to < *from);
    unmark(pool, *from);
    return to;
}

char *pool_address(const struct pool *pool, int32_t item)
{
    return pool->first + item * pool->stride;
}

int32_t pool_item(const struct pool *pool, const char *address)
{
    return (int32_t)((address - pool->first) / pool->stride);
}

size_t pool_used_bytes(const struct pool *pool)
{
    return (size_t)pool->used * pool->item_bytes;
}

size_t pool_extent(const struct pool *pool)
{
    return (size_t)pool->top * pool->item_bytes;
}
