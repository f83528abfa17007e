/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the plan of `regla bench`: all its engines are open at once, and all its tests take turns,
 * those that generate by slices of some tokens, so that a machine that changes its pace does so
 * for all. Tokens are pseudo-random and fixed, nothing is sampled, and the depth is filled before
 * the clock starts. */
#ifndef BENCH_BENCH_RUN_H
#define BENCH_BENCH_RUN_H

#include "bench/bench_paces.h"
#include "bench/bench_plan.h"
#include "engine/cost.h"
#include "engine/ops/profile.h"

struct bench_options {
    const char *directory, *preset; /* of the model; one of them is NULL */
    const char *device;             /* as of struct engine_options */
    int repeat;                     /* how many times each test is timed: >= 1 */
    int slice_tokens; /* of each text; 0: as many as take the fastest test some 50 ms */
    bool progress;    /* a line on standard error */
    bool operations;  /* one more run of each test, for its profile */
};

/* Per second, at most: bytes read from memory, and f32 operations. */
struct bench_peaks {
    double bytes, operations;
};

struct bench_result {
    struct bench_case test; /* with formats and threads as they turned out */
    const char *model;
    struct cost cost;
    double tokens_per_second; /* of all texts together; median of the repeats */
    double spread;            /* (highest - lowest) / median */
    double share_of_limit;    /* see bench_run; median of the repeats */
    /* Its pace as a share of that of the same test at depth 0, slice by slice; count: 0 where it
     * is that test, or there is none. */
    struct statistics_interval of_depth_0;
    struct bench_pace paces[BENCH_MOST_PACES]; /* [num_paces]; of generating only */
    int num_paces;
    /* with `operations`: shares of the time by kind; the rest is none of them */
    double operations[NUM_PROFILE_KINDS];
};

struct bench;

/* What the machine does at most is measured on the test's number of threads right before and right
 * after each slice, and the higher of both counts: share_of_limit is the time that the bytes
 * (generating) or operations (prompts) of a run's slices need at those paces, over the time they
 * took. */
int bench_run(struct bench **out, const struct bench_plan *plan,
              const struct bench_options *options, struct error *err);
void bench_free(struct bench *bench); /* NULL is allowed */

int bench_count(const struct bench *bench);
const struct bench_result *bench_results(const struct bench *bench); /* [bench_count] */
struct bench_peaks bench_peaks(const struct bench *bench);           /* the highest measured */
int bench_repeat(const struct bench *bench);
bool bench_has_operations(const struct bench *bench);

#endif
