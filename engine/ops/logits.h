/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over a row of logits, which compilers vectorise. Every sum has one order and nothing is
 * contracted, so the bits are the same on every instruction set. */
#ifndef ENGINE_OPS_LOGITS_H
#define ENGINE_OPS_LOGITS_H

#include <stdint.h>

/* The largest of logits [count]; NaN if any of them is. */
float logits_max(const float *logits, int32_t count);
/* The place of the largest, the first of equal ones. 0 if any of them is NaN. */
int32_t logits_best(const float *logits, int32_t count);

/* Computes exp((logit - max) / temperature) for logits [count], whose largest is max and which may
 * be infinite: 1 for the largest, 0 below 2^-126. Writes them, rounded, into weights [count],
 * unless that is NULL. Returns their sum. */
double logits_weights(const float *logits, int32_t count, float max, float temperature,
                      float *weights);

/* The sum of weights [count], with the bits that logits_weights returned. */
double logits_sum(const float *weights, int32_t count);

/* The sum of weights [count] times logits, in the order of logits_sum. What weighs 0 does not
 * count: its logit may be infinite. */
double logits_weighted(const float *logits, const float *weights, int32_t count);

/* Splits logits [count] at `at`. above, num_above, least_above: the weight, the number and the
 * least of those that are at least `at`. most_below: the largest of the others. The last two are
 * infinite where there is none. weights [count]; NULL: each weighs 1. */
struct logits_split {
    double above;
    int32_t num_above;
    float least_above, most_below;
};
struct logits_split logits_split(const float *logits, const float *weights, int32_t count,
                                 float at);

/* Writes the largest of each 16 logits into out [(count + 15) / 16], which may not overlap them. */
void logits_block_max(const float *logits, int32_t count, float *out);

#endif
