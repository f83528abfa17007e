/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double statistics_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

double statistics_quantile(const double *sorted, size_t count, double share)
{
    double place = share * (double)(count - 1);
    size_t below = (size_t)place;
    double rest = place - (double)below;
    if (rest == 0) /* what comes next may be infinite, or not there */
        return sorted[below];
    return sorted[below] + rest * (sorted[below + 1] - sorted[below]);
}

static double side(double value, double median)
{
    return (value > median) - (value < median);
}

/* How often values and those `lag` later lie on the same side of the median, less how often not. */
static double agreement(const double *values, size_t count, double median, size_t lag)
{
    double sum = 0;
    for (size_t i = lag; i < count; i++)
        sum += side(values[i], median) * side(values[i - lag], median);
    return sum;
}

/* By what the variance of the number of values below the median is larger than were they
 * independent: 1 + 2 (the sum of the autocorrelations of their sides), as far as sums of two
 * neighbours are positive (Geyer, "Practical Markov Chain Monte Carlo", 1992, section 3.3). */
static double dependence(const double *values, size_t count, double median)
{
    double all = agreement(values, count, median, 0), sum = 0;
    for (size_t lag = 0; all > 0 && lag < count; lag += 2) {
        double two = agreement(values, count, median, lag);
        if (lag + 1 < count)
            two += agreement(values, count, median, lag + 1);
        if (two <= 0)
            break;
        sum += two / all;
    }
    return fmax(1, 2 * sum - 1);
}

struct statistics_interval statistics_interval(const double *values, double *sorted, size_t count)
{
    memcpy(sorted, values, count * sizeof *values);
    double median = statistics_median(sorted, count);
    /* As many of them lie below the median as heads come up in so many throws of a coin: seldom
     * fewer than this. */
    double deviation = sqrt((double)count * dependence(values, count, median));
    double fewest = ((double)count - 1.96 * deviation) / 2;
    size_t low = fewest > 0 ? (size_t)fewest : 0;
    return (struct statistics_interval){
        .median = median, .low = sorted[low], .high = sorted[count - 1 - low], .count = count};
}
