/* SPDX-License-Identifier: Apache-2.0 */
/* OLMoE, as `transformers` 4 and 5 save OlmoeForCausalLM: norms before the branches, and one over
 * all heads of q, one over those of k. */
#include "engine/model/config_experts.h"
#include "engine/model/config_library.h"
#include "engine/model/dense.h"
#include "engine/model/gguf_experts.h"

static const struct dense_class olmoe = {.longest = 4096,
                                         .rope_theta = 10000,
                                         .norm_eps = 1e-5,
                                         .act = ACT_SILU,
                                         .attention_bias = true,
                                         .qk_norm = NORM_RMSNORM,
                                         .qk_norm_scope = NORM_SCOPE_HIDDEN};

static const struct experts_class experts = {.also_count = "num_local_experts",
                                             .count = {"num_experts", 64},
                                             .chosen = {"num_experts_per_tok", 8},
                                             .renormalize = {"norm_topk_prob", false}};

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    static const struct config_refusal refusal = {"clip_qkv", ""};
    struct dense dense;
    struct rope rope;
    if (config_library_refuse(root, &refusal, 1, err) != 0 ||
        dense_parse(&dense, config, root, &olmoe, NULL, err) != 0 ||
        dense_rope(&rope, config, root, &olmoe, err) != 0 ||
        config_experts(&dense.layer.blocks[1].branches[0], root, &experts, err) != 0)
        return -1;
    return dense_layers(&dense, config,
                        &(struct dense_kind){.name = "full_attention", .rope = &rope}, 1, NULL,
                        root, err);
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

static const struct gguf_names gguf = {.architecture = "olmoe", .base = &gguf_experts};

const struct family family_olmoe = {
    .name = "olmoe", .parse = parse, .bind = bind, .random = list_random, .gguf = &gguf};
