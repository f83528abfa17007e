/* SPDX-License-Identifier: Apache-2.0 */
/* Llama and its kin (SmolLM 2, TinyLlama, Mistral's old files), as `transformers` 4 and 5 save
 * LlamaForCausalLM. */
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"
#include "engine/model/gguf_experts.h"

static const struct dense_class llama = {.head_dim_null = true,
                                         .longest = 2048,
                                         .rope_theta = 10000,
                                         .act = ACT_SILU,
                                         .attention_bias = true,
                                         .mlp_bias = true};

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    if (dense_parse(&dense, config, root, &llama, NULL, err) != 0 ||
        dense_rope(&rope, config, root, &llama, err) != 0 ||
        config_check_heads(config, root, err) != 0)
        return -1;
    return dense_layers(&dense, config, &(struct dense_kind){.name = "attention", .rope = &rope}, 1,
                        NULL, root, err);
}

/* Mixtral's experts are of this architecture, too. */
static const struct gguf_key gguf_keys[] = {
    {"expert_count", NULL, FIELD_OPTIONAL},
    {"expert_used_count", "num_experts_per_tok", FIELD_OPTIONAL},
};

#define EXPERTS "model.layers.*.block_sparse_moe."
static const struct gguf_name gguf_tensors[] = {
    {"blk.*.ffn_gate_inp", EXPERTS "gate", GGUF_SAME},
    GGUF_EXPERTS_NAMES(EXPERTS "experts.", "w1", "w3", "w2"),
};

static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    int64_t experts = 0;
    if (gguf_config_int(source, "expert_count", FIELD_OPTIONAL, 0, INT32_MAX, &experts, err) != 0)
        return -1;
    if (experts == 0)
        return 0;
    if (gguf_experts_check(source, &(struct gguf_routing){.gating = GGUF_GATING_SOFTMAX}, err) != 0)
        return -1;
    return gguf_config_set(config, "model_type", json_string("mixtral"), err) == 0
               ? gguf_config_set(config, "num_local_experts", json_integer(experts), err)
               : -1;
}

/* Mistral's files without windows, too. */
static const struct gguf_names gguf = {.architecture = "llama",
                                       .base = &gguf_dense_paired,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_tensors,
                                       .num_names = sizeof gguf_tensors / sizeof *gguf_tensors,
                                       .complete = complete_gguf};

const struct family family_llama = {
    .name = "llama", .parse = parse, .bind = dense_bind, .random = dense_random, .gguf = &gguf};
