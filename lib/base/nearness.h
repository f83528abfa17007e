/* SPDX-License-Identifier: Apache-2.0 */
/* How near a token's -log p is to the entropy: typical_p keeps the nearest tokens. The bits are the
 * same on every device. */
#ifndef LIB_BASE_NEARNESS_H
#define LIB_BASE_NEARNESS_H

#include <float.h>
#include <stdbool.h>

#ifdef __CUDACC__
#define NEARNESS static __host__ __device__ __forceinline__
#else
#define NEARNESS static inline
#endif

/* 0 where the logit is what is expected, and the less the further away it is. */
NEARNESS float nearness(float logit, double expected)
{
    double away = (double)logit - expected;
    away = away < 0 ? -away : away;
    return away < (double)FLT_MIN ? 0.0f : (float)-away; /* not every device has denormals */
}

/* Whether a typical_p keeps less than all. */
NEARNESS bool is_typical(float typical_p)
{
    return typical_p > 0 && typical_p < 1;
}

#endif
