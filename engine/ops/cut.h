/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the best of many candidates without sorting them: the largest logits, and of equal logits
 * those that come first. */
#ifndef ENGINE_OPS_CUT_H
#define ENGINE_OPS_CUT_H

#include <stdint.h>

/* Candidates in arrays, in rising order of their ids. */
struct candidates {
    int32_t count;
    float *logits, *weights; /* [count]; no NaN */
    int32_t *ids;            /* [count] */
};

/* Keeps the `count` best by their logits. weights are scratch. */
void cut_to_count(struct candidates *candidates, int32_t count);

/* Keeps the fewest of the best whose weights reach `wanted`; at least one. A larger logit must
 * never weigh less. */
void cut_to_weight(struct candidates *candidates, double wanted);

/* Keeps the fewest with the largest keys [count] whose weights reach `wanted`, and all whose keys
 * equal the last one's. */
void cut_by(struct candidates *candidates, const float *keys, double wanted);

#endif
