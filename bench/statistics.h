/* SPDX-License-Identifier: Apache-2.0 */
/* Medians, and intervals around them, of repeated measurements. */
#ifndef BENCH_STATISTICS_H
#define BENCH_STATISTICS_H

#include <stddef.h>

/* Sorts the values, at least one, and returns their median. */
double statistics_median(double *values, size_t count);

/* The value below which a share of 0 to 1 of values [count] lies, at least one, which are sorted in
 * rising order; between two of them in proportion. */
double statistics_quantile(const double *sorted, size_t count, double share);

/* A median with its 95 % confidence interval: in about 95 of 100 such measurements the true median
 * lies between low and high, whatever the distribution. low and high are two of the values. Of
 * fewer than 6 values they are the lowest and the highest, and less certain. Where a value
 * resembles those measured before it, the interval is as wide as that of correspondingly fewer
 * independent values. */
struct statistics_interval {
    double median, low, high;
    size_t count; /* number of values */
};

/* values: at least one, in the order in which they were measured. `sorted` becomes the same values
 * in rising order. */
struct statistics_interval statistics_interval(const double *values, double *sorted, size_t count);

#endif
