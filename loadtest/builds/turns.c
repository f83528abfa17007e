/* SPDX-License-Identifier: Apache-2.0 */
/* Two builds of the engine (side.h) on one preset in one process, in turns of some 50 ms: the pace
 * of memory changes from second to second, and only such pairs compare. Which pages the weights lie
 * in makes a difference, too (the same build twice: 0.99): so both are opened anew in each round,
 * and who is first changes.
 *
 *   turns OLD.so NEW.so PRESET WEIGHTS KV ACTIVATIONS pp|tg TOKENS DEPTH TEXTS SECONDS
 *
 * Prints, as JSON, a list with an entry for each pace of memory: tokens/s of both, the median of
 * how many times as fast the new one is, with its interval, and the number of pairs. */
#include "bench/bench_paces.h"
#include "lib/base/clock.h"
#include "loadtest/builds/side.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double SLICE_SECONDS = 0.05;
/* After a turn, for the threads of who had it to be asleep. */
enum { REST_MICROSECONDS = 5000, ROUNDS = 6, MOST_PAIRS = 1 << 16 };

struct build {
    const char *path;
    side_open_function *open;
    side_run_function *run;
    side_measure_function *measure;
    side_close_function *close;
};

struct turns {
    struct build builds[2]; /* old and new */
    struct side_test test;
    char message[SIDE_MESSAGE];
    struct bench_slice *slices[2]; /* [MOST_PAIRS]; share: of the new build's speed in the old's */
    int count;
};

static int fail(struct turns *turns, const char *path, const char *what)
{
    snprintf(turns->message, SIDE_MESSAGE, "%.200s: %.200s", path, what);
    return -1;
}

static int load(struct turns *turns, struct build *build)
{
    void *object = dlopen(build->path, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL)
        return fail(turns, build->path, dlerror());
    *(void **)&build->open = dlsym(object, "side_open");
    *(void **)&build->run = dlsym(object, "side_run");
    *(void **)&build->measure = dlsym(object, "side_measure");
    *(void **)&build->close = dlsym(object, "side_close");
    if (build->open == NULL || build->run == NULL || build->measure == NULL || build->close == NULL)
        return fail(turns, build->path, "it is no build of side.c");
    return 0;
}

/* One slice of both; who is first changes. */
static int pair(struct turns *turns, int number, int tokens, double seconds[2])
{
    for (int i = 0; i < 2; i++) {
        int which = (i + number) % 2;
        if (turns->builds[which].run(tokens, &seconds[which], turns->message) != 0)
            return -1;
        usleep(REST_MICROSECONDS);
    }
    return 0;
}

/* Pairs for so long. */
static int run(struct turns *turns, double seconds)
{
    const struct side_test *test = &turns->test;
    side_measure_function *measure = turns->builds[0].measure;
    double took[2], before, after;
    int tokens = test->tokens;
    if (pair(turns, 0, tokens, took) != 0 || measure(&before, turns->message) != 0)
        return -1;
    if (test->generates)
        tokens = (int)fmin(tokens, ceil(SLICE_SECONDS / (took[0] / tokens)));
    for (double end = clock_seconds() + seconds; clock_seconds() < end && turns->count < MOST_PAIRS;
         before = after, turns->count++) {
        if (pair(turns, turns->count, tokens, took) != 0 || measure(&after, turns->message) != 0)
            return -1;
        for (int i = 0; i < 2; i++)
            turns->slices[i][turns->count] =
                (struct bench_slice){.tokens_per_second = (double)tokens * test->texts / took[i],
                                     .share = took[0] / took[1],
                                     .before = before,
                                     .after = after};
    }
    return 0;
}

static int run_round(struct turns *turns, int number, double seconds)
{
    int result = 0;
    for (int i = 0; i < 2 && result == 0; i++)
        result = turns->builds[(i + number) % 2].open(&turns->test, turns->message);
    if (result == 0)
        result = run(turns, seconds);
    for (int i = 0; i < 2; i++)
        turns->builds[i].close();
    return result;
}

static int run_rounds(struct turns *turns, double seconds)
{
    for (int i = 0; i < 2; i++)
        if (load(turns, &turns->builds[i]) != 0)
            return -1;
    for (int i = 0; i < ROUNDS; i++)
        if (run_round(turns, i, seconds / ROUNDS) != 0)
            return -1;
    return 0;
}

static void print(const struct turns *turns, double *scratch)
{
    struct bench_pace paces[2][BENCH_MOST_PACES];
    int found = 0;
    for (int i = 0; i < 2; i++)
        found = bench_paces(turns->slices[i], (size_t)turns->count, scratch, paces[i]);
    printf("[");
    for (int i = 0; i < found; i++) {
        const struct bench_pace *old = &paces[0][i], *new = &paces[1][i];
        printf("%s{\"bandwidth_gbps\": %.2f, \"old\": %.3f, \"new\": %.3f, \"ratio\": %.4f, "
               "\"low\": %.4f, \"high\": %.4f, \"pairs\": %zu}",
               i > 0 ? ", " : "", old->bandwidth * 1e-9, old->tokens_per_second,
               new->tokens_per_second, new->share.median, new->share.low, new->share.high,
               new->share.count);
    }
    printf("]\n");
}

int main(int argc, char **argv)
{
    if (argc != 12 || (strcmp(argv[7], "pp") != 0 && strcmp(argv[7], "tg") != 0)) {
        fprintf(stderr,
                "usage: turns OLD.so NEW.so PRESET WEIGHTS KV ACTIVATIONS pp|tg TOKENS DEPTH "
                "TEXTS SECONDS\n");
        return 2;
    }
    struct turns turns = {.builds = {{.path = argv[1]}, {.path = argv[2]}},
                          .test = {.preset = argv[3],
                                   .weights = argv[4],
                                   .kv = argv[5],
                                   .activations = argv[6],
                                   .generates = strcmp(argv[7], "tg") == 0,
                                   .tokens = atoi(argv[8]),
                                   .depth = atoi(argv[9]),
                                   .texts = atoi(argv[10])}};
    if (turns.test.tokens <= 0 || turns.test.depth < 0 || turns.test.texts <= 0) {
        fprintf(stderr, "turns: expected at least one token and one text\n");
        return 2;
    }
    double *scratch = calloc(MOST_PAIRS, 2 * sizeof *scratch);
    for (int i = 0; i < 2; i++)
        turns.slices[i] = calloc(MOST_PAIRS, sizeof *turns.slices[i]);
    int result = turns.slices[0] == NULL || turns.slices[1] == NULL || scratch == NULL
                     ? fail(&turns, "turns", "no memory")
                     : run_rounds(&turns, atof(argv[11]));
    if (result != 0)
        fprintf(stderr, "turns: %s\n", turns.message);
    else
        print(&turns, scratch);
    free(turns.slices[0]);
    free(turns.slices[1]);
    free(scratch);
    return result != 0;
}
