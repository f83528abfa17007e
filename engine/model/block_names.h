/* SPDX-License-Identifier: Apache-2.0 */
/* What a family calls the tensors that all families have (blocks.h). */
#ifndef ENGINE_MODEL_BLOCK_NAMES_H
#define ENGINE_MODEL_BLOCK_NAMES_H

#include "engine/model/weights.h"

enum block_mlp {
    BLOCK_MLP_PLAIN,
    BLOCK_MLP_GATED,
    BLOCK_MLP_EITHER /* as the file has it */
};

/* Names without .weight and .bias. NULL: no model of the family has that tensor. Those of layers
 * are in the configuration's kinds of layers. */
struct block_names {
    const char *root; /* "model": all but the head's begin so, or none does */
    const char *embeddings, *position_embeddings, *embedding_norm, *final_norm;
    const char *gate_proj, *up_proj, *down_proj; /* below an MLP's name */
    const char *gate_up_proj; /* the rows of both in one, where a file has it so; or NULL */
    /* Likewise, of a mixture of experts. Expert i is EXPERTS.i, with the names of an MLP; or they
     * are stacked, with these names below EXPERTS, which may be empty. */
    const char *router, *experts;
    const char *score_bias; /* the whole name; likewise */
    bool alternates; /* a stack's rows of gate_up_proj are of gates and ups in turns (gpt-oss) */
    const char *shared_gate, *latent_in, *latent_out;
    /* Likewise: the weight of the norm of a router's x, but for 1 / sqrt(D); factors of weights */
    const char *router_scale, *expert_scale;
    /* Of inputs of layers: below the root, and below a layer. */
    const char *layer_embeddings, *layer_proj, *layer_norm, *layer_gate, *layer_out;
    const char *lm_head; /* the whole name */
    enum block_mlp mlp;
    enum weight_bias biased, head_biased; /* of the matrices of MLPs, and of the head */
    enum weight_bias experts_biased;      /* of those of experts and of their router */
};

#endif
