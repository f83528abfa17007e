#include "server/statistics.h"

#include <math.h>
#include <stdlib.h>

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

struct statistics_interval statistics_interval(double *values, size_t count)
{
    /* As many of them lie below the median as heads come up in so many throws of a coin: seldom
     * fewer than this. */
    double fewest = ((double)count - 1.96 * sqrt((double)count)) / 2;
    size_t low = fewest > 0 ? (size_t)fewest : 0;
    double median = statistics_median(values, count);
    return (struct statistics_interval){
        .median = median, .low = values[low], .high = values[count - 1 - low], .count = count};
}
