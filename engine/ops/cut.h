/* SPDX-License-Identifier: Apache-2.0 */
/* The best of many candidates, found without sorting them: the largest logits, and of equal ones
 * those that come first. */
#ifndef ENGINE_OPS_CUT_H
#define ENGINE_OPS_CUT_H

#include <stdint.h>

/* Candidates side by side, in rising order of their ids. */
struct candidates {
    int32_t count;
    float *logits, *weights; /* [count]; no NaN */
    int32_t *ids;            /* [count] */
};

/* Keeps the `count` best, by logits alone; weights are scratch. */
void cut_to_count(struct candidates *candidates, int32_t count);

/* Keeps the fewest of the best whose weights reach `wanted`; at least one. A larger logit never
 * weighs less. */
void cut_to_weight(struct candidates *candidates, double wanted);

#endif
