/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of Gated DeltaNet (Yang et al. 2025) and DeltaNet, which several families have: their
 * sizes, and how their tensors become a mixer. */
#ifndef ENGINE_MODEL_GATED_DELTA_H
#define ENGINE_MODEL_GATED_DELTA_H

#include "engine/model/blocks.h"

/* Names of tensors below the mixer's. */
struct gated_delta_names {
    /* Rows of q, of k, then of v in one matrix, as in the convolution conv1d. NULL: q_proj, k_proj
     * and v_proj, and the convolution in parts {q,k,v}_conv1d. */
    const char *qkv;
    const char *z, *b; /* the output gate's, beta's */
    /* The decay's. NULL: rows of b and a are in `b`, and those of q, k, v and z in `qkv`, one key
     * head's after the other's; or q, k and v are where Qwen 3.5 has them. */
    const char *a;
    const char *norm, *output;
};
#define GATED_DELTA_FLA_NAMES                                  \
    {                                                          \
        NULL, "g_proj", "b_proj", "a_proj", "o_norm", "o_proj" \
    }

/* num_heads is a multiple of num_qk_heads. */
struct gated_delta_sizes {
    int64_t num_qk_heads, num_heads, head_dim, value_dim, conv_width;
};

/* A size, or a number of heads; absent it is the usual one, which is refused if it is 0. */
int gated_delta_size(const struct fields *root, const char *key, enum field_need need,
                     int64_t usual, int64_t *size, struct error *err);
/* The convolution's width; absent it stays as it is. */
int gated_delta_width(const struct fields *root, const char *key, struct gated_delta_sizes *sizes,
                      struct error *err);
/* Refuses heads that do not go together. */
int gated_delta_check(const struct gated_delta_sizes *sizes, const struct fields *root,
                      struct error *err);

/* A convolution's activation is the MLPs', which may be silu alone. */
int gated_delta_check_act(const struct config *config, const struct fields *root,
                          struct error *err);

/* Which layers have such a mixer [num_layers], in the arena: 1 where layer_types says
 * linear_attention or, where there is none, all but each `interval`-th. */
int gated_delta_layers(int **kind_of, struct config *config, int64_t interval,
                       const struct fields *root, struct error *err);

/* A mixer of the gate `gate`, gated_delta or delta, but for its beta_max and output gate. eps: of
 * the norm behind it. */
struct mixer gated_delta_mixer(const struct gated_delta_sizes *sizes, enum gate_kind gate,
                               float eps);

int gated_delta_bind(const struct block_mixer *block, const struct gated_delta_names *names,
                     struct error *err);
void gated_delta_random(struct random_list *list, const char *prefix,
                        const struct gated_delta_names *names, const struct mixer *mixer);

#endif
