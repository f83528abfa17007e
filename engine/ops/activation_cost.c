/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/activation_cost.h"

#define COST(may, ...) \
    {                  \
        __VA_ARGS__    \
    }
#define TO_16BIT(value, name, end, kind, traits, block, bytes, to_16bit, to_8bit) \
    [value] = COST to_16bit,
#define TO_8BIT(value, name, end, kind, traits, block, bytes, to_16bit, to_8bit) \
    [value] = COST to_8bit,

/* By `regla compare MODEL f32-activations others wiki.test.txt --context 512`, with KV in f32, of
 * SmolLM2-135M-Instruct; q4: of its file in Q4_1, as it is. What cpu_activations chooses needs one.
 */
static const struct activation_cost costs[][WEIGHT_FORMAT_COUNT] = {
    [ACTIVATIONS_16BIT] = {WEIGHT_FORMATS(TO_16BIT)},
    [ACTIVATIONS_8BIT] = {WEIGHT_FORMATS(TO_8BIT)},
};

const struct activation_cost *activation_cost(enum activation_format activations,
                                              enum weight_format weights)
{
    if ((size_t)activations >= sizeof costs / sizeof *costs)
        return NULL;
    const struct activation_cost *cost = &costs[activations][weights];
    return cost->same_best > 0 ? cost : NULL;
}
