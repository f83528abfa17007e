/* The tree of states on a small hybrid model: what is found again, in which tier, with the same
 * bits, within its budgets. */
#include "engine/engine.h"
#include "server/state_tree.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct engine *engine;
static struct state_tree *tree;
static struct state_tree_options tree_options;
static struct store *store; /* NULL: no disk */
static struct space *space;
static size_t slot, page, vocab;
static const char *instruction_set; /* NULL: the best */

enum { ROOM = 400, LONG = 300 };

/* A text that differs from the text of another seed from its token `from` on. */
static void make_text(int32_t *tokens, int count, int seed, int from)
{
    for (int i = 0; i < count; i++)
        tokens[i] = (int32_t)((i * 31 + (i >= from ? seed * 17 : 0) + 7) % 200);
}

static void found(void *context, const struct store_found *file)
{
    (void)context;
    if (!tree) {
        struct error err = ERROR_INIT;
        tree_options.store = store;
        cr_assert(state_tree_create(&tree, engine, &tree_options, &err) == 0, "%s", err.message);
    }
    state_tree_found(tree, file);
}

static void open_store(const char *directory, int64_t budget)
{
    struct error err = ERROR_INIT;
    struct store_options options = {.directory = directory, .budget_bytes = budget, .found = found};
    cr_assert(store_open(&store, engine, &options, &err) == 0, "%s", err.message);
    tree_options.store = store;
}

/* Budgets in states of `tokens` tokens. */
static void open_tree_on(double device, double host, int tokens, const char *directory, double disk)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "hybrid_regla");
    struct error err = ERROR_INIT;
    struct engine_options options = {
        .threads = 1, .state_memory_bytes = (size_t)1 << 20, .instruction_set = instruction_set};
    cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s", err.message);
    const struct engine_info *info = engine_info(engine);
    slot = info->recurrent_bytes_per_text;
    page = info->kv_bytes_per_token * (size_t)info->kv_page_tokens;
    vocab = (size_t)info->vocab_size;
    size_t one = engine_state_bytes(engine, tokens);
    engine_close(engine);
    options.state_memory_bytes = (size_t)(device * (double)one);
    cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s", err.message);
    tree_options = (struct state_tree_options){
        .reuse = true, .host_budget_bytes = (int64_t)(host * (double)one), .interval_tokens = 64};
    tree = NULL;
    store = NULL;
    if (directory)
        open_store(directory, (int64_t)(disk * (double)one));
    if (!tree)
        cr_assert(state_tree_create(&tree, engine, &tree_options, &err) == 0, "%s", err.message);
    space = state_tree_space(tree, "me", NULL, 0);
    cr_assert(space);
}

static void open_tree(double device, double host, int tokens)
{
    open_tree_on(device, host, tokens, NULL, 0);
}

static void close_tree(void)
{
    state_tree_space_release(tree, space);
    state_tree_free(tree);
    store_close(store);
    struct engine_memory memory;
    engine_memory(engine, &memory);
    cr_expect(memory.states == 0 && memory.kv_reserved_bytes == 0);
    engine_close(engine);
}

static struct state_tree_report report(void)
{
    struct state_tree_report now;
    state_tree_report(tree, &now);
    for (enum tier tier = TIER_HOST; tier < NUM_TIERS; tier++)
        cr_assert_leq(now.tiers[tier].bytes, now.tiers[tier].budget_bytes);
    return now;
}

static const float *feed(struct state *state, const int32_t *tokens, int count)
{
    struct span span = {0};
    struct error err = ERROR_INIT;
    while (count) {
        int now = count < 500 ? count : 500;
        span = (struct span){state, tokens, now, 1, NULL};
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
        tokens += now;
        count -= now;
    }
    return span.logits;
}

static struct state_match match(const int32_t *tokens, int count, bool whole)
{
    struct state_match found;
    state_tree_match(tree, space, tokens, count, whole, &found);
    return found;
}

/* Until nothing is written or read any more. */
static void settle_files(void)
{
    struct timespec pause = {0, 1000000};
    if (!store)
        return;
    do {
        state_tree_poll(tree);
        nanosleep(&pause, NULL);
    } while (store_poll(store));
    state_tree_poll(tree);
}

/* Starts a text on what the tree has, computes the rest, returns its state; *logits: the last. */
static struct state *run(const int32_t *tokens, int count, const float **logits)
{
    struct state_match found = match(tokens, count, false);
    struct state *state;
    struct error err = ERROR_INIT;
    int result;
    while ((result = state_tree_start(tree, &found, ROOM, &state, &err)) == 1) {
        settle_files();
        found = match(tokens, count, false);
    }
    cr_assert(result == 0, "%s", err.message);
    cr_assert(state_position(state) == found.position);
    *logits = feed(state, tokens + found.position, count - (int)found.position);
    return state;
}

/* A text, computed and given to the tree. */
static void grow(const int32_t *tokens, int count)
{
    const float *logits;
    struct state *state = run(tokens, count, &logits);
    state_tree_give(tree, space, tokens, state, logits);
}

/* The last logits of the text from nothing; what must make room for it does. */
static float *cold(const int32_t *tokens, int count)
{
    struct state_match none = {0};
    struct state *state;
    struct error err = ERROR_INIT;
    float *logits = malloc(vocab * sizeof(float));
    cr_assert(state_tree_start(tree, &none, count, &state, &err) == 0, "%s", err.message);
    memcpy(logits, feed(state, tokens, count), vocab * sizeof(float));
    state_free(state);
    return logits;
}

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
    cr_assert(state_tree_image(tree, &found, image, &err) == 0);
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

static int count_files(const char *directory, const char *suffix)
{
    char command[300], line[32] = "";
    snprintf(command, sizeof command, "find %s -name '*%s' | wc -l", directory, suffix);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe && fgets(line, sizeof line, pipe));
    pclose(pipe);
    return atoi(line);
}

static void make_directory(char directory[64])
{
    snprintf(directory, 64, "/tmp/regla-tree-XXXXXX");
    cr_assert(mkdtemp(directory));
}

static void remove_directory(const char *directory)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    cr_assert(system(command) == 0);
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

static void check_bits(const int32_t *tokens, int count, int position)
{
    float *expected = cold(tokens, count);
    const float *logits;
    cr_expect_eq(match(tokens, count, false).position, position);
    struct state *state = run(tokens, count, &logits);
    cr_expect(memcmp(logits, expected, vocab * sizeof(float)) == 0);
    state_free(state);
    free(expected);
}

Test(state_tree, files_take_what_host_memory_has_no_room_for)
{
    char directory[64];
    make_directory(directory);
    for (int host = 0; host < 2; host++) {
        open_tree_on(2.5, 2.2 * host, ROOM, directory, 100);
        int32_t texts[8][LONG];
        for (int i = 0; i < 8; i++) {
            make_text(texts[i], LONG, i + 10 * host, 0);
            grow(texts[i], LONG - 1);
            settle_files();
        }
        struct state_tree_report now = report();
        cr_expect(now.tiers[TIER_DISK].checkpoints > 0);
        cr_expect_eq(now.dropped, 0);
        for (int i = 0; i < 8; i++)
            check_bits(texts[i], LONG, LONG - 1);
        for (int i = 0; i < 8; i++)
            state_tree_forget(tree, space, texts[i], LONG);
        settle_files();
        cr_expect_eq(count_files(directory, ".state"), 0);
        cr_expect_eq(report().tiers[TIER_DISK].bytes, 0);
        close_tree();
    }
    remove_directory(directory);
}

Test(state_tree, a_restart_finds_what_was_saved)
{
    char directory[64];
    int32_t text[LONG], salted[LONG];
    make_directory(directory);
    make_text(text, LONG, 1, LONG);
    make_text(salted, LONG, 2, 0);
    open_tree_on(20, 10, ROOM, directory, 100);
    struct space *mine = space;
    space = state_tree_space(tree, "me", "s\0lt", 4);
    grow(salted, 100);
    state_tree_space_release(tree, space);
    space = mine;
    grow(text, 100);
    grow(text, 200);
    state_tree_save_all(tree, 1e18);
    close_tree();
    cr_assert_eq(count_files(directory, ".state"), 3);

    open_tree_on(20, 10, ROOM, directory, 100);
    cr_expect_eq(match(text, 250, false).tier, TIER_DISK);
    check_bits(text, 250, 200);
    cr_expect_eq(match(text, 250, false).tier, TIER_DEVICE, "back on use");
    /* The logits of a prompt's end come with its state. */
    struct state_match whole = match(text, 100, true);
    struct state *state;
    struct error err = ERROR_INIT;
    cr_expect(whole.position == 100 && whole.tier == TIER_DISK);
    cr_expect_eq(state_tree_start(tree, &whole, ROOM, &state, &err), 1);
    settle_files();
    whole = match(text, 100, true);
    cr_expect(whole.position == 100 && whole.logits && whole.tier == TIER_HOST);
    cr_expect_eq(match(salted, 150, false).position, 0);
    mine = space;
    space = state_tree_space(tree, "me", "s\0lt", 4);
    check_bits(salted, 150, 100);
    state_tree_space_release(tree, space);
    space = mine;
    close_tree();
    cr_expect_eq(count_files(directory, ".state"), 3);
    remove_directory(directory);
}

Test(state_tree, a_file_that_is_torn_is_no_checkpoint)
{
    char directory[64], command[200];
    int32_t text[LONG];
    make_directory(directory);
    make_text(text, LONG, 1, LONG);
    open_tree_on(20, 10, ROOM, directory, 100);
    grow(text, 200);
    state_tree_save_all(tree, 1e18);
    close_tree();
    open_tree_on(20, 10, ROOM, directory, 100);
    snprintf(command, sizeof command, "find %s -name '*.state' -exec truncate -s -100 {} \\;",
             directory);
    cr_assert(system(command) == 0);
    check_bits(text, 250, 200); /* says so in its match, and then computes all */
    cr_expect_eq(match(text, 250, false).reason, MISS_EVICTED);
    close_tree();
    remove_directory(directory);
}

Test(state_tree, files_of_another_build_are_removed)
{
    char directory[64];
    int32_t text[LONG];
    make_directory(directory);
    make_text(text, LONG, 1, LONG);
    open_tree_on(20, 10, ROOM, directory, 100);
    grow(text, 200);
    state_tree_save_all(tree, 1e18);
    close_tree();
    instruction_set = "generic";
    open_tree_on(20, 10, ROOM, directory, 100);
    cr_expect_eq(match(text, 250, false).position, 0);
    settle_files();
    cr_expect_eq(count_files(directory, ".state"), 0);
    grow(text, 200);
    state_tree_save_all(tree, 1e18);
    close_tree();
    open_tree_on(20, 10, ROOM, directory, 100);
    check_bits(text, 250, 200);
    close_tree();
    instruction_set = NULL;
    remove_directory(directory);
}

Test(state_tree, the_budget_of_the_disk_holds)
{
    char directory[64];
    make_directory(directory);
    open_tree_on(2.5, 2.2, ROOM, directory, 4.5);
    int32_t texts[12][LONG];
    struct error err = ERROR_INIT;
    for (int i = 0; i < 12; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], LONG - 1);
        if (i == 0)
            cr_assert(state_tree_hold(tree, space, texts[0], LONG, &err) == 0);
        settle_files();
        struct state_tree_report now = report();
        cr_assert_leq(now.tiers[TIER_DISK].bytes, now.tiers[TIER_DISK].budget_bytes);
    }
    cr_expect_eq(match(texts[0], LONG, false).position, LONG - 1, "a session's goes last");
    cr_expect_eq(match(texts[1], LONG, false).reason, MISS_EVICTED);
    state_tree_disk_room(tree, report().tiers[TIER_DISK].budget_bytes);
    settle_files();
    cr_expect_eq(report().tiers[TIER_DISK].bytes, 0);
    state_tree_release(tree, space, texts[0], LONG);
    close_tree();
    remove_directory(directory);
}
