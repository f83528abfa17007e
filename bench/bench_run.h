/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the plan of `regla bench`. All its engines are open at once and all its tests take turns,
 * generating tests by slices of some tokens. So when a machine changes its pace, it does so for all
 * tests. Tokens are pseudo-random and fixed, and nothing is sampled. The depth is filled before the
 * clock starts. */
#ifndef BENCH_BENCH_RUN_H
#define BENCH_BENCH_RUN_H

#include "bench/bench_paces.h"
#include "bench/bench_plan.h"
#include "engine/cost.h"
#include "engine/ops/profile.h"

struct bench_options {
    const char *directory, *preset; /* of the model; one of the two is NULL */
    const char *device;             /* as in struct engine_options */
    /* of all engines together, as in struct engine_options */
    size_t state_memory_bytes, device_memory_bytes;
    int repeat;       /* how many times each test is timed: >= 1 */
    int slice_tokens; /* per text; 0: what the fastest test does in some 50 ms */
    bool progress;    /* prints a line on standard error */
    bool operations;  /* runs each test once more, for its profile */
};

/* The machine's peaks per second: bytes read from memory, and operations of a unit. */
struct bench_peaks {
    double bytes, operations;
};

struct bench_result {
    struct bench_case test; /* with the formats and threads that were used */
    const char *model;
    const char *unit;          /* that multiplies matrices (struct engine_info) */
    const char *measured_unit; /* whose operations the limit of a prompt is */
    double peak_operations;    /* the highest measured of it, per second */
    struct cost cost;          /* of one run, the mean of the repeats (bench_texts_cost) */
    double tokens_per_second;  /* of all texts together; the median of the repeats */
    double spread;             /* (highest - lowest) / median */
    double share_of_limit;     /* see bench_run; the median of the repeats */
    /* Its speed as a share of the same test's at depth 0, slice by slice. count is 0 for the test
     * at depth 0, and when there is none. */
    struct statistics_interval of_depth_0;
    const struct bench_slice *slices; /* [num_slices], by runs; the bench's */
    size_t num_slices;
    struct bench_pace paces[BENCH_MOST_PACES]; /* [num_paces]; for generating only */
    int num_paces;
    /* with `operations`: shares of the time by kind; the rest of the time has no kind */
    double operations[NUM_PROFILE_KINDS];
};

struct bench;

/* Runs all tests. Right before and right after each slice it measures the machine's peak bandwidth
 * and FLOP/s on the test's number of threads; the higher of both counts. share_of_limit is the time
 * that the bytes (generating) or operations (prompts) of a run's slices need at that peak, over the
 * time they took. */
int bench_run(struct bench **out, const struct bench_plan *plan,
              const struct bench_options *options, struct error *err);
void bench_free(struct bench *bench); /* NULL is allowed */

int bench_count(const struct bench *bench);
const struct bench_result *bench_results(const struct bench *bench); /* [bench_count] */
struct bench_peaks bench_peaks(const struct bench *bench);           /* the highest measured */
int bench_repeat(const struct bench *bench);
bool bench_has_operations(const struct bench *bench);

#endif
