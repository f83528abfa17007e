/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of states over a store: what is written, found again and removed, within its budgets. */
#include "tests/unit/state_trees.h"

#include "engine/bits.h"
#include "engine/engine.h"
#include "server/states/checkpoint_meta.h"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

/* The linker puts __wrap_state_save_wait in the place of state_save_wait (CMakeLists.txt). */
static _Atomic bool device_fails;
/* The store's thread waits before each write: it says so, and goes on when it may. */
static _Atomic bool holds_writes;
static sem_t waits, may_go_on;
static pthread_t testing;
int __real_state_save_wait(const struct state_save *save, struct error *err);
int __wrap_state_save_wait(const struct state_save *save, struct error *err);

int __wrap_state_save_wait(const struct state_save *save, struct error *err)
{
    if (device_fails && save->memory != NULL)
        return error_set(err, ERROR_INTERNAL, "injected");
    if (holds_writes && !pthread_equal(pthread_self(), testing)) {
        sem_post(&waits);
        sem_wait(&may_go_on);
    }
    return __real_state_save_wait(save, err);
}

Test(state_tree_files, files_take_what_host_memory_has_no_room_for)
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
        cr_expect_eq(report().tiers[TIER_DISK].bytes, database_bytes(directory));
        close_tree();
    }
    remove_directory(directory);
}

/* A state for a text of `count` tokens that may become as long as `max`. */
static struct state *start(const int32_t *tokens, int count, int64_t max)
{
    struct state_match found = match(tokens, count, false);
    struct state *state = NULL;
    struct error err = ERROR_INIT;
    cr_assert_eq(state_tree_start(tree, &found, max, &state, &err), 0, "%s", err.message);
    return state;
}

Test(state_tree_files, a_text_takes_over_a_state_whose_file_is_being_written)
{
    char directory[64];
    int32_t first[LONG], second[LONG], other[LONG];
    alarm(60);
    sem_init(&waits, 0, 0);
    sem_init(&may_go_on, 0, 0);
    testing = pthread_self();
    make_directory(directory);
    make_text(first, LONG, 1, 0);
    make_text(second, LONG, 2, 0);
    make_text(other, LONG, 3, 0);
    open_tree_on(2.3, 1.9, ROOM, directory, 100);
    int64_t most = LONG;
    while (engine_state_bytes(engine, most + 64) <= engine_info(engine)->state_memory_bytes)
        most += 64;
    grow(second, LONG - 1);
    grow(first, LONG - 1);
    holds_writes = true;
    /* All of the device for another: both go to host memory, and are written, one after the other.
     */
    state_free(start(other, 1, most));
    sem_wait(&waits);
    sem_post(&may_go_on);
    sem_wait(&waits);
    store_poll(store);
    struct state_match found = match(first, LONG, false);
    cr_assert(found.tier == TIER_HOST && found.position == LONG - 1);
    state_free(start(first, LONG, LONG + 10)); /* by which it is on the device again */
    cr_assert_eq(match(first, LONG, false).tier, TIER_DEVICE);
    struct state *state = start(first, LONG, most); /* for which it has to go there */
    cr_assert_eq(state_position(state), LONG - 1);
    holds_writes = false;
    sem_post(&may_go_on);
    settle_files();
    state_free(state);
    cr_expect_eq(count_files(directory, ".state"), 2);
    check_bits(first, LONG, LONG - 1);
    check_bits(second, LONG, LONG - 1);
    close_tree();
    remove_directory(directory);
}

Test(state_tree_files, a_restart_finds_what_was_saved)
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

Test(state_tree_files, a_file_that_is_torn_is_no_checkpoint)
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

Test(state_tree_files, files_of_another_build_are_removed)
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

/* The number of the bits decides (engine/bits.h), and not the version. */
Test(state_tree_files, a_state_of_other_bits_is_of_no_use)
{
    struct spaces spaces = {0};
    size_t length;
    open_tree(1, 1, ROOM);
    char number[32], *meta = checkpoint_meta_encode(engine, space, &length);
    cr_assert_not_null(meta);
    struct store_found file = {
        .kind = STORE_CHECKPOINT, .meta = meta, .meta_length = length, .count = 1, .position = 1};
    struct space *same = checkpoint_meta_space(engine, &spaces, &file);
    cr_expect_not_null(same);
    spaces_release(&spaces, same);
    cr_expect_null(strstr(meta, REGLA_VERSION), "%s", meta);
    snprintf(number, sizeof number, "bits %d,",
             engine_bits(engine_info(engine)->weights, engine_info(engine)->activations));
    char *at = strstr(meta, number);
    cr_assert_not_null(at, "%s", meta);
    at[strlen(number) - 2]++;
    cr_expect_null(checkpoint_meta_space(engine, &spaces, &file));
    spaces_clear(&spaces);
    free(meta);
    close_tree();
}

Test(state_tree_files, the_budget_of_the_disk_holds)
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
    int64_t files = report().tiers[TIER_DISK].checkpoints;
    state_tree_disk_room(tree, report().tiers[TIER_DISK].budget_bytes + 1);
    cr_expect_eq(report().tiers[TIER_DISK].checkpoints, files, "nothing goes for what cannot fit");
    state_tree_disk_room(tree, report().tiers[TIER_DISK].budget_bytes - database_bytes(directory));
    settle_files();
    cr_expect_eq(report().tiers[TIER_DISK].bytes, database_bytes(directory));
    state_tree_release(tree, space, texts[0], LONG);
    close_tree();
    remove_directory(directory);
}

/* So many tokens are kept that the tombstones go, and the only ones there are being written. */
Test(state_tree_files, tombstones_that_are_being_written_stay)
{
    enum { MANY = (16 << 20) + 1 };
    char directory[64];
    int32_t *held = malloc(MANY * sizeof *held), texts[6][LONG];
    struct error err = ERROR_INIT;
    cr_assert(held);
    make_text(held, MANY, 99, 0);
    make_directory(directory);
    open_tree_on(2.5, 0, ROOM, directory, 100);
    cr_assert(state_tree_hold(tree, space, held, MANY, &err) == 0);
    for (int i = 0; i < 6; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], LONG - 1);
    }
    settle_files();
    cr_expect_gt(report().tiers[TIER_DISK].checkpoints, 0);
    check_bits(texts[5], LONG, LONG - 1);
    state_tree_release(tree, space, held, MANY);
    close_tree();
    free(held);
    remove_directory(directory);
}

/* Within a budget that has room for some of them. */
Test(state_tree_files, what_was_used_last_is_saved_at_the_end)
{
    char directory[64];
    int32_t texts[10][LONG];
    make_directory(directory);
    open_tree_on(20, 0, ROOM, directory, 3.3);
    for (int i = 0; i < 10; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], LONG - 1);
    }
    match(texts[0], LONG, false); /* used */
    state_tree_save_all(tree, 1e18);
    close_tree();
    open_tree_on(20, 10, ROOM, directory, 100);
    int64_t saved = report().tiers[TIER_DISK].checkpoints;
    cr_assert(saved >= 3 && saved < 10, "%d", (int)saved);
    cr_expect_eq(match(texts[0], LONG, false).position, LONG - 1);
    for (int i = 1; i < 10; i++)
        cr_expect_eq(match(texts[i], LONG, false).position, i > 10 - saved ? LONG - 1 : 0, "%d", i);
    close_tree();
    remove_directory(directory);
}

enum { MANY_FILES = 10 };

/* A new server gives up half of the files: which ones are left, as bits by number of the text. */
static unsigned left_after_a_restart(const char *directory, int32_t texts[MANY_FILES][LONG])
{
    unsigned left = 0;
    open_tree_on(20, 0, ROOM, directory, 100);
    struct state_tree_report now = report();
    cr_assert_eq(now.tiers[TIER_DISK].checkpoints, MANY_FILES);
    int64_t other = database_bytes(directory), files = now.tiers[TIER_DISK].bytes - other;
    int64_t half = files / MANY_FILES * (MANY_FILES / 2);
    state_tree_disk_room(tree, now.tiers[TIER_DISK].budget_bytes - other - half);
    for (int i = 0; i < MANY_FILES; i++)
        left |= (unsigned)(match(texts[i], LONG, false).position > 0) << i;
    close_tree();
    return left;
}

static void save_many(const char *directory, int32_t texts[MANY_FILES][LONG])
{
    open_tree_on(20, 0, ROOM, directory, 100);
    for (int i = 0; i < MANY_FILES; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], LONG - 1);
    }
    for (int i = 0; i < MANY_FILES; i += 2)
        match(texts[i], LONG, false); /* used */
    state_tree_save_all(tree, 1e18);
    close_tree();
}

Test(state_tree_files, after_a_restart_what_was_used_last_goes_last)
{
    char directory[64];
    int32_t texts[MANY_FILES][LONG];
    make_directory(directory);
    save_many(directory, texts);
    cr_expect_eq(left_after_a_restart(directory, texts), 0x155u);
    remove_directory(directory);
}

static void set_times(const char *directory, const char *time)
{
    char command[200];
    snprintf(command, sizeof command, "find %s -name '*.state' -exec touch -h -d '%s' {} +",
             directory, time);
    cr_assert(system(command) == 0);
}

/* Files of such a time, of which a new server, which is left open, uses every second one. */
static void use_others(const char *directory, int32_t texts[MANY_FILES][LONG], const char *time)
{
    save_many(directory, texts);
    set_times(directory, time);
    open_tree_on(20, 0, ROOM, directory, 100);
    for (int i = 1; i < MANY_FILES; i += 2)
        match(texts[i], LONG, false);
}

/* Without the end of the server that saves all. */
Test(state_tree_files, a_use_is_noted_when_the_file_is_a_minute_behind)
{
    char directory[64];
    int32_t texts[MANY_FILES][LONG];
    make_directory(directory);
    use_others(directory, texts, "1 hour ago");
    settle_files();
    close_tree();
    cr_expect_eq(left_after_a_restart(directory, texts), 0x2aau);
    remove_directory(directory);
}

/* A clock that was ahead when they were written: no use from now on comes before theirs. */
Test(state_tree_files, files_of_the_future_are_as_of_now)
{
    char directory[64], command[200];
    int32_t texts[MANY_FILES][LONG];
    make_directory(directory);
    use_others(directory, texts, "2200-01-01");
    state_tree_save_all(tree, 1e18);
    close_tree();
    snprintf(command, sizeof command,
             "! find %s -name '*.state' -newermt '1 hour' | grep --quiet .", directory);
    cr_expect(system(command) == 0, "a file is still of the future");
    cr_expect_eq(left_after_a_restart(directory, texts), 0x2aau);
    remove_directory(directory);
}

/* Neither in a file nor in host memory. */
Test(state_tree_files, what_a_device_lost_on_the_way_is_no_checkpoint)
{
    char directory[64];
    int32_t texts[5][LONG];
    make_directory(directory);
    device_fails = true;
    open_tree_on(2.5, 2.2, ROOM, directory, 100);
    for (int i = 0; i < 5; i++) {
        make_text(texts[i], LONG, i, 0);
        grow(texts[i], LONG - 1);
    }
    settle_files();
    cr_expect_eq(count_files(directory, ".state"), 0);
    int lost = 0;
    for (int i = 0; i < 5; i++) {
        struct state_match found = match(texts[i], LONG, false);
        struct error err = ERROR_INIT;
        struct state *state;
        if (found.tier != TIER_HOST)
            continue;
        cr_expect_eq(state_tree_start(tree, &found, ROOM, &state, &err), -1);
        cr_expect_eq(err.code, ERROR_INTERNAL);
        lost++;
    }
    cr_expect_gt(lost, 0);
    state_tree_save_all(tree, 1e18);
    cr_expect_eq(count_files(directory, ".state"), 0);
    device_fails = false;
    grow(texts[4], LONG - 1);
    state_tree_save_all(tree, 1e18);
    cr_expect_gt(count_files(directory, ".state"), 0, "it is the device");
    close_tree();
    remove_directory(directory);
}
