/* SPDX-License-Identifier: Apache-2.0 */
/* Positions at which servers share prompts: any server finds the same ones, few of any length, and
 * their names. What a store does with them is tested over HTTP. */
#include "server/states/shared_prefixes.h"
#include "tests/unit/state_trees.h"

static struct shared_prefixes *shared;

static void begin(void)
{
    struct error err = ERROR_INIT;
    open_tree(2, 2, ROOM);
    cr_assert(shared_prefixes_create(&shared, engine, tree, NULL, &err) == 0, "%s", err.message);
}

static int64_t deepest(int64_t count)
{
    return shared_prefixes_deepest(shared, count);
}

Test(shared_prefixes, positions_are_few_and_near_the_end, .init = begin)
{
    const int64_t interval = state_tree_interval(tree);
    cr_expect_eq(interval, 64);
    cr_expect_eq(deepest(0), 0);
    cr_expect_eq(deepest(interval - 1), 0);
    for (int64_t steps = 1; steps <= 16; steps++)
        cr_expect_eq(deepest(steps * interval + 5), steps * interval);
    cr_expect_eq(deepest(17 * interval), 16 * interval);
    cr_expect_eq(deepest(18 * interval), 18 * interval);
    const int64_t most = deepest((int64_t)1 << 30); /* behind it states are too large */
    const size_t limit = (size_t)64 << 20;
    cr_expect(state_image_bytes(engine, most) <= limit);
    cr_expect(state_image_bytes(engine, most + most / 8) > limit);
    for (int64_t count = interval; count < most; count += count / 3 + 1) {
        int64_t at = deepest(count);
        int positions = 0;
        cr_assert_eq(deepest(at), at);
        cr_assert(at > 0 && count - at < interval + count / 8, "%lld of %lld", (long long)at,
                  (long long)count);
        for (; at > 0; at = deepest(at - 1))
            positions++;
        cr_assert_leq(positions, 500);
    }
}

/* One pass over the tokens gives each position the name that it has alone. */
Test(shared_prefixes, names_are_those_of_checkpoints)
{
    enum { NAMES = 3 };
    static const char meta[] = "build\nowner\nsalt";
    const int64_t counts[NAMES] = {LONG, LONG / 2, 1};
    char directory[64], names[NAMES][STORE_NAME_SIZE], alone[STORE_NAME_SIZE];
    int32_t text[LONG];
    make_directory(directory);
    make_text(text, LONG, 1, 0);
    open_tree_on(2, 2, ROOM, directory, 10);
    cr_assert_eq(store_checkpoint_names(store, meta, sizeof meta, text, counts, NAMES, names), 0);
    for (int i = 0; i < NAMES; i++) {
        store_checkpoint_name(store, meta, sizeof meta, text, counts[i], alone);
        cr_expect_str_eq(names[i], alone);
        cr_expect(i == 0 || strcmp(names[i - 1], alone) != 0);
    }
    store_checkpoint_name(store, meta, sizeof meta - 1, text, 1, alone);
    cr_expect_str_neq(names[NAMES - 1], alone);
    close_tree();
    remove_directory(directory);
}
