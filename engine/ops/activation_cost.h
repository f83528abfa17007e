/* SPDX-License-Identifier: Apache-2.0 */
/* What rounding the inputs of products (formats.h) does to a model's words, as it was last measured
 * on a CPU: loadtest/FIGURES.md, "Rounded inputs". */
#ifndef ENGINE_OPS_ACTIVATION_COST_H
#define ENGINE_OPS_ACTIVATION_COST_H

#include "engine/ops/formats.h"

/* Against f32 inputs with the same weights. */
struct activation_cost {
    double divergence; /* mean Kullback-Leibler divergence of the next token, in nats */
    double same_best;  /* the share of positions with the same likeliest token */
};

/* weights: not auto. NULL: nothing is rounded, or nothing was measured. */
const struct activation_cost *activation_cost(enum activation_format activations,
                                              enum weight_format weights);

#endif
