/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as config.json, beside tensors that fit some configurations: D = 4, H = 2, V = 8, one
 * layer, in the names of all families. A configuration refuses those it has no use for, last
 * of all, so that the binding is walked too. */
#include "engine/model/config_library.h"
#include "engine/model/model_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *weights;
static size_t weights_size;

static const struct {
    const char *name, *shape;
    size_t elements;
} tensors[] = {
    {"lm_head.weight", "[8,4]", 32},
    {"model.embeddings.weight", "[8,4]", 32},
    {"model.position_embeddings.weight", "[16,4]", 64},
    {"model.embedding_norm.weight", "[4]", 4},
    {"model.norm.weight", "[4]", 4},
    {"model.norm.bias", "[4]", 4},
    {"model.layers.0.attn_norm.weight", "[4]", 4},
    {"model.layers.0.mlp_norm.weight", "[4]", 4},
    {"model.layers.0.mlp.gate_proj.weight", "[8,4]", 32},
    {"model.layers.0.mlp.up_proj.weight", "[8,4]", 32},
    {"model.layers.0.mlp.down_proj.weight", "[4,8]", 32},
    {"model.layers.0.attn.q_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.k_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.v_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.o_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.g_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.r_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.z_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.f_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.b_proj.weight", "[2,4]", 8},
    {"model.layers.0.attn.gk_proj.0.weight", "[2,4]", 8},
    {"model.layers.0.attn.gk_proj.1.weight", "[4,2]", 8},
    {"model.layers.0.attn.out_gate_proj.weight", "[4,4]", 16},
    {"model.layers.0.attn.out_norm.weight", "[2]", 2},
    {"model.layers.0.attn.g_norm_swish_gate.weight", "[2]", 2},
    {"model.layers.0.attn.features.weight", "[2,3,2]", 12},
    {"model.layers.0.attn.feature_q.weight", "[2,2,2]", 8},
    {"model.layers.0.attn.feature_k.weight", "[2,2,2]", 8},
    {"model.layers.0.attn.position.theta", "[1]", 1},
    {"model.layers.0.attn.position.householder", "[2]", 2},
    {"model.layers.0.attn.position.r1", "[2]", 2},
    {"model.layers.0.attn.position.r2", "[2]", 2},
    {"model.layers.0.attn.position.r3", "[2]", 2},
    {"model.layers.0.attn.position.r4", "[2]", 2},
    {"model.layers.0.attn.position.bucket_bias", "[32,2]", 64},
    {"model.layers.0.attn_input_norm.weight", "[4]", 4},
    {"model.layers.0.attn_post_norm.weight", "[4]", 4},
    {"model.layers.0.mlp_post_norm.weight", "[4]", 4},
    {"model.layers.0.kv_norm.weight", "[4]", 4},
    {"model.layers.0.kv.q_proj.weight", "[4,4]", 16},
    {"model.layers.0.kv.k_proj.weight", "[2,4]", 8},
    {"model.layers.0.kv.v_proj.weight", "[2,4]", 8},
    {"model.layers.0.kv.o_proj.weight", "[4,4]", 16},
    {"model.layers.0.kv.q_norm.weight", "[2]", 2},
    {"model.layers.0.kv.k_norm.weight", "[2]", 2},
    {"model.embed_tokens.weight", "[8,4]", 32},
    {"model.layers.0.input_layernorm.weight", "[4]", 4},
    {"model.layers.0.post_attention_layernorm.weight", "[4]", 4},
    {"model.layers.0.pre_feedforward_layernorm.weight", "[4]", 4},
    {"model.layers.0.post_feedforward_layernorm.weight", "[4]", 4},
    {"model.layers.0.self_attn.q_proj.weight", "[4,4]", 16},
    {"model.layers.0.self_attn.k_proj.weight", "[4,4]", 16},
    {"model.layers.0.self_attn.v_proj.weight", "[4,4]", 16},
    {"model.layers.0.self_attn.o_proj.weight", "[4,4]", 16},
    {"model.layers.0.self_attn.q_norm.weight", "[2]", 2},
    {"model.layers.0.self_attn.k_norm.weight", "[2]", 2},
    {"gpt_neox.embed_in.weight", "[8,4]", 32},
    {"gpt_neox.final_layer_norm.weight", "[4]", 4},
    {"gpt_neox.layers.0.input_layernorm.weight", "[4]", 4},
    {"gpt_neox.layers.0.post_attention_layernorm.weight", "[4]", 4},
    {"gpt_neox.layers.0.attention.query_key_value.weight", "[12,4]", 48},
    {"gpt_neox.layers.0.attention.dense.weight", "[4,4]", 16},
    {"gpt_neox.layers.0.mlp.dense_h_to_4h.weight", "[8,4]", 32},
    {"gpt_neox.layers.0.mlp.dense_4h_to_h.weight", "[4,8]", 32},
    {"model.layers.0.self_attn.q_proj.bias", "[4]", 4},
    {"model.layers.0.self_attn.k_proj.bias", "[4]", 4},
    {"model.layers.0.self_attn.v_proj.bias", "[4]", 4},
    {"model.layers.0.self_attn.o_proj.bias", "[4]", 4},
    {"model.layers.0.self_attn.sinks", "[2]", 2},
    {"model.layers.0.mlp.gate.weight", "[2,4]", 8},
    {"model.layers.0.mlp.experts.0.gate_proj.weight", "[2,4]", 8},
    {"model.layers.0.mlp.experts.0.up_proj.weight", "[2,4]", 8},
    {"model.layers.0.mlp.experts.0.down_proj.weight", "[4,2]", 8},
    {"model.layers.0.mlp.experts.1.gate_proj.weight", "[2,4]", 8},
    {"model.layers.0.mlp.experts.1.up_proj.weight", "[2,4]", 8},
    {"model.layers.0.mlp.experts.1.down_proj.weight", "[4,2]", 8},
    {"model.layers.0.mlp.router.weight", "[2,4]", 8},
    {"model.layers.0.mlp.router.bias", "[2]", 2},
    {"model.layers.0.mlp.experts.gate_up_proj", "[2,4,4]", 32},
    {"model.layers.0.mlp.experts.gate_up_proj_bias", "[2,4]", 8},
    {"model.layers.0.mlp.experts.down_proj", "[2,2,4]", 16},
    {"model.layers.0.mlp.experts.down_proj_bias", "[2,4]", 8},
    {"model.layers.0.mlp.shared_expert.gate_proj.weight", "[2,4]", 8},
    {"model.layers.0.mlp.shared_expert.up_proj.weight", "[2,4]", 8},
    {"model.layers.0.mlp.shared_expert.down_proj.weight", "[4,2]", 8},
    {"model.layers.0.mlp.shared_expert_gate.weight", "[1,4]", 4},
    {"model.layers.0.block_sparse_moe.gate.weight", "[2,4]", 8},
    {"model.layers.0.block_sparse_moe.experts.0.w1.weight", "[2,4]", 8},
    {"model.layers.0.block_sparse_moe.experts.0.w3.weight", "[2,4]", 8},
    {"model.layers.0.block_sparse_moe.experts.0.w2.weight", "[4,2]", 8},
    {"model.layers.0.block_sparse_moe.experts.1.w1.weight", "[2,4]", 8},
    {"model.layers.0.block_sparse_moe.experts.1.w3.weight", "[2,4]", 8},
    {"model.layers.0.block_sparse_moe.experts.1.w2.weight", "[4,2]", 8},
    {"model.layers.0.block_sparse_moe.router.layer.weight", "[2,4]", 8},
    {"model.layers.0.block_sparse_moe.input_linear.weight", "[2,4,4]", 32},
    {"model.layers.0.block_sparse_moe.output_linear.weight", "[2,4,2]", 16},
    {"model.layers.0.shared_mlp.input_linear.weight", "[4,4]", 16},
    {"model.layers.0.shared_mlp.output_linear.weight", "[4,2]", 8},
    {"model.layers.0.operator_norm.weight", "[4]", 4},
    {"model.layers.0.ffn_norm.weight", "[4]", 4},
    {"model.layers.0.self_attn.out_proj.weight", "[4,4]", 16},
    {"model.layers.0.self_attn.q_layernorm.weight", "[2]", 2},
    {"model.layers.0.self_attn.k_layernorm.weight", "[2]", 2},
    {"model.layers.0.feed_forward.gate.weight", "[2,4]", 8},
    {"model.layers.0.feed_forward.expert_bias", "[2]", 2},
    {"model.layers.0.feed_forward.experts.0.w1.weight", "[2,4]", 8},
    {"model.layers.0.feed_forward.experts.0.w3.weight", "[2,4]", 8},
    {"model.layers.0.feed_forward.experts.0.w2.weight", "[4,2]", 8},
    {"model.layers.0.feed_forward.experts.1.w1.weight", "[2,4]", 8},
    {"model.layers.0.feed_forward.experts.1.w3.weight", "[2,4]", 8},
    {"model.layers.0.feed_forward.experts.1.w2.weight", "[4,2]", 8},
    {"backbone.embeddings.weight", "[8,4]", 32},
    {"backbone.norm_f.weight", "[4]", 4},
    {"backbone.layers.0.norm.weight", "[4]", 4},
    {"backbone.layers.0.mixer.gate.weight", "[2,4]", 8},
    {"backbone.layers.0.mixer.gate.e_score_correction_bias", "[2]", 2},
    {"backbone.layers.0.mixer.experts.0.up_proj.weight", "[2,4]", 8},
    {"backbone.layers.0.mixer.experts.0.down_proj.weight", "[4,2]", 8},
    {"backbone.layers.0.mixer.experts.1.up_proj.weight", "[2,4]", 8},
    {"backbone.layers.0.mixer.experts.1.down_proj.weight", "[4,2]", 8},
    {"backbone.layers.0.mixer.shared_experts.up_proj.weight", "[2,4]", 8},
    {"backbone.layers.0.mixer.shared_experts.down_proj.weight", "[4,2]", 8},
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    enum { CAPACITY = 1 << 16 };
    static char header[CAPACITY];
    size_t used = 0, at = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        size_t bytes = 4 * tensors[i].elements;
        used +=
            (size_t)snprintf(header + used, CAPACITY - used,
                             "%c\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                             i == 0 ? '{' : ',', tensors[i].name, tensors[i].shape, at, at + bytes);
        at += bytes;
    }
    used += (size_t)snprintf(header + used, CAPACITY - used, "}");
    uint64_t length = used;
    weights_size = 8 + used + at;
    weights = malloc(weights_size);
    if (!weights)
        abort();
    memcpy(weights, &length, 8);
    memcpy(weights + 8, header, used);
    for (size_t i = 0; i < at / 4; i++) {
        float value = 0.25f;
        memcpy(weights + 8 + used + 4 * i, &value, 4);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model *model;
    struct error err = ERROR_INIT;
    if (model_load(&model, (const char *)data, size, weights, weights_size, &err) != 0 &&
        (err.code == ERROR_NONE || !err.message[0]))
        abort();
    model_close(model);
    struct arena arena = {0};
    struct config config = {.arena = &arena, .vocab_size = 8};
    error_clear(&err);
    if (config_library_generation(&config, (const char *)data, size, &err) != 0 && !err.message[0])
        abort();
    arena_clear(&arena);
    return 0;
}
