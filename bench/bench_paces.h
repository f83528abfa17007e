/* SPDX-License-Identifier: Apache-2.0 */
/* Groups the slices of a test by the pace at which memory was read around them. A shared machine
 * may move the threads between neighbouring and distant cores, and then read half as fast for
 * seconds. A median over both paces describes neither. Pure functions. */
#ifndef BENCH_BENCH_PACES_H
#define BENCH_BENCH_PACES_H

#include "bench/statistics.h"

#include <stdbool.h>

enum { BENCH_MOST_PACES = 2 };

struct bench_slice {
    double tokens_per_second; /* of all texts together */
    double share;         /* of what the higher pace allows, or of the test it is compared with */
    double before, after; /* bytes that could be read per second, right before and right after */
};

struct bench_pace {
    double bandwidth;                 /* bytes per second: the median of each slice's higher one */
    double tokens_per_second;         /* median */
    struct statistics_interval share; /* count: the slices at this pace */
};

/* Whether two bandwidths are of one pace. */
bool bench_same_pace(double a, double b);

/* `slice` compared with `base`, which was measured at about the same time: the share is that of
 * their times, and before and after are the lowest and highest pace around both. */
struct bench_slice bench_slice_pair(const struct bench_slice *slice,
                                    const struct bench_slice *base);

/* Finds the paces, lowest first, and returns how many there are. There are two when the highest is
 * at least PACES_APART times the lowest; their geometric mean separates them. A slice belongs to
 * none when the paces before and after it differ by more than SAME_PACE times. 0: no slice belongs
 * to any. `scratch`: [2, count]. */
int bench_paces(const struct bench_slice *slices, size_t count, double *scratch,
                struct bench_pace paces[BENCH_MOST_PACES]);

#endif
