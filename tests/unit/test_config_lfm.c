/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of LFM 2 and 3, damaged and odd ones, and weights that do not fit them. */
#include "engine/model/model_load.h"
#include "tests/unit/config_changes.h"

#include <math.h>

#define EXPECT(golden, changes) expect_changes(golden, changes, sizeof(changes) / sizeof *(changes))

Test(config_lfm, lfm2)
{
    static const struct change changes[] = {
        {"some_new_key", "1", NULL},
        {"hidden_act", "\"relu\"", NULL}, /* transformers does not read it */
        {"layer_types", "null", NULL},
        {"layer_types", "[\"conv\", \"full_attention\"]",
         "config.json: layer_types: expected 4 names (num_hidden_layers), got 2"},
        {"layer_types", "[\"conv\", \"conv\", \"sliding_attention\", \"conv\"]",
         "config.json: layer_types[2]: expected full_attention or conv, got sliding_attention (not "
         "supported)"},
        {"layer_types", "[\"conv\", \"conv\", 1, \"conv\"]",
         "config.json: layer_types[2]: expected full_attention or conv, got a number (not "
         "supported)"},
        {"full_attn_idxs", "[1, \"2\"]",
         "config.json: full_attn_idxs[1]: expected an integer, got a string"},
        {"conv_L_cache", "1", "config.json: conv_L_cache: expected an integer in [2, 8], got 1"},
        {"conv_L_cache", "9", "config.json: conv_L_cache: expected an integer in [2, 8], got 9"},
        {"conv_L_cache", "null",
         "config.json: conv_L_cache: expected an integer in [2, 8], got null"},
        {"conv_bias", "1", "config.json: conv_bias: expected true or false, got 1"},
        {"num_key_value_heads", "2",
         "config.json: num_key_value_heads: expected a divisor of num_attention_heads (3), got 2"},
        {"hidden_size", "45", "config.json: head_dim: expected an even number, got 15"},
        {"hidden_size", "2", "config.json: head_dim: expected an even number, got 0"},
        {"block_multiple_of", "0",
         "config.json: block_multiple_of: expected an integer in [1, 1048576], got 0"},
        {"block_ffn_dim_multiplier", "null", NULL},
        {"intermediate_size", "1",
         "config.json: intermediate_size: expected 1 to 1048576 once it is adjusted, got 0"},
        {"intermediate_size", NULL,
         "config.json: intermediate_size: expected an integer in [1, 1048576], got nothing"},
        {"block_ff_dim", "0",
         "config.json: block_ff_dim: expected an integer in [1, 1048576], got 0"},
        {"rope_parameters/rope_type", "\"dynamic\"",
         "config.json: rope_parameters.rope_type: expected default, linear, llama3, yarn or "
         "proportional, got \"dynamic\" (not supported)"},
        {"is_causal", "false", "config.json: is_causal: expected true, got false (not supported)"},
        {"text_config", "{}",
         "config.json: text_config: expected null, got an object (not supported)"},
    };
    EXPECT("lfm2", changes);
}

Test(config_lfm, lfm3)
{
    static const struct change changes[] = {
        {"layer_types", "null", NULL},
        {"rope_parameters", "null", NULL},
        {"layer_types", "[\"conv\", \"conv\", \"linear_attention\", \"conv\", \"conv\"]",
         "config.json: layer_types[2]: expected full_attention, sliding_attention or conv, got "
         "linear_attention (not supported)"},
        {"sliding_window", "0",
         "config.json: sliding_window: expected an integer in [1, 16777216], got 0"},
        {"use_attention_gate", "null",
         "config.json: use_attention_gate: expected true or false, got null"},
        {"use_sandwich_norm", "\"yes\"",
         "config.json: use_sandwich_norm: expected true or false, got \"yes\""},
        {"head_dim", "7", "config.json: head_dim: expected an even number, got 7"},
    };
    EXPECT("lfm3", changes);
}

/* The MLPs of LFM2-350M, whose file says 6656, are 4608 wide. */
Test(config_lfm, widths_are_adjusted_as_in_transformers)
{
    static const struct {
        const char *size, *multiplier, *multiple, *adjusts;
        int64_t width;
    } cases[] = {
        {"6656", "1.0", "256", "true", 4608}, {"6656", "1.0", "256", "false", 6656},
        {"100", "0.7", "10", "true", 50},     {"100", "null", "10", "true", 66},
        {"100", "1.3", "1", "true", 85},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct change changes[] = {
            {"intermediate_size", cases[i].size, NULL},
            {"block_ffn_dim_multiplier", cases[i].multiplier, NULL},
            {"block_multiple_of", cases[i].multiple, NULL},
            {"block_auto_adjust_ff_dim", cases[i].adjusts, NULL},
        };
        struct arena arena = {0};
        struct config config;
        parse_patched(&config, &arena, "lfm2", changes, 4);
        cr_expect_eq(config.intermediate_size, cases[i].width, "%zu", i);
        arena_clear(&arena);
    }
}

/* Released files of LFM 3 say default with a part, and mean proportional. */
Test(config_lfm, a_part_of_the_default_is_proportional)
{
    static const struct change change = {"rope_parameters/full_attention/rope_type", "\"default\"",
                                         NULL};
    struct arena arena = {0};
    struct config released, saved;
    parse_patched(&saved, &arena, "lfm3", NULL, 0);
    parse_patched(&released, &arena, "lfm3", &change, 1);
    const struct position *one = &saved.mixers[0].mixer.position;
    const struct position *other = &released.mixers[0].mixer.position;
    cr_assert(one->rotary_dims == 12 && other->rotary_dims == 12 && other->frequencies);
    for (int i = 0; i < 6; i++)
        cr_expect_eq(one->frequencies[i], other->frequencies[i], "%d", i);
    cr_expect(one->frequencies[2] > 0 && one->frequencies[3] == 0);
    cr_expect_null(warnings_at(&saved.warnings, 0));
    cr_expect(strstr(warnings_at(&released.warnings, 0), "it is read as proportional") != NULL);
    arena_clear(&arena);
}

/* Without the list each layer is what full_attn_idxs says, or all are of attention. */
Test(config_lfm, layers_by_their_indices)
{
    static const struct change changes[] = {{"layer_types", NULL, NULL},
                                            {"full_attn_idxs", "[0, 3]", NULL}};
    struct arena arena = {0};
    struct config config;
    parse_patched(&config, &arena, "lfm2", changes, 2);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(config.mixers[config.layer_kinds[i]].mixer.kind,
                     i == 0 || i == 3 ? MIXER_SOFTMAX : MIXER_CONV);
    parse_patched(&config, &arena, "lfm2", changes, 1);
    cr_expect(config.num_mixers == 1 && config.mixers[0].mixer.kind == MIXER_SOFTMAX);
    arena_clear(&arena);
}
