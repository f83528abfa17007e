/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral, as `transformers` 4 and 5 save MixtralForCausalLM. */
#include "engine/model/config_experts.h"
#include "engine/model/dense.h"

static const struct dense_class mixtral = {.num_kv_heads = 8,
                                           .head_dim_null = true,
                                           .longest = 4096 * 32,
                                           .rope_theta = 1e6,
                                           .norm_eps = 1e-5,
                                           .act = ACT_SILU,
                                           .windows = true};

static const struct experts_class experts = {.also_count = "num_experts",
                                             .count = {"num_local_experts", 8},
                                             .chosen = {"num_experts_per_tok", 2},
                                             .renormalize = {NULL, true}};

static const struct layer_names layer = {"input_layernorm", "self_attn", "post_attention_layernorm",
                                         "block_sparse_moe"};

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    int64_t window = 0;
    if (dense_parse(&dense, config, root, &mixtral, &layer, err) != 0 ||
        dense_rope(&rope, config, root, &mixtral, err) != 0 ||
        dense_window(&window, root, err) != 0 ||
        config_experts(&dense.layer.blocks[1].branches[0], root, &experts, err) != 0)
        return -1;
    const char *name = window > 0 ? "sliding_attention" : "full_attention";
    return dense_layers(&dense, config,
                        &(struct dense_kind){.name = name, .window = window, .rope = &rope}, 1,
                        NULL, root, err);
}

static const struct block_names names = {DENSE_NAMES_BUT_MLP, .gate_proj = "w1",
                                         .up_proj = "w3",     .down_proj = "w2",
                                         .router = "gate",    .experts = "experts"};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return dense_bind_named(model, config, weights, &names, dense_bind_attention, err);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, dense_random_attention);
}

const struct family family_mixtral = {
    .name = "mixtral", .parse = parse, .bind = bind, .random = list_random};
