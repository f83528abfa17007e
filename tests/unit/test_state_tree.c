/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of states on a small hybrid model: what is found again, in which tier, with the same
 * bits, within its budgets. */
#include "tests/unit/state_trees.h"

Test(state_tree, the_deepest_checkpoint_is_found_and_reasons_are_true)
{
    open_tree(20, 10, ROOM);
    int32_t text[LONG], other[LONG];
    make_text(text, LONG, 1, LONG);
    make_text(other, LONG, 2, 150);
    cr_expect_eq(match(text, 100, true).reason, MISS_NO_CHECKPOINT);
    grow(text, 100);
    struct state_match found = match(text, 100, true);
    cr_expect(found.position == 100 && found.logits && found.reason == MISS_NONE);
    cr_expect(found.tier == TIER_DEVICE);
    found = match(text, 100, false);
    cr_expect(found.position == 0 && !found.checkpoint && found.shared == 100);
    cr_expect_eq(found.reason, MISS_NO_CHECKPOINT);
    found = match(text, 101, true);
    cr_expect(found.position == 100 && !found.logits && found.reason == MISS_NONE);
    cr_expect_eq(match(text, 300, true).reason, MISS_NONE, "nothing else is there");
    grow(text, 200);
    cr_expect_eq(match(text, 300, true).position, 200);
    found = match(other, 300, true);
    cr_expect(found.position == 100 && found.shared == 150);
    cr_expect_eq(found.reason, MISS_NO_CHECKPOINT, "150 tokens are known, 100 have a state");
    make_text(other, LONG, 2, 100);
    found = match(other, 300, true);
    cr_expect(found.position == 100 && found.shared == 100);
    cr_expect_eq(found.reason, MISS_DIVERGED);
    close_tree();
}

Test(state_tree, spaces_share_nothing_and_go_when_they_are_empty)
{
    open_tree(20, 10, ROOM);
    int32_t text[LONG];
    make_text(text, LONG, 1, LONG);
    grow(text, 100);
    struct space *mine = space;
    struct space *others[] = {state_tree_space(tree, "you", NULL, 0),
                              state_tree_space(tree, "me", "salt", 4),
                              state_tree_space(tree, "me", "salu", 4)};
    for (int i = 0; i < 3; i++) {
        space = others[i];
        struct state_match found = match(text, 200, true);
        cr_expect(!found.checkpoint && found.shared == 0, "space %d", i);
    }
    cr_expect_eq(report().spaces, 4);
    cr_expect(state_tree_space(tree, "me", "salt", 4) == others[1]);
    state_tree_space_release(tree, others[1]);
    grow(text, 50); /* in the last one */
    for (int i = 0; i < 3; i++)
        state_tree_space_release(tree, others[i]);
    cr_expect_eq(report().spaces, 2, "one still holds a checkpoint");
    space = state_tree_space(tree, "me", "salu", 4);
    cr_expect_eq(match(text, 200, true).position, 50);
    state_tree_forget(tree, space, text, 50);
    state_tree_space_release(tree, space);
    cr_expect_eq(report().spaces, 1);
    space = mine;
    close_tree();
}

Test(state_tree, under_pressure_states_move_to_host_memory_and_come_back_the_same)
{
    open_tree(2.5, 10, ROOM);
    int32_t texts[4][LONG];
    for (int i = 0; i < 4; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], LONG - 1);
    }
    struct state_tree_report now = report();
    cr_expect(now.evictions > 0 && now.dropped == 0);
    cr_expect_eq(now.checkpoints, 4);
    for (int i = 0; i < 4; i++) {
        float *expected = cold(texts[i], LONG);
        const float *logits;
        struct state_match found = match(texts[i], LONG, false);
        cr_expect_eq(found.position, LONG - 1);
        struct state *state = run(texts[i], LONG, &logits);
        cr_expect(memcmp(logits, expected, vocab * sizeof(float)) == 0, "text %d", i);
        state_free(state);
        free(expected);
    }
    close_tree();
}

Test(state_tree, without_host_memory_what_is_evicted_is_lost_and_says_so)
{
    open_tree(2.5, 0, ROOM);
    cr_expect(!state_tree_keeps_logits(tree));
    int32_t texts[4][LONG];
    for (int i = 0; i < 4; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], LONG - 1);
    }
    struct state_tree_report now = report();
    cr_expect(now.dropped > 0 && now.evictions == 0);
    cr_expect_eq(match(texts[0], LONG, false).reason, MISS_EVICTED);
    cr_expect_eq(match(texts[3], LONG, false).position, LONG - 1);
    cr_expect_null(match(texts[3], LONG - 1, true).logits);
    close_tree();
}

Test(state_tree, what_sessions_hold_is_evicted_last)
{
    open_tree(3.2, 0, ROOM);
    int32_t texts[6][LONG];
    struct error err = ERROR_INIT;
    for (int i = 0; i < 6; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], 200);
        if (i == 0)
            cr_assert(state_tree_hold(tree, space, texts[0], 210, &err) == 0);
    }
    cr_expect_eq(match(texts[0], LONG, false).position, 200);
    cr_expect_eq(match(texts[1], LONG, false).reason, MISS_EVICTED);
    state_tree_release(tree, space, texts[0], 210);
    for (int i = 1; i < 6; i++)
        grow(texts[i], 200);
    cr_expect_eq(match(texts[0], LONG, false).reason, MISS_EVICTED);
    close_tree();
}

Test(state_tree, forgetting_leaves_what_others_go_through)
{
    open_tree(20, 10, ROOM);
    int32_t text[LONG], fork[LONG];
    enum tier tier;
    make_text(text, LONG, 1, LONG);
    make_text(fork, LONG, 2, 100);
    grow(text, 100);
    grow(text, 150);
    grow(text, 200);
    cr_expect_eq(state_tree_checkpoints_of(tree, space, text, 250, &tier), 3);
    cr_expect_eq(tier, TIER_DEVICE);
    grow(fork, 150);
    state_tree_forget(tree, space, text, 250);
    cr_expect_eq(state_tree_checkpoints_of(tree, space, text, 250, &tier), 1);
    cr_expect_eq(match(fork, 200, true).position, 150);
    cr_expect_eq(match(text, 200, true).position, 100);
    state_tree_forget(tree, space, fork, 150);
    struct state_tree_report now = report();
    cr_expect(now.checkpoints == 0 && now.nodes == 0 && now.tokens == 0 && now.logits_bytes == 0);
    cr_expect(now.dropped == 0 && now.tiers[TIER_HOST].bytes == 0);
    close_tree();
}

Test(state_tree, a_text_as_large_as_the_budget_takes_the_state_over)
{
    open_tree(1, 10, ROOM);
    int32_t text[LONG];
    make_text(text, LONG, 1, LONG);
    grow(text, LONG - 1);
    float *expected = malloc(vocab * sizeof(float));
    const float *logits;
    struct state *state = run(text, LONG, &logits);
    memcpy(expected, logits, vocab * sizeof(float));
    struct state_match none = {0};
    struct state *another;
    struct error err = ERROR_INIT;
    cr_expect(state_tree_start(tree, &none, ROOM, &another, &err) == -1);
    cr_expect_eq(err.code, ERROR_NO_MEMORY);
    cr_expect_eq(match(text, LONG, false).tier, TIER_HOST);
    state_free(state);
    float *again = cold(text, LONG);
    cr_expect(memcmp(again, expected, vocab * sizeof(float)) == 0);
    free(again);
    free(expected);
    close_tree();
}

Test(state_tree, an_image_is_a_checkpoint_too)
{
    open_tree(20, 10, ROOM);
    int32_t text[LONG];
    make_text(text, LONG, 1, LONG);
    grow(text, 200);
    struct state_match found = match(text, 250, false);
    void *image = malloc(state_image_bytes(engine, 200));
    struct error err = ERROR_INIT;
    struct state_save saving = {0};
    cr_assert(state_tree_image(tree, &found, image, &saving, &err) == 0);
    cr_assert(state_save_wait(&saving, &err) == 0);
    state_tree_forget(tree, space, text, 200);
    cr_expect_eq(match(text, 250, false).position, 0);
    cr_assert(state_tree_give_image(tree, space, text, 200, image, &err) == 0);
    cr_expect_eq(match(text, 250, false).tier, TIER_HOST);
    const float *logits;
    struct state *state = run(text, 250, &logits);
    float *expected = malloc(vocab * sizeof(float));
    memcpy(expected, logits, vocab * sizeof(float));
    state_free(state);
    float *again = cold(text, 250);
    cr_expect(memcmp(again, expected, vocab * sizeof(float)) == 0);
    cr_expect_eq(match(text, 250, false).tier, TIER_DEVICE, "it came back on use");
    free(again);
    free(expected);
    close_tree();
}

/* Texts that branch at random, in budgets of 3 and 2 states: the bits are those of a cold start,
 * the budgets hold, and in the end everything has come back. */
static void check_text(const int32_t *tokens, int count)
{
    const float *logits;
    struct state *state = run(tokens, count, &logits);
    float *kept = malloc(vocab * sizeof(float));
    memcpy(kept, logits, vocab * sizeof(float));
    state_tree_keep(tree, space, tokens, state, logits);
    state_free(state);
    float *expected = cold(tokens, count);
    cr_assert(memcmp(kept, expected, vocab * sizeof(float)) == 0, "%d tokens", count);
    free(expected);
    free(kept);
}

static void random_texts(unsigned seed)
{
    for (int step = 0; step < 400; step++) {
        int32_t text[LONG];
        make_text(text, LONG, rand_r(&seed) % 6, 20 * (rand_r(&seed) % 5));
        int count = 2 + rand_r(&seed) % (LONG - 2);
        struct error err = ERROR_INIT;
        switch (rand_r(&seed) % 6) {
        case 0:
            cr_assert(state_tree_hold(tree, space, text, count, &err) == 0);
            check_text(text, count);
            state_tree_release(tree, space, text, count);
            break;
        case 1:
            state_tree_forget(tree, space, text, count);
            break;
        case 2:
            check_text(text, count);
            break;
        default:
            grow(text, count);
        }
        struct state_tree_report now = report();
        struct engine_memory memory;
        engine_memory(engine, &memory);
        cr_assert_eq(memory.states, memory.cached, "nothing runs");
        cr_assert_eq(memory.cached, now.tiers[TIER_DEVICE].checkpoints);
        cr_assert_eq((int64_t)(memory.recurrent_reserved_bytes + memory.kv_reserved_bytes),
                     now.tiers[TIER_DEVICE].bytes, "free + cached = total");
    }
}

Test(state_tree, random_texts_in_small_budgets_keep_bits_and_accounts)
{
    open_tree(3.3, 2.2, ROOM);
    random_texts(5);
    close_tree();
}

/* Texts of a model with convolutions go to files, and over a restart. */
Test(state_tree, convolutions_come_back_from_files_and_over_a_restart)
{
    static const char *const models[] = {"convolutions", "gated_convolutions", "lfm3"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char directory[64];
        unsigned seed = 8 + (unsigned)i;
        tree_model = models[i];
        make_directory(directory);
        open_tree_on(2.3, 1.2, ROOM, directory, 8);
        random_texts(seed);
        state_tree_save_all(tree, 1e18);
        close_tree();
        open_tree_on(2.3, 1.2, ROOM, directory, 8);
        cr_expect(report().tiers[TIER_DISK].checkpoints > 0, "%s", tree_model);
        for (int step = 0; step < 30; step++) {
            int32_t text[LONG];
            make_text(text, LONG, step % 6, 20 * (step % 5));
            check_text(text, LONG - step);
        }
        close_tree();
        remove_directory(directory);
    }
}

Test(state_tree, random_texts_with_files_keep_bits_and_accounts)
{
    char directory[64];
    make_directory(directory);
    open_tree_on(3.3, 2.2, ROOM, directory, 6);
    random_texts(6);
    close_tree();
    remove_directory(directory);
}
