/* SPDX-License-Identifier: Apache-2.0 */
/* What a config.json of transformers says of mixtures of experts. Classes differ in the names of
 * keys, in what absent ones mean, and in what a router does. */
#ifndef ENGINE_MODEL_CONFIG_EXPERTS_H
#define ENGINE_MODEL_CONFIG_EXPERTS_H

#include "engine/model/config.h"

/* A key and what it means where it is absent; NULL: the class does not read one, and the meaning is
 * the same. */
struct experts_key {
    const char *key;
    int64_t usual;
};

struct experts_class {
    const char *also_count;                 /* another name of count's key; or NULL */
    struct experts_key count, chosen, size; /* size 0: the key is required */
    struct experts_key renormalize;         /* a bool */
    enum route_score score;
    double least;
    struct experts_key groups, top_groups;
    const char *factor; /* a fraction; absent: 1 */
};

/* Makes the branch, an MLP, a mixture of experts. */
int config_experts(struct branch_config *branch, const struct fields *root,
                   const struct experts_class *class, struct error *err);

/* Which layers have one MLP, by Qwen's keys: [num_layers], in the arena, 1 for those. */
int config_experts_layers(int **kind_of, struct config *config, const struct fields *root,
                          struct error *err);

#endif
