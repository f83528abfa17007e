/* SPDX-License-Identifier: Apache-2.0 */
/* Dense families with norms behind their branches: OLMo 2 and 3, Gemma 2 and 3. */
#include "tests/unit/config_changes.h"

#include <math.h>

#define YARN "{\"rope_type\": \"yarn\", \"factor\": 8, \"original_max_position_embeddings\": 64}"

Test(config_norms, olmo_changes)
{
    static const struct change of_2[] = {
        {"num_key_value_heads", "2",
         "config.json: num_key_value_heads: expected a divisor of num_attention_heads (3), got 2"},
        {"attention_bias", "1", "config.json: attention_bias: expected true or false, got 1"},
        {"layer_types", "[\"full_attention\"]",
         "config.json: layer_types: expected null, got a list (not supported)"},
        {"head_dim", "null", "config.json: head_dim: expected an integer in [1, 262144], got null"},
        {"rope_parameters/rope_type", "\"longrope\"",
         "config.json: rope_parameters.rope_type: expected default, linear, llama3, yarn or "
         "proportional, got \"longrope\" (not supported)"},
    };
    static const struct change of_3[] = {
        {"sliding_window", "null",
         "config.json: layer 0 is of sliding_attention, which needs a sliding_window"},
        {"sliding_window", "0",
         "config.json: sliding_window: expected an integer in [1, 16777216], got 0"},
        {"layer_types/1", "\"chunked_attention\"",
         "config.json: layer_types[1]: expected full_attention or sliding_attention, got "
         "chunked_attention (not supported)"},
        {"layer_types", "null", NULL},
        {"rope_parameters", "null", NULL},
        {"rope_scaling", "{}", NULL},
        {"rope_scaling", YARN,
         "config.json: rope_scaling: expected nothing beside rope_parameters (not supported)"},
        {"rope_parameters/sliding_attention", "3",
         "config.json: rope_parameters.sliding_attention: expected an object, got 3"},
        {"rope_parameters/sliding_attention/rope_theta", "0",
         "config.json: rope_parameters.sliding_attention.rope_theta: expected a number in [1, "
         "1e+12], got 0"},
    };
    expect_changes("dense_olmo2", of_2, sizeof of_2 / sizeof *of_2);
    expect_changes("dense_olmo3", of_3, sizeof of_3 / sizeof *of_3);
}

Test(config_norms, gemma_changes)
{
    static const struct change of_2[] = {
        {"use_bidirectional_attention", "true",
         "config.json: use_bidirectional_attention: expected false, got true (not supported)"},
        {"attn_logit_softcapping", "0",
         "config.json: attn_logit_softcapping: expected a number in [1e-06, 1e+06], got 0"},
        {"final_logit_softcapping", "\"30\"",
         "config.json: final_logit_softcapping: expected a number in [1e-06, 1e+06], got \"30\""},
        {"attn_logit_softcapping", "null", NULL},
        {"query_pre_attn_scalar", "null",
         "config.json: query_pre_attn_scalar: expected a number in [1e-06, 1e+09], got null"},
        {"hidden_size", "49",
         "config.json: hidden_size: expected a multiple of num_attention_heads (2), got 49"},
        {"hidden_act", "\"mish\"", NULL},
        {"hidden_activation", "\"mish\"",
         "config.json: hidden_activation: unknown hidden_activation \"mish\" (known: gelu, "
         "gelu_new, "
         "relu, silu, gelu_pytorch_tanh, gelu_fast, swish, gelu_python, gelu_python_tanh, "
         "gelu_accurate, relu2)"},
        {"rope_parameters/full_attention", "{}",
         "config.json: rope_parameters.full_attention: expected the same for all layers, got an "
         "object (not supported)"},
    };
    static const struct change of_3[] = {
        {"use_bidirectional_attention", "true",
         "config.json: use_bidirectional_attention: expected false, got true (not supported)"},
        {"sliding_window_pattern", "0",
         "config.json: sliding_window_pattern: expected an integer in [1, 4096], got 0"},
        {"sliding_window_pattern", "null",
         "config.json: sliding_window_pattern: expected an integer in [1, 4096], got null"},
        {"sliding_window", "null",
         "config.json: layer 1 is of sliding_attention, which needs a sliding_window"},
        {"rope_parameters/full_attention/factor", NULL,
         "config.json: rope_parameters.full_attention.factor: expected a number in [1e-06, 1e+09], "
         "got nothing"},
    };
    expect_changes("dense_gemma2", of_2, sizeof of_2 / sizeof *of_2);
    expect_changes("dense_gemma3_text", of_3, sizeof of_3 / sizeof *of_3);
}

/* Of the mixer of layer i. */
static const struct mixer *mixer_of(const struct config *config, int i)
{
    const struct layer_config *layer = &config->kinds[config->layer_kinds[i]];
    return &config->mixers[layer->blocks[0].branches[0].mixer].mixer;
}

static void expect_layers(const struct config *config, const char *full)
{
    cr_assert_eq(config->num_layers, (int64_t)strlen(full));
    for (int i = 0; full[i]; i++)
        cr_expect_eq(mixer_of(config, i)->window, full[i] == 'f' ? WINDOW_FULL : WINDOW_SLIDING,
                     "layer %d", i);
}

Test(config_norms, what_olmo_3_takes_for_absent_keys)
{
    struct arena arena = {0};
    struct config config;
    /* version 4 had one base, which transformers 5.24 takes for full_attention alone */
    const struct change changes[] = {
        {"layer_types", NULL, NULL},     {"num_hidden_layers", "5", NULL},
        {"rope_parameters", NULL, NULL}, {"rope_theta", "1234", NULL},
        {"rope_scaling", YARN, NULL},    {"sliding_window", NULL, NULL},
        {"rms_norm_eps", NULL, NULL},    {"num_key_value_heads", "null", NULL},
    };
    parse_patched(&config, &arena, "dense_olmo3", changes, sizeof changes / sizeof *changes);
    expect_layers(&config, "sssfs");
    const struct position *full = &mixer_of(&config, 3)->position;
    const struct position *sliding = &mixer_of(&config, 0)->position;
    cr_expect(full->base == 1234 && full->frequencies && full->factor > 1);
    cr_expect(sliding->base == 500000 && !sliding->frequencies && sliding->factor == 0);
    cr_expect_eq(mixer_of(&config, 0)->window_size, 4096);
    cr_expect_eq(mixer_of(&config, 0)->num_kv_heads, 3);
    cr_expect_eq(config.norm_eps, 1e-5F);
    arena_clear(&arena);
}

/* Where layers have parameters of their kinds, transformers takes the original length from these
 * alone, and whether yarn's ramp is truncated from beside them alone. */
Test(config_norms, what_stands_beside_kinds_of_layers)
{
    static const struct {
        const char *path, *value;
        bool same;
    } cases[] = {
        {"original_max_position_embeddings", "32", true},
        {"rope_parameters/full_attention/truncate", "false", true},
        {"rope_parameters/truncate", "true", true},
        {"rope_parameters/truncate", "false", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct config configs[2];
        const struct change changes[] = {{"rope_parameters/full_attention", YARN, NULL},
                                         {cases[i].path, cases[i].value, NULL}};
        for (int j = 0; j < 2; j++)
            parse_patched(&configs[j], &arena, "dense_olmo3", changes, 1 + j);
        const struct position *before = &mixer_of(&configs[0], 1)->position;
        const struct position *after = &mixer_of(&configs[1], 1)->position;
        cr_assert(before->rotary_dims == 12 && after->rotary_dims == 12);
        const bool same = memcmp(before->frequencies, after->frequencies, 6 * sizeof(double)) == 0;
        cr_expect_eq(same, cases[i].same, "%s", cases[i].path);
        cr_expect_eq(configs[1].warnings.count, i == 1, "%s", cases[i].path);
        arena_clear(&arena);
    }
    expect_patched("dense_olmo3", "rope_parameters/truncate", "null",
                   "config.json: rope_parameters.truncate: expected true or false, got null");
}

Test(config_norms, what_gemma_takes_for_absent_keys)
{
    struct arena arena = {0};
    struct config config;
    const struct change of_2[] = {
        {"layer_types", NULL, NULL},
        {"num_hidden_layers", "3", NULL},
        {"attn_logit_softcapping", NULL, NULL},
        {"final_logit_softcapping", NULL, NULL},
        {"query_pre_attn_scalar", NULL, NULL},
        {"head_dim", NULL, NULL},
        {"hidden_activation", NULL, NULL},
        {"num_attention_heads", "8", NULL},
        {"num_key_value_heads", NULL, NULL},
        {"tie_word_embeddings", NULL, NULL},
    };
    parse_patched(&config, &arena, "dense_gemma2", of_2, sizeof of_2 / sizeof *of_2);
    expect_layers(&config, "sfs");
    const struct mixer *mixer = mixer_of(&config, 0);
    cr_expect(mixer->score_softcap == 50 && config.logit_softcap == 30);
    cr_expect(mixer->score_scale == 1.0F / 16 && mixer->head_dim == 256);
    cr_expect(mixer->num_kv_heads == 4 && config.tied && config.norm_plus_one);
    cr_expect(config.hidden_act == ACT_GELU_NEW);
    cr_expect_eq(config.embedding_scale, (float)sqrt(48));
    arena_clear(&arena);

    const struct change of_3[] = {
        {"layer_types", NULL, NULL},
        {"num_hidden_layers", "7", NULL},
        {"rope_parameters", NULL, NULL},
        {"original_max_position_embeddings", "99", NULL},
        {"attn_logit_softcapping", "50", NULL},
    };
    parse_patched(&config, &arena, "dense_gemma3_text", of_3, sizeof of_3 / sizeof *of_3);
    expect_layers(&config, "sssssfs");
    cr_expect(mixer_of(&config, 5)->position.base == 1e6 &&
              mixer_of(&config, 0)->position.base == 1e4);
    cr_expect(mixer_of(&config, 0)->score_softcap == 0 && config.logit_softcap == 0);
    cr_expect(mixer_of(&config, 0)->q_norm.plus_one && mixer_of(&config, 0)->k_norm.plus_one);
    cr_expect_eq(config.warnings.count, 1);
    arena_clear(&arena);
}
