/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of MLPs and of mixtures of experts, whatever their family: of experts one by one, or
 * stacked, with gate and up apart or in one. */
#ifndef ENGINE_MODEL_BLOCKS_MLP_H
#define ENGINE_MODEL_BLOCKS_MLP_H

#include "engine/model/block_names.h"
#include "engine/model/config.h"
#include "engine/model/random_list.h"

/* Where an MLP is bound. */
struct blocks_mlp {
    struct weights *weights;
    const struct config *config;
    const struct block_names *names;
    const char *layer; /* what its names begin with */
};

int blocks_mlp_bind(const struct blocks_mlp *place, const struct branch_config *branch,
                    struct mlp *mlp, struct error *err);

/* Of a preset. */
void blocks_mlp_random(struct random_list *list, const struct block_names *names, const char *layer,
                       const struct branch_config *branch);

#endif
