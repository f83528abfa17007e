/* SPDX-License-Identifier: Apache-2.0 */
/* The slices of a test by the pace at which memory was read around them: a shared machine may move
 * the threads between neighbouring cores and distant ones, and read half as fast for seconds. A
 * median over both paces says little of either. Pure. */
#ifndef BENCH_BENCH_PACES_H
#define BENCH_BENCH_PACES_H

#include "bench/statistics.h"

enum { BENCH_MOST_PACES = 2 };

struct bench_slice {
    double tokens_per_second; /* of all texts together */
    double share;             /* of what the higher pace allows, or of what it is compared with */
    double before, after;     /* bytes that could be read per second, right before and after it */
};

struct bench_pace {
    double bandwidth;                 /* bytes per second, median of the slices' higher */
    double tokens_per_second;         /* median */
    struct statistics_interval share; /* count: the slices at this pace */
};

/* The paces, rising; returns how many: two where the highest is PACES_APART times the lowest or
 * more, which part at their geometric mean. A slice before and after which the paces were farther
 * apart than SAME_PACE times belongs to none; 0: no slice does. `scratch`: [2, count]. */
int bench_paces(const struct bench_slice *slices, size_t count, double *scratch,
                struct bench_pace paces[BENCH_MOST_PACES]);

#endif
