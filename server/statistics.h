/* What is said of repeated measurements. */
#ifndef SERVER_STATISTICS_H
#define SERVER_STATISTICS_H

#include <stddef.h>

/* Sorts the values, of which there is at least one, and returns their median. */
double statistics_median(double *values, size_t count);

#endif
