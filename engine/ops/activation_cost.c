/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/activation_cost.h"

/* By `regla compare MODEL f32-activations others wiki.test.txt --context 512`, with KV in f32, of
 * SmolLM2-135M-Instruct; q4: of its file in Q4_1, as it is. A new row of cpu_activations needs one
 * here. */
static const struct activation_cost costs[][WEIGHT_FORMAT_COUNT] = {
    [ACTIVATIONS_16BIT] = {[WEIGHTS_BF16] = {8.64e-5, 0.9941},
                           [WEIGHTS_Q8] = {5.34e-8, 1},
                           [WEIGHTS_Q6] = {5.36e-8, 1},
                           [WEIGHTS_Q4] = {5.45e-8, 1}},
    [ACTIVATIONS_8BIT] = {[WEIGHTS_Q8] = {4.64e-4, 0.9856},
                          [WEIGHTS_Q6] = {1.58e-3, 0.9749},
                          [WEIGHTS_Q4] = {4.71e-4, 0.9849}},
};

const struct activation_cost *activation_cost(enum activation_format activations,
                                              enum weight_format weights)
{
    if ((size_t)activations >= sizeof costs / sizeof *costs)
        return NULL;
    const struct activation_cost *cost = &costs[activations][weights];
    return cost->same_best > 0 ? cost : NULL;
}
