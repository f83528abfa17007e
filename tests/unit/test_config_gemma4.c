/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 4: what its configurations may not say, and what they mean. */
#include "tests/unit/config_changes.h"

#define EXPECT(golden, changes) expect_changes(golden, changes, sizeof changes / sizeof *changes)

Test(config_gemma4, layers_and_heads)
{
    static const struct change changes[] = {
        {"num_kv_shared_layers", "5",
         "config.json: num_kv_shared_layers: expected an integer in [0, 4], got 5"},
        {"num_kv_shared_layers", "3",
         "config.json: num_kv_shared_layers: expected a layer of full_attention before the last 3, "
         "got none"},
        {"num_kv_shared_layers", "0", NULL},
        {"sliding_window", "null",
         "config.json: layer 0 is of sliding_attention, which needs a sliding_window"},
        {"layer_types/4", "\"sliding_attention\"", NULL},
        {"layer_types/4", "\"linear_attention\"",
         "config.json: layer_types[4]: expected full_attention or sliding_attention, got "
         "linear_attention (not supported)"},
        {"per_layer_config/2/head_dim", "18",
         "config.json: per_layer_config.4: expected the same for all layers of full_attention and "
         "nothing for others (not supported)"},
        {"per_layer_config/4", NULL,
         "config.json: per_layer_config.4: expected the same for all layers of full_attention and "
         "nothing for others (not supported)"},
        {"per_layer_config/0", "{\"head_dim\": 16}",
         "config.json: per_layer_config.0: expected the same for all layers of full_attention and "
         "nothing for others (not supported)"},
        {"per_layer_config", "{\"2\": {\"head_dim\": 15}, \"4\": {\"head_dim\": 15}}",
         "config.json: heads of full_attention: expected an even size, got 15"},
        {"per_layer_config",
         "{\"2\": {\"num_key_value_heads\": 3}, \"4\": {\"num_key_value_heads\": 3}}",
         "config.json: heads of keys of full_attention: expected a divisor of num_attention_heads "
         "(2), got 3"},
        {"per_layer_config", "{\"2\": {\"hidden_act\": \"relu\"}}",
         "config.json: per_layer_config.2: unknown key \"hidden_act\" (known: head_dim, "
         "num_key_value_heads)"},
        {"per_layer_config", "[]", "config.json: per_layer_config: expected an object, got a list"},
        {"attention_k_eq_v", "1", "config.json: attention_k_eq_v: expected true or false, got 1"},
        {"use_double_wide_mlp", "null",
         "config.json: use_double_wide_mlp: expected true or false, got null"},
        {"use_bidirectional_attention", "\"all\"",
         "config.json: use_bidirectional_attention: unknown use_bidirectional_attention \"all\" "
         "(known: vision)"},
        {"use_bidirectional_attention", "\"vision\"", NULL},
        {"final_logit_softcapping", "0",
         "config.json: final_logit_softcapping: expected a number in [1e-06, 1e+06], got 0"},
        {"rope_parameters", NULL, NULL},
        {"rope_parameters/full_attention/rope_type", "\"longrope\"",
         "config.json: rope_parameters.full_attention.rope_type: expected default, linear, llama3, "
         "yarn or proportional, got \"longrope\" (not supported)"},
    };
    EXPECT("gemma4_text", changes);
}

Test(config_gemma4, inputs_of_layers)
{
    static const struct change changes[] = {
        {"hidden_size_per_layer_input", "-1",
         "config.json: hidden_size_per_layer_input: expected an integer in [0, 262144], got -1"},
        {"hidden_size_per_layer_input", "0", NULL},
        {"vocab_size_per_layer_input", "272",
         "config.json: vocab_size_per_layer_input: expected an integer in [273, 16777216], got "
         "272"},
        {"vocab_size_per_layer_input", NULL, NULL},
    };
    EXPECT("gemma4_text", changes);
}

Test(config_gemma4, experts_beside_the_mlp)
{
    static const struct change changes[] = {
        {"top_k_experts", "6", "config.json: top_k_experts: expected an integer in [1, 5], got 6"},
        {"num_experts", "null",
         "config.json: num_experts: expected an integer in [1, 512], got null"},
        {"moe_intermediate_size", NULL,
         "config.json: moe_intermediate_size: expected an integer in [1, 1048576], got nothing"},
        {"enable_moe_block", "\"yes\"",
         "config.json: enable_moe_block: expected true or false, got \"yes\""},
    };
    EXPECT("experts_gemma4_text", changes);
}

Test(config_gemma4, the_outer_configuration)
{
    static const struct change changes[] = {
        {"text_config", NULL, "config.json: text_config: expected an object, got nothing"},
        {"text_config/model_type", "\"gemma3_text\"",
         "config.json: text_config.model_type: unknown model_type \"gemma3_text\" (known: "
         "gemma4_text)"},
        {"text_config/head_dim", "13",
         "config.json: text_config: head_dim: expected an even number, got 13"},
        {"vision_config", NULL, NULL},
        {"audio_config", "{\"hidden_size\": 4}", NULL},
    };
    EXPECT("gemma4", changes);
}

/* As released files have them, and what is there where they say nothing. */
Test(config_gemma4, sizes_of_full_layers)
{
    static const struct {
        struct change changes[3];
        int count, head, kv_heads;
    } cases[] = {
        {{{"per_layer_config", NULL, NULL}}, 1, 512, 2},
        {{{"per_layer_config", NULL, NULL}, {"global_head_dim", "32", NULL}}, 2, 32, 2},
        {{{"per_layer_config", NULL, NULL}, {"num_global_key_value_heads", "1", NULL}}, 2, 512, 1},
        {{{"per_layer_config", NULL, NULL},
          {"num_global_key_value_heads", "1", NULL},
          {"attention_k_eq_v", "false", NULL}},
         3,
         512,
         2},
        {{{"per_layer_config", "{}", NULL}}, 1, 12, 2},
        {{{"global_head_dim", "64", NULL}}, 1, 16, 1}, /* the other one comes first */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct config config;
        parse_patched(&config, &arena, "experts_gemma4_text", cases[i].changes, cases[i].count);
        const struct mixer *full = &config.mixers[config.layer_kinds[1]].mixer;
        const struct mixer *sliding = &config.mixers[config.layer_kinds[0]].mixer;
        cr_expect_eq(full->head_dim, cases[i].head, "case %zu: %d", i, full->head_dim);
        cr_expect_eq(full->num_kv_heads, cases[i].kv_heads, "case %zu: %d", i, full->num_kv_heads);
        cr_expect_eq(sliding->head_dim, 12);
        cr_expect_eq(sliding->num_kv_heads, 2);
        cr_expect_eq(full->keys_are_values, i != 3);
        cr_expect(!sliding->keys_are_values);
        arena_clear(&arena);
    }
}

Test(config_gemma4, which_layers_share)
{
    static const int of[] = {0, 0, 0, 2, 3}; /* 1 + the layer of the keys */
    struct arena arena = {0};
    struct config config;
    parse_patched(&config, &arena, "gemma4_text", NULL, 0);
    for (int i = 0; i < 5; i++) {
        const struct layer_config *kind = &config.kinds[config.layer_kinds[i]];
        const struct mixer *mixer = &config.mixers[config.layer_kinds[i]].mixer;
        cr_expect_eq(mixer->keys_of, of[i], "layer %d: %d", i, mixer->keys_of);
        cr_expect_eq(mixer->k_norm.kind, of[i] > 0 ? NORM_NONE : NORM_RMSNORM);
        cr_expect_eq(kind->blocks[1].branches[0].mlp_size, of[i] > 0 ? 40 : 20);
        cr_expect_eq(kind->num_blocks, 3);
    }
    arena_clear(&arena);
}
