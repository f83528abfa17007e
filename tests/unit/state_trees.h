/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a tree of states on a small hybrid model, with or without a store under it. */
#ifndef TESTS_UNIT_STATE_TREES_H
#define TESTS_UNIT_STATE_TREES_H

#include "engine/engine.h"
#include "server/states/state_tree.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static struct engine *engine;
static struct state_tree *tree;
static struct state_tree_options tree_options;
static struct store *store; /* NULL: no disk */
static struct space *space;
static size_t slot, page, vocab;
static const char *tree_model = "hybrid_regla";
static const char *instruction_set;                           /* NULL: the best */
static void (*session_found)(const struct store_found *file); /* NULL: none is expected */

enum { ROOM = 400, LONG = 300 };

/* A text that differs from the text of another seed from its token `from` on. */
static inline void make_text(int32_t *tokens, int count, int seed, int from)
{
    for (int i = 0; i < count; i++)
        tokens[i] = (int32_t)((i * 31 + (i >= from ? seed * 17 : 0) + 7) % 200);
}

static inline void found(void *context, const struct store_found *file)
{
    (void)context;
    if (!tree) {
        struct error err = ERROR_INIT;
        tree_options.store = store;
        cr_assert(state_tree_create(&tree, engine, &tree_options, &err) == 0, "%s", err.message);
    }
    if (file->kind == STORE_SESSION)
        session_found(file);
    else
        state_tree_found(tree, file);
}

/* Of the database and its log, which count as the files of states do. */
static inline int64_t database_bytes(const char *directory)
{
    static const char *const names[] = {"sessions.db", "sessions.db-wal"};
    int64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        struct stat status;
        char path[128];
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        bytes += stat(path, &status) == 0 ? status.st_size : 0;
    }
    return bytes;
}

static inline void open_store(const char *directory, int64_t budget)
{
    struct error err = ERROR_INIT;
    struct store_options options = {.location = directory, .budget_bytes = budget};
    /* The budget is that of the states: an empty database is not to take of it. */
    if (database_bytes(directory) == 0) {
        cr_assert(store_open(&store, engine, &options, &err) == 0, "%s", err.message);
        store_close(store);
    }
    options.budget_bytes += database_bytes(directory);
    options.found = found;
    cr_assert(store_open(&store, engine, &options, &err) == 0, "%s", err.message);
    tree_options.store = store;
}

/* Budgets in states of `tokens` tokens. */
static inline void open_tree_on(double device, double host, int tokens, const char *directory,
                                double disk)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s", tree_model);
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
    tree_options = (struct state_tree_options){.reuse = true,
                                               .host_budget_bytes = (int64_t)(host * (double)one),
                                               .interval_tokens = 64,
                                               .soon_bytes = 16 << 20};
    tree = NULL;
    store = NULL;
    if (directory)
        open_store(directory, (int64_t)(disk * (double)one));
    if (!tree)
        cr_assert(state_tree_create(&tree, engine, &tree_options, &err) == 0, "%s", err.message);
    space = state_tree_space(tree, "me", NULL, 0);
    cr_assert(space);
}

static inline void open_tree(double device, double host, int tokens)
{
    open_tree_on(device, host, tokens, NULL, 0);
}

static inline void close_tree(void)
{
    state_tree_space_release(tree, space);
    state_tree_free(tree);
    store_close(store);
    struct engine_memory memory;
    engine_memory(engine, &memory);
    cr_expect(memory.states == 0 && memory.kv_reserved_bytes == 0);
    engine_close(engine);
}

static inline struct state_tree_report report(void)
{
    struct state_tree_report now;
    state_tree_report(tree, &now);
    for (enum tier tier = TIER_HOST; tier < NUM_TIERS; tier++)
        cr_assert_leq(now.tiers[tier].bytes, now.tiers[tier].budget_bytes);
    return now;
}

static inline const float *feed(struct state *state, const int32_t *tokens, int count)
{
    struct span span = {0};
    struct error err = ERROR_INIT;
    while (count) {
        int now = count < 500 ? count : 500;
        span = (struct span){.state = state, .tokens = tokens, .num_tokens = now, .num_logits = 1};
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
        tokens += now;
        count -= now;
    }
    return span.logits;
}

static inline struct state_match match(const int32_t *tokens, int count, bool whole)
{
    struct state_match found;
    state_tree_match(tree, space, tokens, count, whole ? MATCH_WITH_LOGITS : MATCH_NONE, &found);
    return found;
}

/* Until nothing is written or read any more. */
static inline void settle_files(void)
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
static inline struct state *run(const int32_t *tokens, int count, const float **logits)
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
static inline void grow(const int32_t *tokens, int count)
{
    const float *logits;
    struct state *state = run(tokens, count, &logits);
    state_tree_give(tree, space, tokens, state, logits);
}

/* The last logits of the text from nothing; what must make room for it does. */
static inline float *cold(const int32_t *tokens, int count)
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

static inline int count_files(const char *directory, const char *suffix)
{
    char command[300], line[32] = "";
    snprintf(command, sizeof command, "find %s -name '*%s' | wc -l", directory, suffix);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe && fgets(line, sizeof line, pipe));
    pclose(pipe);
    return atoi(line);
}

static inline void make_directory(char directory[64])
{
    snprintf(directory, 64, "/tmp/regla-tree-XXXXXX");
    cr_assert(mkdtemp(directory));
}

static inline void remove_directory(const char *directory)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    cr_assert(system(command) == 0);
}

static inline void check_bits(const int32_t *tokens, int count, int position)
{
    float *expected = cold(tokens, count);
    const float *logits;
    cr_expect_eq(match(tokens, count, false).position, position);
    struct state *state = run(tokens, count, &logits);
    cr_expect(memcmp(logits, expected, vocab * sizeof(float)) == 0);
    state_free(state);
    free(expected);
}

#endif
