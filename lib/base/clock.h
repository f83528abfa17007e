/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the clocks. */
#ifndef LIB_BASE_CLOCK_H
#define LIB_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of a clock. CLOCK_REALTIME counts from 1970 and may jump. */
static inline int64_t clock_nanos(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Seconds of the monotonic clock: from some moment on, never backwards. */
static inline double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
