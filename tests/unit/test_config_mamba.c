/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of the families with Mamba-2, damaged and odd ones, and what they become. */
#include "engine/model/fingerprint.h"
#include "engine/model/model_load.h"
#include "tests/unit/config_changes.h"

#include <math.h>

#define EXPECT(golden, changes) expect_changes(golden, changes, sizeof(changes) / sizeof *(changes))

Test(config_mamba, mamba2)
{
    static const struct change changes[] = {
        {"some_new_key", "1", NULL},
        {"chunk_size", "64", NULL},
        {"time_step_limit", NULL, NULL},
        {"time_step_limit", "[0.0, {\"__float__\": \"Infinity\"}]", NULL},
        {"time_step_limit", "[0.5, 0.5]", NULL},
        {"time_step_limit", "[0.0]", "config.json: time_step_limit: expected 2 numbers, got 1"},
        {"time_step_limit", "[0.0, {\"__float__\": \"NaN\"}]",
         "config.json: time_step_limit: expected a number or Infinity, got NaN"},
        {"time_step_limit", "[\"0\", 1]",
         "config.json: time_step_limit: expected a number or Infinity, got a string"},
        {"time_step_limit", "[-1, 1]",
         "config.json: time_step_limit: expected a finite number >= 0, and one over 0 that is "
         "not less, got -1 and 1"},
        {"time_step_limit", "[{\"__float__\": \"Infinity\"}, {\"__float__\": \"Infinity\"}]",
         "config.json: time_step_limit: expected a finite number >= 0, and one over 0 that is "
         "not less, got inf and inf"},
        {"time_step_limit", "[2, 1]",
         "config.json: time_step_limit: expected a finite number >= 0, and one over 0 that is "
         "not less, got 2 and 1"},
        {"time_step_limit", "[0, 0]",
         "config.json: time_step_limit: expected a finite number >= 0, and one over 0 that is "
         "not less, got 0 and 0"},
        {"head_dim", "11",
         "config.json: num_heads times head_dim: expected 72 (hidden_size times expand), got 6 * "
         "11"},
        {"head_dim", "\"auto\"",
         "config.json: head_dim: expected an integer in [1, 262144], got \"auto\""},
        {"expand", "3",
         "config.json: num_heads times head_dim: expected 108 (hidden_size times expand), got 6 * "
         "12"},
        {"n_groups", "4", "config.json: n_groups: expected a divisor of num_heads (6), got 4"},
        {"state_size", "0", "config.json: state_size: expected an integer in [1, 4096], got 0"},
        {"conv_kernel", "1", "config.json: conv_kernel: expected an integer in [2, 8], got 1"},
        {"conv_kernel", "9", "config.json: conv_kernel: expected an integer in [2, 8], got 9"},
        {"hidden_act", "\"gelu\"",
         "config.json: hidden_act: expected \"silu\", got \"gelu\" (not supported in Mamba-2's "
         "mixers)"},
        {"use_bias", "null", "config.json: use_bias: expected true or false, got null"},
        {"use_conv_bias", "1", "config.json: use_conv_bias: expected true or false, got 1"},
        {"num_heads", NULL,
         "config.json: num_heads: expected an integer in [1, 4096], got nothing"},
    };
    EXPECT("mamba2", changes);
}

Test(config_mamba, bamba)
{
    static const struct change changes[] = {
        {"attn_layer_indices", "null", NULL},
        {"attn_layer_indices", "[2, 0]", NULL},
        {"attn_layer_indices", "[3]",
         "config.json: attn_layer_indices[0]: expected an integer in [0, 3), got 3"},
        {"attn_layer_indices", "[0, true]",
         "config.json: attn_layer_indices[1]: expected an integer, got true"},
        {"mamba_d_head", "\"auto\"", NULL},
        {"mamba_d_head", NULL, NULL},
        {"mamba_d_head", "\"all\"",
         "config.json: mamba_d_head: expected an integer in [1, 262144], got \"all\""},
        {"partial_rotary_factor", "0.5", NULL},
        {"partial_rotary_factor", "1.0",
         "config.json: partial_rotary_factor: expected 0.5, got 1.0 (not supported)"},
        {"sliding_window", "8",
         "config.json: sliding_window: expected null, got 8 (not supported)"},
    };
    EXPECT("bamba", changes);
}

Test(config_mamba, granite)
{
    static const struct change changes[] = {
        {"num_local_experts", "513",
         "config.json: num_local_experts: expected an integer in [0, 512], got 513"},
        {"num_local_experts", "null",
         "config.json: num_local_experts: expected an integer in [0, 512], got null"},
        {"num_local_experts", "8",
         "config.json: num_experts_per_tok: expected an integer in [1, 8], got 0"},
        {"position_embedding_type", "\"rope\"", NULL},
        {"position_embedding_type", "\"nope\"", NULL},
        {"layer_types", "[\"mamba\", \"attention\", \"mamba\"]", NULL},
        {"layer_types", "null", NULL},
        {"layer_types", "[\"mamba\", \"attention\"]",
         "config.json: layer_types: expected 3 names (num_hidden_layers), got 2"},
        {"layer_types", "[\"mamba\", \"mlp\", \"mamba\"]",
         "config.json: layer_types[1]: expected full_attention or linear_attention, got mlp (not "
         "supported)"},
        {"layer_types", "[\"mamba\", 1, \"mamba\"]",
         "config.json: layer_types[1]: expected full_attention or linear_attention, got a number "
         "(not "
         "supported)"},
        {"shared_intermediate_size", NULL,
         "config.json: shared_intermediate_size: expected an integer in [1, 1048576], got nothing"},
        {"residual_multiplier", "0",
         "config.json: residual_multiplier: expected a number in [1e-06, 1e+06], got 0"},
    };
    EXPECT("granitemoehybrid", changes);
}

Test(config_mamba, falcon_h1)
{
    static const struct change changes[] = {
        {"ssm_multipliers", "null", NULL},
        {"mlp_multipliers", "null", NULL},
        {"mamba_d_ssm", "null",
         "config.json: mamba_n_heads times mamba_d_head: expected 72 (hidden_size times "
         "mamba_expand), got 5 * 8"},
        {"ssm_multipliers", "[1, 1, 1, 1]",
         "config.json: ssm_multipliers: expected 5 numbers, got 4"},
        {"ssm_multipliers", "[1, 1, 1, 1, \"1\"]",
         "config.json: ssm_multipliers[4]: expected a number, got a string"},
        {"mlp_multipliers", "[1, 2e9]",
         "config.json: mlp_multipliers[1]: expected a number in [-1e+06, 1e+06], got 2e+09"},
        {"ssm_in_multiplier", "0",
         "config.json: ssm_in_multiplier: expected a number in [1e-06, 1e+06], got 0"},
        {"key_multiplier", "null",
         "config.json: key_multiplier: expected a number in [1e-06, 1e+06], got null"},
    };
    EXPECT("falcon_h1", changes);
}

Test(config_mamba, nemotron_h)
{
    static const struct change changes[] = {
        {"num_hidden_layers", "99", NULL},
        {"max_position_embeddings", "null", NULL},
        {"max_position_embeddings", NULL, NULL},
        {"layers_block_type", NULL,
         "config.json: hybrid_override_pattern: expected a string, got nothing"},
        {"layers_block_type", "[]",
         "config.json: layers_block_type: expected 1 to 4096 names, got 0"},
        {"layers_block_type", "[\"mamba\", \"experts\"]",
         "config.json: layers_block_type[1]: expected full_attention, linear_attention, mlp or "
         "moe, "
         "got experts (not supported)"},
        {"mlp_hidden_act", "\"silu\"", NULL},
        {"attention_bias", "true", NULL},
        {"num_nextn_predict_layers", "1",
         "config.json: num_nextn_predict_layers: expected 0, got 1 (not supported)"},
        {"mamba_d_conv", "4", "config.json: mamba_d_conv: expected null, got 4 (not supported)"},
        {"mamba_hidden_act", "\"relu\"",
         "config.json: mamba_hidden_act: expected \"silu\", got \"relu\" (not supported in "
         "Mamba-2's mixers)"},
    };
    EXPECT("nemotron_h", changes);
}

/* Python's json writes Infinity, which is not JSON; transformers 4 did so. */
Test(config_mamba, infinity_as_python_writes_it)
{
    static const struct {
        const char *limit, *message;
    } cases[] = {
        {"[0.0, Infinity]", NULL},
        {"[0.0, NaN]", "config.json: time_step_limit: expected a number or Infinity, got NaN"},
        {"[-Infinity, 1.0]",
         "config.json: time_step_limit: expected a number or Infinity, got -Infinity"}};
    static const char word[] = "\"LIMIT\"";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char changed[8192];
        json_t *config = golden_config("mamba2");
        json_patch(config, "time_step_limit", word);
        char *text = json_dumps(config, 0), *at = strstr(text, word);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[i].limit,
                 at + strlen(word));
        expect_text(cases[i].limit, changed, cases[i].message);
        free(text);
        json_decref(config);
    }
}

/* The pattern's letters: E is of experts. */
Test(config_mamba, patterns_of_nemotron_h)
{
    static const struct {
        const char *pattern, *message;
    } cases[] = {
        {"\"M-*-M\"", NULL},
        {"\"ME*\"", NULL},
        {"\"Mx\"",
         "config.json: hybrid_override_pattern: expected M, *, - or E, got 'x' at place 1"},
        {"\"\"", "config.json: hybrid_override_pattern: expected 1 to 4096 letters, got 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *config = golden_config("nemotron_h");
        json_patch(config, "layers_block_type", NULL);
        json_patch(config, "hybrid_override_pattern", cases[i].pattern);
        char *text = json_dumps(config, 0);
        expect_text(cases[i].pattern, text, cases[i].message);
        free(text);
        json_decref(config);
    }
}

static struct model *open_golden(const char *name)
{
    char path[256];
    struct model *model;
    struct error err = ERROR_INIT;
    snprintf(path, sizeof path, GOLDEN "%s", name);
    cr_assert(model_open(&model, path, &err) == 0, "%s", err.message);
    return model;
}

/* rows from number `first` on, which is the matrix's own memory: what is packed is given back. */
static void expect_rows(const struct matrix *part, const struct matrix *fused, int64_t first,
                        int64_t rows)
{
    const size_t offset = dtype_size(fused->dtype, (size_t)(first * fused->cols));
    cr_expect(part->rows == rows && part->cols == fused->cols && part->part.run == 0);
    cr_expect_eq(part->data, (const char *)fused->data + offset);
}

/* in_proj is split where it lies; multipliers go where numbers are f32. */
Test(config_mamba, what_a_mixer_becomes)
{
    struct model *model = open_golden("falcon_h1");
    const struct block *block = &model->layers[0].blocks[0];
    const struct mixer *mamba = block->branches[0].mixer, *attention = block->branches[1].mixer;
    cr_assert(block->num_branches == 2 && mamba->gate == GATE_MAMBA2);
    cr_expect(mamba->num_heads == 5 && mamba->num_qk_heads == 1 && mamba->value_dim == 8);
    cr_expect(mamba->head_dim == 12 && mamba->conv.width == 4 && mixer_conv_channels(mamba) == 64);
    expect_rows(&mamba->v_proj, &mamba->out_gate_proj, 40, 40);
    expect_rows(&mamba->k_proj, &mamba->out_gate_proj, 80, 12);
    expect_rows(&mamba->q_proj, &mamba->out_gate_proj, 92, 12);
    expect_rows(&mamba->dt_proj, &mamba->out_gate_proj, 104, 5);
    cr_expect_float_eq(mamba->gate_scale.weight[0], 1.5f * 0.35f, 1e-6f); /* of dt */
    cr_expect_float_eq(mamba->gate_scale.weight[5], 1.5f * 0.5f, 1e-6f);  /* of z */
    cr_expect_float_eq(block->branches[0].scale, 0.7f, 1e-6f);
    cr_expect_float_eq(block->branches[1].scale, 0.9f * 1.4f, 1e-6f);
    cr_expect_float_eq(attention->score_scale, 0.4f * 1.4f * 1.4f / sqrtf(12), 1e-6f);
    cr_expect(mamba->output_norm.kind == NORM_NONE && !mamba->gate_first);
    model_close(model);
    model = open_golden("nemotron_h");
    mamba = layer_branch(&model->layers[0], 0)->mixer;
    cr_expect(mamba->output_norm_parts == 3 && mamba->gate_first &&
              mamba->gate_scale.weight == NULL);
    cr_expect(isinf(mamba->dt_most) && mamba->dt_least == 0.0f);
    cr_expect(model->num_layers == 5 && layer_branch(&model->layers[1], 1) == NULL);
    cr_expect(layer_branch(&model->layers[1], 0)->mlp->act == ACT_RELU2);
    model_close(model);
}

/* Falcon-H1's multipliers are part of what is computed, so of the fingerprint, too: also those that
 * are only in numbers made of tensors, and where others make up for them. */
Test(config_mamba, multipliers_change_the_fingerprint)
{
    static const char *const changes[] = {
        "{}",
        "{\"ssm_in_multiplier\": 0.5}",
        "{\"ssm_out_multiplier\": 0.5}",
        "{\"attention_in_multiplier\": 0.5}",
        "{\"attention_out_multiplier\": 0.5}",
        "{\"key_multiplier\": 0.5}",
        "{\"embedding_multiplier\": 0.5}",
        "{\"lm_head_multiplier\": 0.5}",
        "{\"mlp_multipliers\": [0.5, 0.6]}",
        "{\"mlp_multipliers\": [0, 0.6]}",
        "{\"mlp_multipliers\": [1, 0.6]}",
        "{\"mlp_multipliers\": [0.7, 0.5]}",
        "{\"ssm_multipliers\": [0.9, 0.7, 0.6, 0.8, 0.35]}",
        "{\"ssm_multipliers\": [0.5, 0.9, 0.6, 0.8, 0.35]}",
        "{\"ssm_multipliers\": [0.5, 0.7, 0.9, 0.8, 0.35]}",
        "{\"ssm_multipliers\": [0.5, 0.7, 0.6, 0.9, 0.35]}",
        "{\"ssm_multipliers\": [0.5, 0.7, 0.6, 0.8, 0.9]}",
        "{\"ssm_in_multiplier\": 1, \"ssm_multipliers\": [1, 1, 1, 1, 1]}",
        "{\"ssm_in_multiplier\": 2, \"ssm_multipliers\": [0.5, 1, 1, 1, 0.5]}",
        "{\"ssm_in_multiplier\": 2, \"ssm_multipliers\": [0.5, 0.5, 0.5, 0.5, 0.5]}",
        "{\"key_multiplier\": 1, \"attention_in_multiplier\": 1, \"attention_out_multiplier\": 1}",
        "{\"key_multiplier\": 0.25, \"attention_in_multiplier\": 2, "
        "\"attention_out_multiplier\": 0.5}",
    };
    enum { COUNT = sizeof changes / sizeof *changes };
    size_t size;
    char *bytes = read_whole(GOLDEN "falcon_h1/model.safetensors", &size);
    unsigned char seen[COUNT][FINGERPRINT_BYTES];
    for (int i = 0; i < COUNT; i++) {
        struct error err = ERROR_INIT;
        struct model *model;
        json_t *config = golden_config("falcon_h1"), *change = json_loads(changes[i], 0, NULL);
        cr_assert(change && json_object_update(config, change) == 0);
        char *text = json_dumps(config, 0);
        cr_assert(model_load(&model, text, strlen(text), bytes, size, &err) == 0, "%s",
                  err.message);
        cr_assert(model_fingerprint(model, seen[i], &err) == 0, "%s", err.message);
        for (int j = 0; j < i; j++)
            cr_expect(memcmp(seen[j], seen[i], FINGERPRINT_BYTES) != 0, "%s as %s", changes[i],
                      changes[j]);
        model_close(model);
        free(text);
        json_decref(change);
        json_decref(config);
    }
    free(bytes);
}
