/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over a row of logits that compilers turn into vectors. Every sum has one order and nothing
 * is contracted, so the bits are the same on every instruction set. */
#ifndef ENGINE_OPS_LOGITS_H
#define ENGINE_OPS_LOGITS_H

#include <stdint.h>

/* The largest of logits [count]; NaN if any of them is. */
float logits_max(const float *logits, int32_t count);
/* Where the largest is, the first of equal ones; 0 where any of them is NaN. */
int32_t logits_best(const float *logits, int32_t count);

/* exp((logit - max) / temperature) of logits [count], whose largest is max and which may be
 * infinite: 1 for the largest, 0 below 2^-126. Rounded into weights [count], unless that is NULL.
 * Returns their sum. */
double logits_weights(const float *logits, int32_t count, float max, float temperature,
                      float *weights);

/* The sum of weights [count]; the bits that logits_weights returned for them. */
double logits_sum(const float *weights, int32_t count);

/* Those of logits [count] that are at least `at`: what they weigh, how many they are, the least of
 * them, and the largest of the others (infinite where there is none). weights [count], or NULL:
 * each weighs 1. */
struct logits_split {
    double above;
    int32_t num_above;
    float least_above, most_below;
};
struct logits_split logits_split(const float *logits, const float *weights, int32_t count,
                                 float at);

/* Of each 16 logits the largest, into out [(count + 15) / 16], which may not overlap them. */
void logits_block_max(const float *logits, int32_t count, float *out);

#endif
