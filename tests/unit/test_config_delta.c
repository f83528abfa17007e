/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of the families with layers of Gated DeltaNet, damaged and odd ones. */
#include "tests/unit/config_changes.h"

#include <math.h>

#define EXPECT(golden, changes) expect_changes(golden, changes, sizeof(changes) / sizeof *(changes))

Test(config_delta, qwen3_5)
{
    static const struct change changes[] = {
        {"some_new_key", "1", NULL},
        {"attn_output_gate", "true", NULL},
        {"attn_output_gate", "false",
         "config.json: attn_output_gate: expected true, got false (not supported)"},
        {"layer_types", NULL, NULL},
        {"layer_types", "[\"attention\", \"linear_attention\", \"full_attention\"]", NULL},
        {"layer_types", "[\"mamba\", \"linear_attention\", \"full_attention\"]",
         "config.json: layer_types[0]: expected full_attention or linear_attention, got mamba (not "
         "supported)"},
        {"full_attention_interval", "0",
         "config.json: full_attention_interval: expected an integer in [1, 4096], got 0"},
        {"linear_num_value_heads", "3",
         "config.json: expected a number of value heads that the number of key heads (2) divides, "
         "got 3"},
        {"linear_num_key_heads", "0",
         "config.json: linear_num_key_heads: expected an integer in [1, 4096], got 0"},
        {"linear_num_key_heads", "null",
         "config.json: linear_num_key_heads: expected an integer in [1, 4096], got null"},
        {"linear_conv_kernel_dim", "9",
         "config.json: linear_conv_kernel_dim: expected an integer in [2, 8], got 9"},
        {"linear_conv_kernel_dim", "1",
         "config.json: linear_conv_kernel_dim: expected an integer in [2, 8], got 1"},
        {"hidden_act", "\"gelu\"",
         "config.json: hidden_act: expected silu, as it is the convolutions', too (others are not "
         "supported)"},
        {"hidden_act", "\"swish\"", NULL},
        {"rope_parameters/partial_rotary_factor", "0.75", NULL},
        {"text_config", "{}",
         "config.json: text_config: expected null, got an object (not supported)"},
    };
    EXPECT("delta_qwen3_5_text", changes);
}

/* The language model's configuration is inside. */
Test(config_delta, nested)
{
    static const struct change changes[] = {
        {"text_config", NULL, "config.json: text_config: expected an object, got nothing"},
        {"text_config/model_type", NULL, NULL},
        {"text_config/model_type", "\"qwen3_5_moe_text\"",
         "config.json: text_config.model_type: unknown model_type \"qwen3_5_moe_text\" (known: "
         "qwen3_5_text)"},
        {"text_config/hidden_size", NULL,
         "config.json: text_config.hidden_size: expected an integer in [1, 262144], got nothing"},
        {"vision_config", NULL, NULL},
        {"tie_word_embeddings", "3",
         "config.json: tie_word_embeddings: expected true or false, got 3"},
        {"quantization_config", "{\"quant_method\": \"gptq\"}",
         "config.json: quantization_config.quant_method: unknown quant_method \"gptq\" (known: "
         "fp8, regla)"},
    };
    EXPECT("delta_qwen3_5", changes);
}

Test(config_delta, olmo_hybrid)
{
    static const struct change changes[] = {
        {"linear_num_key_heads", "null",
         "config.json: expected a number of value heads that the "
         "number of key heads (3) divides, got 2"},
        {"linear_key_head_dim", "null", NULL},
        {"linear_value_head_dim", "null", NULL},
        {"linear_key_head_dim", "0",
         "config.json: linear_key_head_dim: expected an integer in [1, 4096], got 0"},
        {"linear_allow_neg_eigval", "null",
         "config.json: linear_allow_neg_eigval: expected true or false, got null"},
        {"layer_types", "null", NULL},
        {"rope_parameters", "null", NULL},
    };
    EXPECT("delta_olmo_hybrid", changes);
    json_t *config = golden_config("delta_olmo_hybrid");
    json_patch(config, "linear_num_key_heads", "128");
    json_patch(config, "linear_num_value_heads", "128");
    json_patch(config, "linear_key_head_dim", NULL);
    char *text = json_dumps(config, 0);
    expect_text("a size that follows", text,
                "config.json: linear_key_head_dim: expected an integer from 1 on, got nothing, and "
                "what follows from other keys is 0");
    free(text);
    json_decref(config);
}

Test(config_delta, of_fla)
{
    static const struct change gated[] = {
        {"num_v_heads", "null", NULL},
        {"num_v_heads", "3",
         "config.json: expected a number of value heads that the number of key heads (2) divides, "
         "got 3"},
        {"expand_v", "1.3",
         "config.json: expand_v: expected an integer from 1 on as head_dim * expand_v, got 10.4"},
        {"expand_v", "0",
         "config.json: expand_v: expected an integer from 1 on as head_dim * expand_v, got 0"},
        {"use_short_conv", "false",
         "config.json: use_short_conv: expected true, got false (not supported)"},
        {"output_gate_activation", "\"relu\"",
         "config.json: output_gate_activation: unknown output_gate_activation \"relu\" (known: "
         "swish, silu, sigmoid)"},
        {"attn", "{\"layers\": [0]}",
         "config.json: attn: expected null, got an object (not supported)"},
        {"conv_size", "null", "config.json: conv_size: expected an integer in [2, 8], got null"},
        {"hidden_act", "\"relu\"",
         "config.json: hidden_act: unknown hidden_act \"relu\" (known: swish, silu)"},
        {"fuse_norm", "false", NULL},
    };
    static const struct change plain[] = {
        {"use_beta", "false", "config.json: use_beta: expected true, got false (not supported)"},
        {"qk_norm", "\"sum\"",
         "config.json: qk_norm: expected \"l2\", got \"sum\" (not supported)"},
        {"qk_activation", "\"relu\"",
         "config.json: qk_activation: expected \"silu\", got \"relu\" (not supported)"},
        {"expand_k", "0.25", NULL},
        {"expand_k", "0.03125",
         "config.json: expected hidden_size * expand_k, a multiple of "
         "num_heads (2), got 1"},
    };
    EXPECT("delta_fla_gated", gated);
    EXPECT("delta_fla_plain", plain);
}

Test(config_delta, defaults_of_the_classes)
{
    static const struct change changes[] = {
        {"num_hidden_layers", "8", NULL},     {"layer_types", NULL, NULL},
        {"linear_num_key_heads", NULL, NULL}, {"linear_num_value_heads", NULL, NULL},
        {"linear_key_head_dim", NULL, NULL},  {"linear_value_head_dim", NULL, NULL},
        {"rope_parameters", NULL, NULL},      {"head_dim", NULL, NULL}};
    struct arena arena = {0};
    struct config config;
    parse_patched(&config, &arena, "delta_qwen3_5_text", changes, 8);
    for (int i = 0; i < 8; i++)
        cr_expect_str_eq(config.kinds[config.layer_kinds[i]].name,
                         i % 4 == 3 ? "full_attention" : "linear_attention");
    const struct mixer *softmax = &config.mixers[0].mixer, *linear = &config.mixers[1].mixer;
    cr_expect(linear->num_qk_heads == 16 && linear->num_heads == 32);
    cr_expect(linear->head_dim == 128 && linear->value_dim == 128 && linear->conv.width == 4);
    cr_expect(softmax->head_dim == 256 && softmax->position.rotary_dims == 64);
    cr_expect(softmax->position.base == 10000 && linear->beta_max == 0);
    arena_clear(&arena);
}

Test(config_delta, olmo_hybrid_has_positions_where_a_base_is)
{
    static const struct {
        const char *path, *value;
        enum position_kind kind;
    } cases[] = {{"rope_parameters", "null", POSITION_ROPE},
                 {"rope_parameters/rope_theta", "500", POSITION_ROPE},
                 {"rope_parameters/rope_theta", "null", POSITION_NONE},
                 {"rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 2}", POSITION_ROPE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct config config;
        const struct change change = {cases[i].path, cases[i].value, NULL};
        parse_patched(&config, &arena, "delta_olmo_hybrid", &change, 1);
        cr_expect_eq(config.mixers[0].mixer.position.kind, cases[i].kind, "case %zu", i);
        cr_expect(config.mixers[1].mixer.beta_max == 2);
        arena_clear(&arena);
    }
}
