/* SPDX-License-Identifier: Apache-2.0 */
/* Which places are taken: beside an array of flags. */
#include "engine/pool.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PLACES = 200, BYTES = 64 };

static char region[PLACES * BYTES + 63];

static int lowest_free(const bool *taken)
{
    int i = 0;
    while (i < PLACES && taken[i])
        i++;
    return i;
}

static int top_of(const bool *taken)
{
    int i = PLACES;
    while (i > 0 && !taken[i - 1])
        i--;
    return i;
}

static void check(const struct pool *pool, const bool *taken, int used)
{
    cr_assert(pool->used == used && pool_used_bytes(pool) == (size_t)used * BYTES);
    cr_assert_eq(pool_extent(pool), (size_t)top_of(taken) * BYTES);
}

Test(pool, the_lowest_free_place_is_taken_and_the_highest_moves_into_it)
{
    for (int backwards = 0; backwards < 2; backwards++) {
        struct pool pool;
        struct error err = ERROR_INIT;
        bool taken[PLACES] = {false};
        uint32_t x = 99;
        int used = 0, lowered = 0;
        cr_assert(pool_open(&pool, region, sizeof region, BYTES, backwards, &err) == 0);
        cr_assert_eq(pool.capacity, PLACES);
        for (int round = 0; round < 20000; round++) {
            x = x * 1664525u + 1013904223u;
            int kind = (int)(x >> 28), item = (int)(x >> 8) % PLACES;
            bool growing = round / 500 % 2 == 0;
            if (used < PLACES && kind < (growing ? 9 : 6)) {
                item = lowest_free(taken);
                cr_assert_eq(pool_take(&pool), item);
                taken[item] = true;
                used++;
            } else if (kind < 14 && taken[item]) {
                pool_give(&pool, item);
                taken[item] = false;
                used--;
            } else if (kind >= 14 && lowest_free(taken) < top_of(taken)) {
                int32_t from, to = lowest_free(taken), last = top_of(taken) - 1;
                cr_assert_eq(pool_lower(&pool, &from), to);
                cr_assert_eq(from, last);
                taken[to] = true;
                taken[last] = false;
                lowered++;
            }
            check(&pool, taken, used);
        }
        cr_expect(lowered > 100 && pool.peak > 128, "%d, %d", lowered, pool.peak);
        pool_close(&pool);
    }
}

Test(pool, items_lie_from_their_end_of_the_region_on)
{
    struct pool pool;
    for (int backwards = 0; backwards < 2; backwards++) {
        cr_assert(pool_open(&pool, region, 3 * BYTES, BYTES, backwards, NULL) == 0);
        for (int i = 0; i < 3; i++) {
            char *expected = region + (backwards ? 2 - i : i) * BYTES;
            cr_expect(pool_address(&pool, i) == expected);
            cr_expect_eq(pool_item(&pool, expected), i);
        }
        pool_close(&pool);
    }
    cr_assert(pool_open(&pool, NULL, 0, BYTES, true, NULL) == 0);
    cr_expect_eq(pool.capacity, 0);
    pool_close(&pool);
    cr_assert(pool_open(&pool, region, sizeof region, 0, false, NULL) == 0);
    cr_expect(pool.capacity == 0 && pool_extent(&pool) == 0);
    pool_close(&pool);
}
