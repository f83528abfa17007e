/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts of released families: what their configurations and tensors may not say. */
#include "engine/model/fingerprint.h"
#include "engine/model/model_load.h"
#include "tests/unit/config_changes.h"

#define EXPECT(golden, changes) expect_changes(golden, changes, sizeof changes / sizeof *changes)

Test(config_experts, numbers_of_experts)
{
    static const struct change changes[] = {
        {"num_experts_per_tok", "7",
         "config.json: num_experts_per_tok: expected an integer in [1, 6], got 7"},
        {"num_experts_per_tok", "6", NULL},
        {"num_local_experts", "513",
         "config.json: num_local_experts: expected an integer in [1, 512], got 513"},
        {"num_experts", "0", NULL}, /* the other name comes first, as there */
        {"moe_intermediate_size", "0",
         "config.json: moe_intermediate_size: expected an integer in [1, 1048576], got 0"},
        {"norm_topk_prob", "1", "config.json: norm_topk_prob: expected true or false, got 1"},
        {"decoder_sparse_step", "0",
         "config.json: decoder_sparse_step: expected an integer in [1, 4096], got 0"},
        {"mlp_only_layers", "[\"1\"]",
         "config.json: mlp_only_layers[0]: expected an integer, got a string"},
        {"mlp_only_layers", "[7, -1]", NULL},
        {"mlp_only_layers", "null", NULL},
    };
    EXPECT("experts_qwen3_moe", changes);
}

Test(config_experts, groups)
{
    static const struct change changes[] = {
        {"n_group", "3", "config.json: n_group: expected a divisor of n_routed_experts (8), got 3"},
        {"n_group", "8",
         "config.json: n_group: expected at most 64 groups of two experts or more, got 8 of 1 (not "
         "supported)"},
        {"topk_group", "5", "config.json: topk_group: expected an integer in [1, 4], got 5"},
        {"num_experts_per_tok", "5",
         "config.json: topk_group: expected groups with 5 experts (num_experts_per_tok) or more, "
         "got 2 of 2"},
        {"num_experts_per_tok", "4", NULL},
        {"topk_group", "4", NULL},
        {"moe_latent_size", "0",
         "config.json: moe_latent_size: expected an integer in [1, 262144], got 0"},
        {"routed_scaling_factor", "0",
         "config.json: routed_scaling_factor: expected a number in [1e-06, 1e+06], got 0"},
    };
    EXPECT("experts_nemotron_h", changes);
}

Test(config_experts, what_only_some_families_have)
{
    static const struct change olmoe[] = {
        {"clip_qkv", "5.0", "config.json: clip_qkv: expected null, got 5.0 (not supported)"},
        {"clip_qkv", "null", NULL},
    };
    static const struct change gpt_oss[] = {
        {"swiglu_alpha", "1.5",
         "config.json: swiglu_alpha: expected 1.702, got 1.5 (not supported)"},
        {"hidden_act", "\"gelu\"",
         "config.json: hidden_act: expected silu (others are not supported)"},
        {"attention_bias", "false",
         "config.json: attention_bias: expected true, got false (not supported)"},
        {"num_local_experts", NULL,
         "config.json: num_local_experts: expected an integer in [1, 512], got nothing"},
        {"sliding_window", "null",
         "config.json: layer 0 is of sliding_attention, which needs a sliding_window"},
    };
    static const struct change lfm2[] = {
        {"num_dense_layers", "-1",
         "config.json: num_dense_layers: expected an integer in [0, 4096], got -1"},
        {"num_dense_layers", "99", NULL},
    };
    EXPECT("experts_olmoe", olmoe);
    EXPECT("experts_gpt_oss", gpt_oss);
    EXPECT("experts_lfm2_moe", lfm2);
}

/* What the model is with this in place of rope_parameters. */
static void rotated_by(const char *key, const char *value, unsigned char fingerprint[])
{
    struct parts parts = golden_parts("experts_gpt_oss");
    json_t *config = golden_config("experts_gpt_oss");
    struct model *model = NULL;
    struct error err = ERROR_INIT;
    size_t size;
    json_object_del(config, "rope_parameters");
    if (key)
        json_object_set_new(config, key, json_loads(value, 0, NULL));
    char *text = json_dumps(config, 0), *bytes = parts_write(&parts, 0, &size);
    cr_assert(model_load(&model, text, strlen(text), bytes, size, &err) == 0 &&
                  model_fingerprint(model, fingerprint, &err) == 0,
              "%s", err.message);
    model_close(model);
    free(text);
    free(bytes);
    json_decref(config);
    parts_free(&parts);
}

/* In transformers, too, an empty rope_scaling is none, and then it is the class's own. */
Test(config_experts, gpt_oss_turns_by_yarn_unless_it_says_otherwise)
{
    unsigned char nothing[FINGERPRINT_BYTES], empty[FINGERPRINT_BYTES], other[FINGERPRINT_BYTES];
    rotated_by(NULL, NULL, nothing);
    rotated_by("rope_scaling", "{}", empty);
    rotated_by("rope_parameters", "{}", other);
    cr_expect_arr_eq(nothing, empty, FINGERPRINT_BYTES);
    cr_expect_arr_neq(nothing, other, FINGERPRINT_BYTES);
}

/* Families of the library that lack something here: the error names it. */
Test(config_experts, of_other_families)
{
    static const struct change changes[] = {
        {"model_type", "\"deepseek_v3\"",
         "config.json: model_type: \"deepseek_v3\" has latent attention (MLA) (not supported)"},
        {"model_type", "\"glm4_moe\"",
         "config.json: model_type: \"glm4_moe\" has a router of DeepSeek's kind beside softmax "
         "attention (not supported)"},
        {"model_type", "\"phimoe\"",
         "config.json: model_type: \"phimoe\" has a router by SparseMixer (not supported)"},
        {"model_type", "\"qwen3_vl_moe\"",
         "config.json: model_type: \"qwen3_vl_moe\" has positions of images beside experts (not "
         "supported)"},
        {"model_type", "\"mellum\"",
         "config.json: model_type: \"mellum\" has experts under keys and names of its own (not "
         "supported)"},
    };
    EXPECT("experts_qwen3_moe", changes);
}

/* ---- tensors ---- */

enum damage { RENAMED, RESHAPED, A_NAN, A_BYTE };

struct tensor_case {
    const char *golden, *tensor;
    enum damage damage;
    const char *to; /* a name, or a shape */
    int byte;
    const char *message;
};

static size_t place_of(struct parts *parts, const char *tensor)
{
    const json_t *offsets = json_object_get(parts_entry(parts, tensor), "data_offsets");
    return (size_t)json_integer_value(json_array_get(offsets, 0));
}

static void damage(struct parts *parts, const struct tensor_case *c)
{
    static const unsigned char nan_bf16[] = {0xc0, 0x7f};
    json_t *entry = parts_entry(parts, c->tensor);
    char *at = parts->bytes + (parts->data - parts->bytes) + place_of(parts, c->tensor);
    if (c->damage == RENAMED) {
        json_object_set(parts->header, c->to, entry);
        json_object_del(parts->header, c->tensor);
    } else if (c->damage == RESHAPED) {
        json_object_set_new(entry, "shape", json_loads(c->to, 0, NULL));
    } else if (c->damage == A_NAN) {
        memcpy(at, nan_bf16, sizeof nan_bf16);
    } else {
        at[3] = (char)c->byte;
    }
}

static void expect_damage(const struct tensor_case *c)
{
    struct parts parts = golden_parts(c->golden);
    json_t *config = golden_config(c->golden);
    unsigned char fingerprint[FINGERPRINT_BYTES];
    struct model *model = NULL;
    struct error err = ERROR_INIT;
    size_t size;
    damage(&parts, c);
    char *text = json_dumps(config, 0), *bytes = parts_write(&parts, 0, &size);
    int result = model_load(&model, text, strlen(text), bytes, size, &err);
    if (result == 0)
        result = model_fingerprint(model, fingerprint, &err);
    cr_expect(result != 0, "%s: accepted", c->tensor);
    cr_expect_str_eq(err.message, c->message, "%s:\n got %s\nwant %s", c->tensor, err.message,
                     c->message);
    model_close(model);
    free(text);
    free(bytes);
    json_decref(config);
    parts_free(&parts);
}

#define QWEN "model.layers.0.mlp."
Test(config_experts, tensors_that_do_not_fit)
{
    static const struct tensor_case cases[] = {
        {"experts_qwen3_moe", QWEN "experts.5.up_proj.weight", RENAMED,
         QWEN "experts.6.up_proj.weight", 0,
         "model.safetensors: tensor \"" QWEN
         "experts.5.up_proj.weight\": expected shape [20, 32], got nothing: the tensor is "
         "missing"},
        {"experts_qwen3_moe", QWEN "experts.0.down_proj.weight", RESHAPED, "[20, 32]", 0,
         "model.safetensors: tensor \"" QWEN
         "experts.0.down_proj.weight\": expected shape [32, 20], got [20, 32]"},
        {"experts_qwen3_moe", QWEN "gate.weight", A_NAN, NULL, 0,
         "model.safetensors: tensor \"" QWEN
         "gate.weight\": expected finite numbers, got nan at element 0"},
        {"experts_qwen3_5_moe_text", QWEN "experts.down_proj", RESHAPED, "[5, 32, 20]", 0,
         "model.safetensors: tensor \"" QWEN
         "experts.down_proj\": expected shape [6, 32, 20], got [5, 32, 20]"},
        {"experts_granitemoehybrid", "model.layers.0.block_sparse_moe.input_linear.weight",
         RESHAPED, "[7, 32, 36]", 0,
         "model.safetensors: tensor \"model.layers.0.block_sparse_moe.input_linear.weight\": "
         "expected shape [6, 32, 36], got [7, 32, 36]"},
        {"experts_gpt_oss", "model.layers.0.self_attn.sinks", RESHAPED, "[2]", 0,
         "model.safetensors: tensor \"model.layers.0.self_attn.sinks\": expected shape [3], got "
         "[2]"},
        {"experts_gpt_oss_mxfp4", QWEN "experts.down_proj_scales", A_BYTE, NULL, 255,
         "model.safetensors: tensor \"" QWEN
         "experts.down_proj_scales\": expected exponents up to 252, got 255 at element 3"},
        {"experts_gpt_oss_mxfp4", QWEN "experts.down_proj_scales", RESHAPED, "[4, 64, 2]", 0,
         "model.safetensors: tensor \"" QWEN
         "experts.down_proj_scales\": expected shape [4, 64, 1], got [4, 64, 2]"},
        {"experts_lfm2_moe", "model.layers.1.feed_forward.expert_bias", RENAMED,
         "model.layers.1.feed_forward.expert_bios", 0,
         "model.safetensors: tensor \"model.layers.1.feed_forward.expert_bias\": expected shape "
         "[6], got nothing: the tensor is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_damage(&cases[i]);
}
