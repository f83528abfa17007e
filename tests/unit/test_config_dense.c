/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of the dense families, damaged and odd ones, and weights that do not fit them. */
#include "engine/model/model_load.h"
#include "tests/unit/config_changes.h"

#include <math.h>

#define EXPECT(golden, changes) expect_changes(golden, changes, sizeof(changes) / sizeof *(changes))

Test(config_dense, llama)
{
    static const struct change changes[] = {
        {"some_new_key", "1", NULL},
        {"attention_dropout", "0.5", NULL},
        {"num_key_value_heads", "null", NULL},
        {"num_key_value_heads", NULL, NULL},
        {"head_dim", "null", NULL},
        {"head_dim", NULL, NULL},
        {"rope_parameters", "null", NULL},
        {"rms_norm_eps", NULL, NULL},
        {"num_key_value_heads", "2",
         "config.json: num_key_value_heads: expected a divisor of num_attention_heads (3), got 2"},
        {"num_key_value_heads", "0",
         "config.json: num_key_value_heads: expected an integer in [1, 4096], got 0"},
        {"head_dim", "0", "config.json: head_dim: expected an integer in [1, 262144], got 0"},
        {"head_dim", "15", "config.json: head_dim: expected an even number, got 15"},
        {"hidden_size", "37",
         "config.json: hidden_size: expected a multiple of num_attention_heads (3), got 37"},
        {"hidden_size", NULL,
         "config.json: hidden_size: expected an integer in [1, 262144], got nothing"},
        {"num_attention_heads", "null",
         "config.json: num_attention_heads: expected an integer in [1, 4096], got null"},
        {"intermediate_size", NULL,
         "config.json: intermediate_size: expected an integer in [1, 1048576], got nothing"},
        {"hidden_act", "\"relu\"", NULL},
        {"hidden_act", "\"swiglu\"",
         "config.json: hidden_act: unknown hidden_act \"swiglu\" (known: gelu, gelu_new, relu, "
         "silu, gelu_pytorch_tanh, gelu_fast, swish, gelu_python, gelu_python_tanh, "
         "gelu_accurate, relu2)"},
        {"rms_norm_eps", "null",
         "config.json: rms_norm_eps: expected a number in [0, 1], got null"},
        {"rms_norm_eps", "-1", "config.json: rms_norm_eps: expected a number in [0, 1], got -1"},
        {"attention_bias", "null", "config.json: attention_bias: expected true or false, got null"},
        {"mlp_bias", "1", "config.json: mlp_bias: expected true or false, got 1"},
        {"tie_word_embeddings", "\"no\"",
         "config.json: tie_word_embeddings: expected true or false, got \"no\""},
        {"sliding_window", "8",
         "config.json: sliding_window: expected null, got 8 (not supported)"},
        {"sliding_window", "null", NULL},
        {"layer_types", "[\"full_attention\", \"full_attention\"]",
         "config.json: layer_types: expected null, got a list (not supported)"},
        {"attention_chunk_size", "8",
         "config.json: attention_chunk_size: expected null, got 8 (not supported)"},
        {"is_causal", "false", "config.json: is_causal: expected true, got false (not supported)"},
        {"rope_parameters/rope_type", "\"dynamic\"",
         "config.json: rope_parameters.rope_type: expected default, linear, llama3, yarn or "
         "proportional, got \"dynamic\" (not supported)"},
        {"rope_scaling", "{\"type\": \"longrope\"}",
         "config.json: rope_scaling.type: expected default, linear, llama3, yarn or proportional, "
         "got \"longrope\" (not supported)"},
        {"max_position_embeddings", "0",
         "config.json: max_position_embeddings: expected an integer in [1, 2147483647], got 0"},
    };
    EXPECT("dense_llama", changes);
}

Test(config_dense, windows_of_mistral)
{
    static const struct change changes[] = {
        {"sliding_window", "null", NULL},
        {"sliding_window", "0",
         "config.json: sliding_window: expected an integer in [1, 16777216], got 0"},
        {"sliding_window", "\"8\"",
         "config.json: sliding_window: expected an integer in [1, 16777216], got \"8\""},
        {"layer_types", "[\"full_attention\", \"full_attention\"]",
         "config.json: layer_types: expected null, got a list (not supported)"},
        {"attention_bias", "true", NULL}, /* transformers does not read it */
    };
    EXPECT("dense_mistral", changes);
}

Test(config_dense, longrope_of_phi3)
{
    static const struct change changes[] = {
        {"rope_parameters/rope_type", "\"su\"", NULL},
        {"rope_parameters/rope_type", "\"yarn\"", NULL},
        {"rope_parameters/rope_type", "\"linear\"",
         "config.json: rope_parameters.rope_type: expected default or longrope, got \"linear\" "
         "(not "
         "supported)"},
        {"rope_parameters/long_factor", NULL,
         "config.json: rope_parameters.long_factor: expected a list, got nothing"},
        {"rope_parameters/short_factor", "null",
         "config.json: rope_parameters.short_factor: expected a list, got null"},
        {"rope_parameters/short_factor", "[1, 2, 3, 4, 5]",
         "config.json: rope_parameters.short_factor: expected 6 numbers, as in long_factor, got 5"},
        {"rope_parameters/long_factor", "[1, 2, 3, 0, 5, 6]",
         "config.json: rope_parameters.long_factor[3]: expected a number in [1e-06, 1e+09], got 0"},
        {"rope_parameters/long_factor", "[1, \"2\", 3, 4, 5, 6]",
         "config.json: rope_parameters.long_factor[1]: expected a number in [1e-06, 1e+09], got a "
         "string"},
        {"rope_parameters/partial_rotary_factor", "1.0",
         "config.json: long_factor, short_factor: expected 8 numbers, as 16 dimensions of a head "
         "turn, got 6"},
        {"rope_parameters/partial_rotary_factor", "0.7",
         "config.json: expected an even number of rotary dimensions, as a head has only 16, got "
         "11"},
        {"rope_parameters/attention_factor", "0",
         "config.json: rope_parameters.attention_factor: expected a number in [1e-06, 1e+06], got "
         "0"},
        {"rope_parameters/factor", "null", NULL},
        {"original_max_position_embeddings", "1",
         "config.json: original_max_position_embeddings: expected 2 or more with longrope, got 1"},
        {"original_max_position_embeddings", "null",
         "config.json: original_max_position_embeddings: expected an integer in [1, 2147483647], "
         "got null"},
        {"layer_types", "[\"full_attention\", \"full_attention\"]",
         "config.json: layer_types: expected null, got a list (not supported)"},
        {"sliding_window", "0",
         "config.json: sliding_window: expected an integer in [1, 16777216], got 0"},
    };
    EXPECT("dense_phi3", changes);
}

/* The model's longest text chooses the list, and says what cosines and sines are multiplied with.
 */
Test(config_dense, which_list_longrope_takes)
{
    static const struct {
        struct change changes[2];
        int count;
        double first, factor; /* of F_1, and of cosines and sines */
    } cases[] = {
        {{{"sliding_window", "null", NULL}}, 1, 1.6, 1.341640786499874}, /* √(1 + ln 16/ln 32) */
        {{{"max_position_embeddings", "32", NULL}}, 1, 1.2, 1},
        {{{"max_position_embeddings", "33", NULL}}, 1, 1.6, 1.0044295},
        {{{"rope_parameters/factor", "32", NULL}}, 1, 1.6, 1.4142135623730951},
        {{{"rope_parameters/attention_factor", "1.25", NULL}}, 1, 1.6, 1.25},
        /* the class has 4096, whatever stands inside */
        {{{"original_max_position_embeddings", NULL, NULL}}, 1, 1.2, 1},
        {{{"original_max_position_embeddings", NULL, NULL},
          {"max_position_embeddings", "8192", NULL}},
         2,
         1.6,
         1.0408329997330663},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct config config;
        parse_patched(&config, &arena, "dense_phi3", cases[i].changes, cases[i].count);
        const struct position *position = &config.mixers[0].mixer.position;
        const double expected = pow(1000, -2.0 / 12) / cases[i].first;
        cr_expect_eq(position->rotary_dims, 12);
        cr_expect(fabs(position->frequencies[1] - expected) < 1e-6 * expected, "case %zu: %g", i,
                  position->frequencies[1]);
        cr_expect(fabs((double)position->factor - cases[i].factor) < 1e-6, "case %zu: %.9g", i,
                  (double)position->factor);
        arena_clear(&arena);
    }
}

/* As wide as the longest text, it is none; a ring of it would be kept for each text. */
Test(config_dense, wide_windows_of_phi3)
{
    static const char *const windows[] = {"511", "512"};
    for (int i = 0; i < 2; i++) {
        struct arena arena = {0};
        struct config config;
        const struct change change = {"sliding_window", windows[i], NULL};
        parse_patched(&config, &arena, "dense_phi3", &change, 1);
        cr_expect_eq(config.mixers[0].mixer.window_size, i == 0 ? 511 : 0);
        arena_clear(&arena);
    }
}

Test(config_dense, windows_of_qwen)
{
    static const struct change changes[] = {
        {"layer_types", "null", NULL},
        {"layer_types", "[\"attention\", \"full_attention\"]", NULL},
        {"layer_types", "[\"full_attention\"]",
         "config.json: layer_types: expected 2 names (num_hidden_layers), got 1"},
        {"layer_types", "[\"full_attention\", \"linear_attention\"]",
         "config.json: layer_types[1]: expected full_attention or sliding_attention, got "
         "linear_attention (not supported)"},
        {"layer_types", "[\"full_attention\", 3]",
         "config.json: layer_types[1]: expected full_attention or sliding_attention, got a number "
         "(not supported)"},
        {"use_sliding_window", "false",
         "config.json: layer 1 is of sliding_attention, which needs use_sliding_window and a "
         "sliding_window"},
        {"sliding_window", "null",
         "config.json: layer 1 is of sliding_attention, which needs use_sliding_window and a "
         "sliding_window"},
        {"use_sliding_window", "null",
         "config.json: use_sliding_window: expected true or false, got null"},
        {"head_dim", "null", "config.json: head_dim: expected an integer in [1, 262144], got null"},
    };
    EXPECT("dense_qwen2", changes);
}

Test(config_dense, smollm3)
{
    static const struct change changes[] = {
        {"no_rope_layers", "null", NULL},
        {"no_rope_layers", "[1, 0, 1, 1]", NULL},
        {"no_rope_layers", "[1, 0]",
         "config.json: no_rope_layers: expected at least 3 numbers (num_hidden_layers), got 2"},
        {"no_rope_layers", "[1, 0, \"1\"]",
         "config.json: no_rope_layers[2]: expected an integer, got a string"},
        {"no_rope_layer_interval", "0",
         "config.json: no_rope_layer_interval: expected an integer in [1, 2147483647], got 0"},
        {"layer_types", "[\"full_attention\", \"sliding_attention\", \"full_attention\"]",
         "config.json: layer 1 is of sliding_attention, which needs a sliding_window"},
    };
    EXPECT("dense_smollm3", changes);
}

Test(config_dense, granite)
{
    static const struct change changes[] = {
        {"embedding_multiplier", NULL, NULL},
        {"logits_scaling", "16", NULL},
        {"logits_scaling", "0",
         "config.json: logits_scaling: expected a number in [1e-06, 1e+06], got 0"},
        {"residual_multiplier", "null",
         "config.json: residual_multiplier: expected a number in [1e-06, 1e+06], got null"},
        {"attention_multiplier", "-0.5",
         "config.json: attention_multiplier: expected a number in [1e-06, 1e+06], got -0.5"},
        {"head_dim", "null", "config.json: head_dim: expected an integer in [1, 262144], got null"},
    };
    EXPECT("dense_granite", changes);
}

/* What the classes take for keys that a file leaves out. */
Test(config_dense, defaults_of_the_classes)
{
    static const struct {
        const char *golden;
        int kv_heads, head_dim, window;
        double base;
        bool tied;
    } classes[] = {
        {"dense_llama", 64, 2, 0, 10000, false},   {"dense_mistral", 8, 2, 4096, 10000, false},
        {"dense_qwen2", 32, 2, 0, 10000, false},   {"dense_qwen3", 32, 128, 0, 10000, false},
        {"dense_smollm3", 4, 2, 0, 2000000, true}, {"dense_granite", 64, 2, 0, 10000, false},
        {"dense_phi3", 64, 2, 0, 10000, false},
    };
    static const struct change changes[] = {
        {"num_attention_heads", "64", NULL}, {"hidden_size", "128", NULL},
        {"num_key_value_heads", NULL, NULL}, {"head_dim", NULL, NULL},
        {"rope_parameters", NULL, NULL},     {"sliding_window", NULL, NULL},
        {"tie_word_embeddings", NULL, NULL}, {"layer_types", NULL, NULL},
        {"rms_norm_eps", NULL, NULL},        {"max_position_embeddings", NULL, NULL},
        {"use_sliding_window", NULL, NULL},  {"hidden_act", NULL, NULL},
        {"attention_multiplier", NULL, NULL}};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        struct arena arena = {0};
        struct config config;
        struct change present[sizeof changes / sizeof *changes];
        json_t *file = golden_config(classes[i].golden);
        int count = 0;
        for (size_t c = 0; c < sizeof changes / sizeof *changes; c++)
            if (changes[c].value || json_object_get(file, changes[c].path))
                present[count++] = changes[c];
        json_decref(file);
        parse_patched(&config, &arena, classes[i].golden, present, count);
        const struct mixer *mixer = &config.mixers[0].mixer;
        cr_expect_eq(mixer->num_kv_heads, classes[i].kv_heads, "%s", classes[i].golden);
        cr_expect_eq(mixer->head_dim, classes[i].head_dim, "%s", classes[i].golden);
        cr_expect_eq(mixer->window_size, classes[i].window, "%s", classes[i].golden);
        cr_expect(mixer->position.base == classes[i].base, "%s", classes[i].golden);
        cr_expect_eq(config.tied, classes[i].tied, "%s", classes[i].golden);
        cr_expect_eq(config.hidden_act, ACT_SILU, "%s", classes[i].golden);
        cr_expect(fabs((double)config.norm_eps -
                       (strcmp(classes[i].golden, "dense_phi3") == 0 ? 1e-5 : 1e-6)) < 1e-11,
                  "%s", classes[i].golden);
        cr_expect(mixer->score_scale == (strcmp(classes[i].golden, "dense_granite") == 0 ? 1 : 0),
                  "%s", classes[i].golden);
        arena_clear(&arena);
    }
}

/* Layers whose kind is `name`, as a number whose bit i is layer i. */
static unsigned layers_of(const struct config *config, const char *name)
{
    unsigned layers = 0;
    for (int i = 0; i < (int)config->num_layers; i++)
        if (strcmp(config->kinds[config->layer_kinds[i]].name, name) == 0)
            layers |= 1U << i;
    return layers;
}

Test(config_dense, which_layers_have_a_window)
{
    static const struct {
        const char *golden, *use, *first, *types;
        unsigned sliding; /* layers */
    } cases[] = {
        {"dense_qwen3", "true", "3", NULL, 0x8},
        {"dense_qwen3", "true", "-1", NULL, 0xf},
        {"dense_qwen3", "false", "0", NULL, 0},
        {"dense_qwen2", "true", "4", NULL, 0},
        {"dense_qwen2", "true", "0",
         "[\"full_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]",
         0x2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct config config;
        const struct change changes[] = {{"num_hidden_layers", "4", NULL},
                                         {"sliding_window", "7", NULL},
                                         {"use_sliding_window", cases[i].use, NULL},
                                         {"max_window_layers", cases[i].first, NULL},
                                         {"layer_types", cases[i].types, NULL}};
        parse_patched(&config, &arena, cases[i].golden, changes, 5);
        cr_expect_eq(layers_of(&config, "sliding_attention"), cases[i].sliding, "case %zu", i);
        cr_expect_eq(layers_of(&config, "full_attention"), 0xf & ~cases[i].sliding, "case %zu", i);
        arena_clear(&arena);
    }
}

/* use_sliding_window gives a window to layers without rotary embeddings; layer_types to any. */
Test(config_dense, kinds_of_smollm3)
{
    struct arena arena = {0};
    struct config config;
    struct change changes[] = {
        {"num_hidden_layers", "4", NULL},      {"no_rope_layers", NULL, NULL},
        {"no_rope_layer_interval", "2", NULL}, {"sliding_window", "7", NULL},
        {"use_sliding_window", "true", NULL},  {"layer_types", NULL, NULL}};
    parse_patched(&config, &arena, "dense_smollm3", changes, 6);
    cr_expect_eq(layers_of(&config, "full_attention"), 0x5);
    cr_expect_eq(layers_of(&config, "sliding_attention_without_rope"), 0xa);
    cr_expect_eq(config.num_kinds, 2);
    cr_expect_eq(config.mixers[1].mixer.position.kind, POSITION_NONE);
    cr_expect_eq(config.mixers[1].mixer.window_size, 7);
    arena_clear(&arena);

    struct arena again = {0};
    changes[5].value = "[\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
                       "\"full_attention\"]";
    changes[4].value = "false";
    parse_patched(&config, &again, "dense_smollm3", changes, 6);
    cr_expect_eq(layers_of(&config, "sliding_attention"), 0x1);
    cr_expect_eq(layers_of(&config, "sliding_attention_without_rope"), 0x2);
    cr_expect_eq(layers_of(&config, "full_attention"), 0x4);
    cr_expect_eq(layers_of(&config, "full_attention_without_rope"), 0x8);
    arena_clear(&again);
}
