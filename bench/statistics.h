/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of repeated measurements. */
#ifndef BENCH_STATISTICS_H
#define BENCH_STATISTICS_H

#include <stddef.h>

/* Sorts the values, of which there is at least one, and returns their median. */
double statistics_median(double *values, size_t count);

/* A median, and two of the values, between which the median of endlessly many would lie in about
 * 95 of 100 such measurements, whatever their distribution. Of fewer than 6 they are the lowest and
 * the highest, and less certain. A value may be like those measured before it: the interval is then
 * as wide as that of so many fewer that depend on nothing. */
struct statistics_interval {
    double median, low, high;
    size_t count; /* of the values */
};

/* The values, of which there is at least one, in the order in which they were measured; `sorted`
 * becomes them in rising order. */
struct statistics_interval statistics_interval(const double *values, double *sorted, size_t count);

#endif
