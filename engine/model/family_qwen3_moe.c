/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3 with mixtures of experts, as `transformers` 4 and 5 save Qwen3MoeForCausalLM. */
#include "engine/model/config_experts.h"
#include "engine/model/dense.h"
#include "engine/model/gguf_experts.h"

static const struct dense_class qwen3_moe = {.num_kv_heads = 4,
                                             .longest = 32768,
                                             .rope_theta = 10000,
                                             .act = ACT_SILU,
                                             .windows = true,
                                             .attention_bias = true,
                                             .qk_norm = NORM_RMSNORM,
                                             .qk_norm_scope = NORM_SCOPE_HEAD};

static const struct experts_class experts = {.also_count = "num_local_experts",
                                             .count = {"num_experts", 128},
                                             .chosen = {"num_experts_per_tok", 8},
                                             .size = {"moe_intermediate_size", 768},
                                             .renormalize = {"norm_topk_prob", false}};

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    int64_t window = 4096;
    bool slides = false;
    int *kind_of;
    if (dense_parse(&dense, config, root, &qwen3_moe, NULL, err) != 0 ||
        dense_rope(&rope, config, root, &qwen3_moe, err) != 0 ||
        fields_bool(root, "use_sliding_window", FIELD_NOT_NULL, &slides, err) != 0 ||
        dense_window(&window, root, err) != 0 ||
        config_experts_layers(&kind_of, config, root, err) != 0)
        return -1;
    struct layer_config plain = dense.layer;
    if (config_experts(&dense.layer.blocks[1].branches[0], root, &experts, err) != 0)
        return -1;
    window = slides ? window : 0;
    const char *name = window > 0 ? "sliding_attention" : "full_attention";
    const struct dense_kind kinds[] = {
        {.name = name, .window = window, .rope = &rope},
        {.name = name, .window = window, .rope = &rope, .layer = &plain}};
    return dense_layers(&dense, config, kinds, 2, kind_of, root, err);
}

static const struct block_names names = {DENSE_NAMES, .router = "gate", .experts = "experts"};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return dense_bind_named(model, config, weights, &names, dense_bind_attention, err);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, dense_random_attention);
}

/* llama.cpp renormalizes, whatever the folder says. */
static const struct gguf_key gguf_keys[] = {
    {"expert_feed_forward_length", "moe_intermediate_size", FIELD_REQUIRED},
};

static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    (void)source;
    return json_object_get(config, "norm_topk_prob")
               ? 0
               : gguf_config_set(config, "norm_topk_prob", json_true(), err);
}

static const struct gguf_names gguf = {.architecture = "qwen3moe",
                                       .base = &gguf_experts,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .complete = complete_gguf};

const struct family family_qwen3_moe = {
    .name = "qwen3_moe", .parse = parse, .bind = bind, .random = list_random, .gguf = &gguf};
