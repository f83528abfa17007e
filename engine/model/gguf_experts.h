/* SPDX-License-Identifier: Apache-2.0 */
/* What llama.cpp calls the keys and tensors of mixtures of experts, whose matrices it has stacked.
 */
#ifndef ENGINE_MODEL_GGUF_EXPERTS_H
#define ENGINE_MODEL_GGUF_EXPERTS_H

#include "engine/model/gguf_config.h"

/* Keys, with the names that Qwen's classes have. */
#define GGUF_EXPERTS_KEYS                                             \
    {"expert_count", "num_experts", FIELD_REQUIRED},                  \
        {"expert_used_count", "num_experts_per_tok", FIELD_REQUIRED}, \
        {"expert_feed_forward_length", NULL, FIELD_OPTIONAL},         \
        {"expert_weights_norm", "norm_topk_prob", FIELD_OPTIONAL},    \
        {"expert_weights_scale", NULL, FIELD_OPTIONAL},               \
        {"expert_gating_func", NULL, FIELD_OPTIONAL},                 \
        {"expert_group_count", NULL, FIELD_OPTIONAL},                 \
    {                                                                 \
        "expert_group_used_count", NULL, FIELD_OPTIONAL               \
    }

/* Tensors below MLP, "model.layers.*.mlp."; its matrices in the names of a family. */
#define GGUF_EXPERTS_NAMES(MLP, GATE, UP, DOWN)                                             \
    {"blk.*.ffn_gate_exps", MLP GATE, GGUF_SAME}, {"blk.*.ffn_up_exps", MLP UP, GGUF_SAME}, \
    {                                                                                       \
        "blk.*.ffn_down_exps", MLP DOWN, GGUF_SAME                                          \
    }

/* What routers do, as llama.cpp numbers it. */
enum gguf_gating { GGUF_GATING_SOFTMAX = 1, GGUF_GATING_SIGMOID = 2 };

/* For `complete`: refuses another way to route than the family's: other scores, groups where it has
 * none, a factor where it has none. */
struct gguf_routing {
    enum gguf_gating gating;
    bool groups, factor;
};
int gguf_experts_check(const struct gguf_source *source, const struct gguf_routing *routing,
                       struct error *err);

/* config.mlp_only_layers: those without a router, for which the format has no key. */
int gguf_experts_layers(json_t *config, const struct gguf_source *source, struct error *err);

/* Decoders of experts with softmax's scores, one after the other in `mlp`, whose other tensors are
 * those of gguf_dense_prenorm. */
extern const struct gguf_names gguf_experts;

#endif
