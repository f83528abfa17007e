/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model_load.h"
#include "engine/ops/packing.h"

#include "tests/unit/checkpoint.h"

#include <dirent.h>
#include <unistd.h>

Test(model, every_golden_case_loads)
{
    DIR *goldens = opendir(GOLDEN);
    cr_assert(goldens);
    int loaded = 0;
    for (struct dirent *entry; (entry = readdir(goldens));) {
        char path[512];
        snprintf(path, sizeof path, GOLDEN "%s/config.json", entry->d_name);
        if (entry->d_name[0] == '.' || access(path, R_OK) != 0)
            continue;
        snprintf(path, sizeof path, GOLDEN "%s/", entry->d_name);
        struct model *model;
        struct error err = ERROR_INIT;
        cr_expect(model_open(&model, path, &err) == 0, "%s: %s", entry->d_name, err.message);
        if (model)
            cr_expect_str_eq(model->name, entry->d_name);
        model_close(model);
        loaded++;
    }
    closedir(goldens);
    cr_expect(loaded >= 32, "only %d cases", loaded);
}

static struct model *open_golden(const char *name)
{
    char path[512];
    struct model *model;
    struct error err = ERROR_INIT;
    snprintf(path, sizeof path, GOLDEN "%s", name);
    cr_assert(model_open(&model, path, &err) == 0, "%s", err.message);
    return model;
}

Test(model, description)
{
    struct model *model = open_golden("regla_tied_glu_wide");
    const struct mixer *mixer = layer_branch(&model->layers[1], 0)->mixer;
    cr_expect_str_eq(model->family, "regla");
    cr_expect(model->tied && model->lm_head.data == model->embeddings.data);
    cr_expect(mixer->head_dim == 6 && mixer->value_dim == 10 && mixer->features == 6);
    cr_expect(mixer->output_norm.kind == NORM_RMSNORM && mixer->output_norm_scope == 1);
    cr_expect_eq(mixer->output_norm.eps, 1e-10f);
    cr_expect_eq(mixer->output_norm.bias, NULL);
    const struct mlp *mlp = layer_branch(&model->layers[0], 1)->mlp;
    cr_expect(mlp->gate_proj.rows == 40 && mlp->act == ACT_SILU);
    cr_expect(model->eos.count == 1 && model->eos.ids[0] == 0);
    model_close(model);

    model = open_golden("gla_two_kv_heads");
    mixer = layer_branch(&model->layers[0], 0)->mixer;
    cr_expect(mixer->num_heads == 4 && mixer->num_kv_heads == 2 && mixer->head_dim == 12);
    cr_expect(mixer->gate == GATE_GLA && mixer->query_scale == QUERY_SCALE_SQRT_DIM);
    cr_expect(mixer->k_proj.rows == 24 && mixer->gk_proj_1.rows == 24 && mixer->gk_proj_1.bias);
    cr_expect(mixer->output_gate == OUTPUT_GATE_SWISH && mixer->out_gate_proj.rows == 48);
    model_close(model);

    model = open_golden("regla_small_eps_bf16");
    cr_expect(model->dtype == DTYPE_BF16 &&
              layer_branch(&model->layers[0], 0)->mixer->q_proj.dtype == DTYPE_BF16);
    cr_expect_eq(model->parameters, 96516);
    model_close(model);
}

Test(model, positions)
{
    struct model *model = open_golden("six_heads_alibi_mixed_stack");
    const float *slopes = layer_branch(&model->layers[0], 0)->mixer->position.slopes;
    /* 4 heads' 2^-2 .. 2^-8, then every other one of 8 heads' */
    static const float expected[] = {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f};
    for (int h = 0; h < 6; h++)
        cr_expect_eq(slopes[h], expected[h], "slope %d: %g", h, (double)slopes[h]);
    model_close(model);

    model = open_golden("lrpe2"); /* theta [6] in the file, for 4 heads; a householder vector */
    const struct position *position = &layer_branch(&model->layers[0], 0)->mixer->position;
    double square = 0;
    for (int i = 0; i < 12; i++)
        square += (double)position->householder[i] * (double)position->householder[i];
    cr_expect_float_eq(square, 1, 1e-6);
    cr_expect_eq(position->rotary_dims, 12);
    for (int h = 1; h < 4; h++)
        for (int i = 0; i < 6; i++)
            cr_expect_eq(position->theta[6 * h + i], position->theta[i]);
    model_close(model);

    model = open_golden("lrpe2_partial_default_theta");
    position = &layer_branch(&model->layers[0], 0)->mixer->position;
    cr_expect_eq(position->rotary_dims, 6);
    cr_expect_null(position->theta, "the default, in double precision later on");
    model_close(model);

    model = open_golden("lrpe1_per_head_odd_even");
    cr_expect_eq(layer_branch(&model->layers[0], 0)->mixer->features_positioned, 22);
    cr_expect_neq(layer_branch(&model->layers[0], 0)->mixer->position.theta[0],
                  layer_branch(&model->layers[0], 0)->mixer->position.theta[11],
                  "theta is per head");
    model_close(model);
}

/* Row r of head h of part p (q, k, v) is row (3h + p) d + r of query_key_value. */
Test(model, gpt_neox_splits_query_key_value)
{
    struct model *model = open_golden("gpt_neox");
    const struct mixer *mixer = layer_branch(&model->layers[1], 0)->mixer;
    struct parts parts = golden_parts("gpt_neox");
    const json_t *entry = parts_entry(&parts, "gpt_neox.layers.1.attention.query_key_value.weight");
    const float *fused =
        (const float *)(parts.data + json_integer_value(json_array_get(
                                         json_object_get(entry, "data_offsets"), 0)));
    entry = parts_entry(&parts, "gpt_neox.layers.1.attention.query_key_value.bias");
    const float *bias =
        (const float *)(parts.data + json_integer_value(json_array_get(
                                         json_object_get(entry, "data_offsets"), 0)));
    const struct matrix *matrices[] = {&mixer->q_proj, &mixer->k_proj, &mixer->v_proj};
    for (int p = 0; p < 3; p++)
        for (int h = 0; h < 4; h++)
            for (int r = 0; r < 16; r++) {
                int from = (3 * h + p) * 16 + r, to = h * 16 + r;
                float row[64];
                packing_numbers(matrices[p], model_matrix_row(matrices[p], to) * 64, 64, row);
                cr_expect_arr_eq(row, fused + from * 64, sizeof row);
                cr_expect_eq(matrices[p]->bias[to], bias[from]);
            }
    cr_expect_eq(mixer->position.rotary_dims, 4);
    cr_expect_eq(model->layers[0].blocks[0].num_branches, 2);
    parts_free(&parts);
    model_close(model);
}

enum edit {
    REMOVE, /* the tensor */
    RENAME, /* to `value` */
    SHAPE,  /* `value`: JSON; zeros where there was nothing */
    DTYPE,  /* `value` */
    ADD,    /* F32 of shape `value`, zeros */
    ZERO,   /* all bytes */
    FILL,   /* all bytes `value`, in hexadecimal */
    EQUAL,  /* all elements `value`; F32 */
    NOTHING
};

struct tensor_case {
    const char *golden, *tensor;
    enum edit edit;
    const char *value;
    const char *message; /* NULL: accepted */
};

static void edit_parts(struct parts *parts, const struct tensor_case *c)
{
    json_t *entry = NULL;
    if (c->edit != ADD && c->edit != NOTHING)
        entry = json_incref(parts_entry(parts, c->tensor));
    switch (c->edit) {
    case REMOVE:
        json_object_del(parts->header, c->tensor);
        break;
    case RENAME:
        json_object_del(parts->header, c->tensor);
        json_object_set(parts->header, c->value, entry);
        break;
    case SHAPE:
        json_object_set_new(entry, "shape", json_loads(c->value, 0, NULL));
        break;
    case DTYPE:
        json_object_set_new(entry, "dtype", json_string(c->value));
        break;
    case ADD:
        json_object_set_new(
            parts->header, c->tensor,
            json_pack("{ssso}", "dtype", "F32", "shape", json_loads(c->value, 0, NULL)));
        break;
    case ZERO:
        json_object_del(entry, "data_offsets");
        break;
    case FILL: {
        const json_t *offsets = json_object_get(entry, "data_offsets");
        memset((char *)parts->data + json_integer_value(json_array_get(offsets, 0)),
               (int)strtol(c->value, NULL, 16), entry_bytes(entry));
        break;
    }
    case EQUAL: {
        const float number = strtof(c->value, NULL);
        char *first = (char *)parts->data +
                      json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
        cr_assert_str_eq(json_string_value(json_object_get(entry, "dtype")), "F32");
        for (size_t i = 0; i < entry_bytes(entry); i += sizeof number)
            memcpy(first + i, &number, sizeof number);
        break;
    }
    case NOTHING:
        break;
    }
    json_decref(entry);
}

static const struct tensor_case tensor_cases[] = {
    {"regla", "lm_head.weight", REMOVE, NULL,
     "model.safetensors: tensor \"lm_head.weight\": expected shape [275, 48], got nothing: the "
     "tensor is missing"},
    {"regla", "model.norm.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.norm.weight\": expected shape [48], got nothing: the "
     "tensor is missing"},
    {"regla", "model.norm.bias", REMOVE, NULL, NULL},
    {"regla", "model.layers.1.attn.g_proj.bias", REMOVE, NULL, NULL},
    {"regla", "model.layers.1.attn.q_proj.bias", ADD, "[48]", NULL},
    {"regla", "model.layers.1.attn.q_proj.bias", ADD, "[47]",
     "model.safetensors: tensor \"model.layers.1.attn.q_proj.bias\": expected shape [48], got "
     "[47]"},
    {"regla", "model.layers.2.attn.q_proj.weight", ADD, "[48, 48]",
     "model.safetensors: tensor \"model.layers.2.attn.q_proj.weight\": the configuration has no "
     "use "
     "for it"},
    {"regla", "model.layers.1.mlp.gate_proj.weight", ADD, "[96, 48]", NULL},
    {"regla", "model.layers.1.attn.r_proj.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.attn.r_proj.weight\": expected shape [48, 48], "
     "got nothing: the tensor is missing"},
    {"regla", "model.layers.0.attn.q_proj.weight", SHAPE, "[46, 48]",
     "model.safetensors: tensor \"model.layers.0.attn.q_proj.weight\": expected a height that 4 "
     "heads divide, got 46"},
    {"regla", "model.layers.0.attn.q_proj.weight", SHAPE, "[0, 48]",
     "model.safetensors: tensor \"model.layers.0.attn.q_proj.weight\": expected shape [any, 48], "
     "got "
     "[0, 48]"},
    {"regla", "model.layers.0.attn.q_proj.weight", SHAPE, "[48, 48, 1]",
     "model.safetensors: tensor \"model.layers.0.attn.q_proj.weight\": expected shape [any, 48], "
     "got "
     "[48, 48, 1]"},
    {"regla", "model.layers.0.attn.k_proj.weight", SHAPE, "[24, 48]",
     "model.safetensors: tensor \"model.layers.0.attn.k_proj.weight\": expected shape [48, 48], "
     "got "
     "[24, 48]"},
    {"regla", "model.embeddings.weight", SHAPE, "[274, 48]",
     "model.safetensors: tensor \"model.embeddings.weight\": expected shape [275, 48], got [274, "
     "48]"},
    {"regla", "model.embeddings.weight", DTYPE, "I32",
     "model.safetensors: tensor \"model.embeddings.weight\": expected dtype F32, F16, BF16, F64 or "
     "F8_E4M3, got I32"},
    {"regla", "model.norm.weight", DTYPE, "I32",
     "model.safetensors: tensor \"model.norm.weight\": expected dtype F32, F16, BF16, F64 or "
     "F8_E4M3, got I32"},
    {"regla", "model.norm.weight", FILL, "ff",
     "model.safetensors: tensor \"model.norm.weight\": expected finite numbers, got -nan at "
     "element "
     "0"},
    {"regla_tied_glu_wide", "lm_head.weight", ADD, "[275, 32]", NULL},
    {"regla_tied_glu_wide", "lm_head.weight", ADD, "[274, 32]",
     "model.safetensors: tensor \"lm_head.weight\": expected shape [275, 32], got [274, 32]"},
    {"regla_tied_glu_wide", "model.layers.0.attn_norm.bias", ADD, "[32]",
     "model.safetensors: tensor \"model.layers.0.attn_norm.bias\": the configuration has no use "
     "for "
     "it"},
    {"lrpe3", "model.layers.0.attn.position.permutation", DTYPE, "F32",
     "model.safetensors: tensor \"model.layers.0.attn.position.permutation\": expected dtype I32 "
     "or "
     "I64, got F32"},
    {"lrpe3", "model.layers.0.attn.position.permutation", ZERO, NULL,
     "model.safetensors: tensor \"model.layers.0.attn.position.permutation\": expected a "
     "permutation of 0..11, got 0 again at element 1"},
    {"lrpe3", "model.layers.0.attn.position.permutation", FILL, "ff",
     "model.safetensors: tensor \"model.layers.0.attn.position.permutation\": expected a "
     "permutation of 0..11, got -1 at element 0"},
    {"lrpe1", "model.layers.0.attn.position.householder", ZERO, NULL,
     "model.safetensors: tensor \"model.layers.0.attn.position.householder\": expected a "
     "direction, got all zeros"},
    {"lrpe1", "model.layers.0.attn.position.theta", ADD, "[12]", NULL},
    {"lrpe1", "model.layers.0.attn.position.theta", ADD, "[4, 12]", NULL},
    {"lrpe1", "model.layers.0.attn.position.theta", ADD, "[2, 12]",
     "model.safetensors: tensor \"model.layers.0.attn.position.theta\": expected shape [4, 12], "
     "got "
     "[2, 12]"},
    {"lrpe1", "model.layers.0.attn.position.permutation", ADD, "[12]",
     "model.safetensors: tensor \"model.layers.0.attn.position.permutation\": the configuration "
     "has "
     "no use for it"},
    {"kerple_log", "model.layers.0.attn.position.r2", FILL, "bf",
     "model.safetensors: tensor \"model.layers.0.attn.position.r2\": expected numbers >= 0, got "
     "-1.49804 at element "
     "0"},
    {"kerple_log", "model.layers.0.attn.position.r2", EQUAL, "3", NULL}, /* no exponent */
    {"kerple_power", "model.layers.0.attn.position.r1", EQUAL, "3", NULL},
    {"kerple_power", "model.layers.0.attn.position.r2", EQUAL, "2", NULL},
    {"kerple_power", "model.layers.0.attn.position.r2", EQUAL, "3",
     "model.safetensors: tensor \"model.layers.0.attn.position.r2\": expected numbers in [0, 2], "
     "got 3 at element 0"},
    {"kerple_3para_log", "model.layers.0.attn.position.r2", EQUAL, "3", NULL},
    {"kerple_3para_log", "model.layers.0.attn.position.r3", EQUAL, "2.0001",
     "model.safetensors: tensor \"model.layers.0.attn.position.r3\": expected numbers in [0, 2], "
     "got 2.0001 at element 0"},
    {"kerple_bias_wht", "model.layers.0.attn.position.r3", EQUAL, "3", NULL},
    {"kerple_bias_wht", "model.layers.0.attn.position.r2", EQUAL, "3",
     "model.safetensors: tensor \"model.layers.0.attn.position.r2\": expected numbers in [0, 2], "
     "got 3 at element 0"},
    {"kerple_bias_wht", "model.layers.0.attn.position.r4", EQUAL, "3",
     "model.safetensors: tensor \"model.layers.0.attn.position.r4\": expected numbers in [0, 2], "
     "got 3 at element 0"},
    {"kerple_log", "model.layers.0.attn.position.r2", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.attn.position.r2\": expected shape [4], got "
     "nothing: the tensor is missing"},
    {"kerple_log", "model.layers.0.attn.position.r3", ADD, "[4]",
     "model.safetensors: tensor \"model.layers.0.attn.position.r3\": the configuration has no use "
     "for it"},
    {"t5", "model.layers.0.attn.position.bucket_bias", SHAPE, "[32, 3]",
     "model.safetensors: tensor \"model.layers.0.attn.position.bucket_bias\": expected shape [32, "
     "4], got [32, 3]"},
    {"spe", "model.layers.0.attn.position.noise", SHAPE, "[2, 6, 3, 22]",
     "model.safetensors: tensor \"model.layers.0.attn.position.noise\": expected shape [2, 6, 2, "
     "any], got [2, 6, 3, 22]"},
    {"spe", "model.layers.0.attn.position.gate_noise", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.attn.position.gate_noise\": expected shape [2, 6, "
     "33], got nothing: the tensor is missing"},
    {"spe", "model.layers.1.attn.position.gate", ADD, "[2, 6]",
     "model.safetensors: tensor \"model.layers.1.attn.position.gate\": the configuration has no "
     "use for it"},
    {"relu_gated_rmsnorm", "model.layers.0.attn.out_norm.gate", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.attn.out_norm.gate\": expected shape [20], got "
     "nothing: the tensor is missing"},
    {"experts", "model.layers.1.mlp.router.weight", SHAPE, "[2, 48]",
     "model.safetensors: tensor \"model.layers.1.mlp.router.weight\": expected shape [4, 24], got "
     "[2, 48]"},
    {"experts", "model.layers.1.mlp.router.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.mlp.router.weight\": expected shape [4, 24], got "
     "nothing: the tensor is missing"},
    {"experts", "model.layers.1.mlp.experts.3.down_proj.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.mlp.experts.3.down_proj.weight\": expected shape "
     "[24, 21], got nothing: the tensor is missing"},
    {"experts", "model.layers.1.mlp.experts.2.gate_proj.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.mlp.experts.2.gate_proj.weight\": expected shape "
     "[21, 24], got nothing: the tensor is missing"},
    {"experts", "model.layers.0.mlp.experts.1.gate_proj.weight", ADD, "[17, 24]",
     "model.safetensors: tensor \"model.layers.0.mlp.experts.1.gate_proj.weight\": the "
     "configuration has no use for it"},
    {"experts", "model.layers.0.mlp.experts.2.up_proj.weight", ADD, "[17, 24]",
     "model.safetensors: tensor \"model.layers.0.mlp.experts.2.up_proj.weight\": the configuration "
     "has no use for it"},
    {"experts", "model.layers.0.mlp.experts.1.up_proj.bias", REMOVE, NULL, NULL},
    {"convolutions", "model.layers.0.attn.conv.weight", SHAPE, "[4, 68]",
     "model.safetensors: tensor \"model.layers.0.attn.conv.weight\": expected shape [68, 4], got "
     "[4, "
     "68]"},
    {"lfm2", "model.layers.0.conv.conv.weight", SHAPE, "[3, 1, 48]",
     "model.safetensors: tensor \"model.layers.0.conv.conv.weight\": expected shape [48, 1, 3], "
     "got "
     "[3, 1, 48]"},
    {"lfm2", "model.layers.0.conv.in_proj.weight", SHAPE, "[48, 144]",
     "model.safetensors: tensor \"model.layers.0.conv.in_proj.weight\": expected shape [144, 48], "
     "got [48, 144]"},
    {"lfm3", "model.layers.2.self_attn.gate_proj.weight", SHAPE, "[40, 4]",
     "model.safetensors: tensor \"model.layers.2.self_attn.gate_proj.weight\": expected shape [4, "
     "40], got [40, 4]"},
    {"gated_convolutions", "model.layers.0.attn.in_proj.weight", SHAPE, "[24, 78]",
     "model.safetensors: tensor \"model.layers.0.attn.in_proj.weight\": expected shape [any, 24], "
     "got [24, 78]"},
    {"gated_convolutions", "model.layers.1.attn.out_gate_proj.weight", SHAPE, "[24, 4]",
     "model.safetensors: tensor \"model.layers.1.attn.out_gate_proj.weight\": expected shape [4, "
     "24], got [24, 4]"},
    {"convolutions", "model.layers.0.attn.conv.weight", SHAPE, "[68, 1, 4]", NULL},
    {"convolutions", "model.layers.0.attn.conv.weight", SHAPE, "[34, 2, 4]",
     "model.safetensors: tensor \"model.layers.0.attn.conv.weight\": expected shape [68, 1, 4], "
     "got "
     "[34, 2, 4]"},
    {"convolutions", "model.layers.0.attn.conv.bias", SHAPE, "[17, 4]",
     "model.safetensors: tensor \"model.layers.0.attn.conv.bias\": expected shape [68], got [17, "
     "4]"},
    {"performer", "model.layers.0.attn.features.weight", SHAPE, "[4, 24, 11]",
     "model.safetensors: tensor \"model.layers.0.attn.features.weight\": expected shape [4, any, "
     "12], got [4, 24, 11]"},
    {"hedgehog", "model.layers.0.attn.feature_k.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.attn.feature_k.weight\": expected shape [4, 12, "
     "12], got nothing: the tensor is missing"},
    {"gla_gate", "model.layers.0.attn.gk_proj.0.bias", ADD, "[4]",
     "model.safetensors: tensor \"model.layers.0.attn.gk_proj.0.bias\": the configuration has no "
     "use for it"},
    {"sliding_parallel_learned", "model.position_embeddings.weight", SHAPE, "[127, 48]",
     "model.safetensors: tensor \"model.position_embeddings.weight\": expected shape [128, 48], "
     "got "
     "[127, 48]"},
    {"gpt_neox", "gpt_neox.layers.0.attention.masked_bias", ADD, "[]", NULL},
    {"gpt_neox", "gpt_neox.layers.0.attention.bias", ADD, "[1, 1, 8, 8]", NULL},
    {"gpt_neox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq", ADD, "[2]", NULL},
    {"gpt_neox", "embed_out.weight", RENAME, "lm_head.weight", NULL},
    {"gpt_neox", "gpt_neox.layers.9.attention.dense.bias", ADD, "[64]",
     "model.safetensors: tensor \"gpt_neox.layers.9.attention.dense.bias\": the configuration has "
     "no use for it"},
    {"dense_llama", "model.layers.0.self_attn.rotary_emb.inv_freq", ADD, "[8]", NULL},
    {"dense_llama", "model.layers.0.self_attn.q_proj.weight", SHAPE, "[36, 48]",
     "model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\": expected shape [48, "
     "36], got [36, 48]"},
    {"dense_llama", "model.layers.1.self_attn.k_proj.weight", SHAPE, "[48, 36]",
     "model.safetensors: tensor \"model.layers.1.self_attn.k_proj.weight\": expected shape [16, "
     "36], got [48, 36]"},
    {"dense_llama", "model.layers.1.self_attn.v_proj.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.self_attn.v_proj.weight\": expected shape [16, "
     "36], got nothing: the tensor is missing"},
    {"dense_llama", "model.layers.0.self_attn.o_proj.bias", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.self_attn.o_proj.bias\": expected shape [36], got "
     "nothing: the tensor is missing"},
    {"dense_llama", "model.layers.0.mlp.up_proj.bias", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.mlp.up_proj.bias\": expected shape [32], got "
     "nothing: the tensor is missing"},
    {"dense_llama", "model.layers.0.mlp.gate_proj.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.mlp.gate_proj.weight\": expected shape [32, 36], "
     "got nothing: the tensor is missing"},
    {"dense_llama", "model.layers.0.self_attn.q_norm.weight", ADD, "[16]",
     "model.safetensors: tensor \"model.layers.0.self_attn.q_norm.weight\": the configuration has "
     "no use for it"},
    {"dense_llama", "lm_head.bias", ADD, "[277]",
     "model.safetensors: tensor \"lm_head.bias\": the configuration has no use for it"},
    {"dense_qwen2", "model.layers.0.self_attn.q_proj.bias", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.self_attn.q_proj.bias\": expected shape [40], got "
     "nothing: the tensor is missing"},
    {"dense_qwen2", "model.layers.0.self_attn.o_proj.bias", ADD, "[40]",
     "model.safetensors: tensor \"model.layers.0.self_attn.o_proj.bias\": the configuration has no "
     "use for it"},
    {"dense_qwen3", "model.layers.1.self_attn.k_norm.weight", SHAPE, "[48]",
     "model.safetensors: tensor \"model.layers.1.self_attn.k_norm.weight\": expected shape [16], "
     "got [48]"},
    {"dense_qwen3", "model.layers.0.self_attn.q_norm.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.self_attn.q_norm.weight\": expected shape [16], "
     "got nothing: the tensor is missing"},
    {"dense_granite", "model.layers.0.mlp.down_proj.bias", ADD, "[48]",
     "model.safetensors: tensor \"model.layers.0.mlp.down_proj.bias\": the configuration has no "
     "use for it"},
    {"dense_mistral", "model.layers.0.self_attn.k_proj.bias", ADD, "[32]",
     "model.safetensors: tensor \"model.layers.0.self_attn.k_proj.bias\": the configuration has no "
     "use for it"},
    {"dense_phi3", "model.layers.1.self_attn.qkv_proj.weight", SHAPE, "[64, 128]",
     "model.safetensors: tensor \"model.layers.1.self_attn.qkv_proj.weight\": expected shape [128, "
     "64], got [64, 128]"},
    {"dense_phi3", "model.layers.0.mlp.gate_up_proj.weight", SHAPE, "[64, 88]",
     "model.safetensors: tensor \"model.layers.0.mlp.gate_up_proj.weight\": expected shape [88, "
     "64], got [64, 88]"},
    {"dense_phi3", "model.layers.0.self_attn.qkv_proj.bias", ADD, "[128]",
     "model.safetensors: tensor \"model.layers.0.self_attn.qkv_proj.bias\": the configuration has "
     "no use for it"},
    {"gemma4_text", "model.layers.3.layer_scalar", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.3.layer_scalar\": expected shape [1], got nothing: "
     "the tensor is missing"},
    {"gemma4_text", "model.layers.0.layer_scalar", SHAPE, "[1, 1]",
     "model.safetensors: tensor \"model.layers.0.layer_scalar\": expected shape [1], got [1, 1]"},
    {"gemma4_text", "model.embed_tokens_per_layer.weight", SHAPE, "[273, 30]",
     "model.safetensors: tensor \"model.embed_tokens_per_layer.weight\": expected shape [274, 30], "
     "got [273, 30]"},
    {"gemma4_text", "model.per_layer_model_projection.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.per_layer_model_projection.weight\": expected shape [30, "
     "32], got nothing: the tensor is missing"},
    {"gemma4_text", "model.layers.1.per_layer_input_gate.weight", SHAPE, "[32, 6]",
     "model.safetensors: tensor \"model.layers.1.per_layer_input_gate.weight\": expected shape [6, "
     "32], got [32, 6]"},
    {"gemma4_text", "model.layers.2.self_attn.k_proj.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.2.self_attn.k_proj.weight\": expected shape [16, "
     "32], got nothing: the tensor is missing"},
    {"gemma4_text", "model.layers.3.mlp.up_proj.weight", SHAPE, "[20, 64]",
     "model.safetensors: tensor \"model.layers.3.mlp.up_proj.weight\": expected shape [40, 32], "
     "got [20, 64]"},
    {"experts_gemma4_text", "model.layers.1.self_attn.v_proj.weight", ADD, "[16, 32]",
     "model.safetensors: tensor \"model.layers.1.self_attn.v_proj.weight\": the configuration has "
     "no use for it"},
    {"experts_gemma4_text", "model.layers.0.router.per_expert_scale", SHAPE, "[6]",
     "model.safetensors: tensor \"model.layers.0.router.per_expert_scale\": expected shape [5], "
     "got [6]"},
    {"experts_gemma4_text", "model.layers.0.router.scale", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.router.scale\": expected shape [32], got nothing: "
     "the tensor is missing"},
    {"experts_gemma4_text", "model.layers.1.post_feedforward_layernorm_1.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.post_feedforward_layernorm_1.weight\": expected "
     "shape [32], got nothing: the tensor is missing"},
    {"delta_qwen3_5_text", "model.layers.0.linear_attn.A_log", SHAPE, "[2, 2]",
     "model.safetensors: tensor \"model.layers.0.linear_attn.A_log\": expected shape [4], got [2, "
     "2]"},
    {"delta_qwen3_5_text", "model.layers.0.linear_attn.A_log", EQUAL, "89",
     "model.safetensors: tensor \"model.layers.0.linear_attn.A_log\": expected numbers under "
     "88.7, got 89 at element 0"},
    {"delta_qwen3_5_text", "model.layers.0.linear_attn.dt_bias", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.linear_attn.dt_bias\": expected shape [4], got "
     "nothing: the tensor is missing"},
    {"delta_qwen3_5_text", "model.layers.0.linear_attn.in_proj_qkv.weight", SHAPE, "[40, 80]",
     "model.safetensors: tensor \"model.layers.0.linear_attn.in_proj_qkv.weight\": expected shape "
     "[80, 40], got [40, 80]"},
    {"delta_qwen3_5_text", "model.layers.2.linear_attn.conv1d.weight", SHAPE, "[40, 2, 4]",
     "model.safetensors: tensor \"model.layers.2.linear_attn.conv1d.weight\": expected shape [80, "
     "1, 4], got [40, 2, 4]"},
    {"delta_qwen3_5_text", "model.layers.2.linear_attn.conv1d.bias", ADD, "[80]",
     "model.safetensors: tensor \"model.layers.2.linear_attn.conv1d.bias\": the configuration has "
     "no use for it"},
    {"delta_qwen3_5_text", "model.layers.1.self_attn.q_proj.weight", SHAPE, "[48, 80]",
     "model.safetensors: tensor \"model.layers.1.self_attn.q_proj.weight\": expected shape [96, "
     "40], got [48, 80]"},
    {"delta_qwen3_5_text", "mtp.layers.0.mlp.up_proj.weight", ADD, "[4, 40]", NULL},
    {"delta_qwen3_5_text", "lm_head.weight", REMOVE, NULL, NULL},
    {"delta_qwen3_5", "model.visual.merger.norm.weight", SHAPE, "[4, 2]", NULL},
    {"delta_qwen3_5", "model.language_model.layers.0.linear_attn.norm.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.language_model.layers.0.linear_attn.norm.weight\": "
     "expected "
     "shape [8], got nothing: the tensor is missing"},
    {"delta_olmo_hybrid", "model.layers.0.linear_attn.k_conv1d.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.linear_attn.k_conv1d.weight\": expected shape "
     "[16, 1, 4], got nothing: the tensor is missing"},
    {"delta_olmo_hybrid", "model.layers.0.linear_attn.v_conv1d.weight", SHAPE, "[23, 1, 4]",
     "model.safetensors: tensor \"model.layers.0.linear_attn.v_conv1d.weight\": expected 72 "
     "channels of the convolutions of q, k and v, got 71"},
    {"delta_fla_plain", "model.layers.0.attn.a_proj.weight", ADD, "[2, 32]",
     "model.safetensors: tensor \"model.layers.0.attn.a_proj.weight\": the configuration has no "
     "use "
     "for it"},
    {"delta_fla_ungated", "model.layers.0.attn.g_proj.weight", ADD, "[32, 32]",
     "model.safetensors: tensor \"model.layers.0.attn.g_proj.weight\": the configuration has no "
     "use "
     "for it"},
    {"hgrn2", "model.lower_bounds", SHAPE, "[2, 32]",
     "model.safetensors: tensor \"model.lower_bounds\": expected shape [3, 32], got [2, 32]"},
    {"hgrn2_conv", "model.lower_bounds", ADD, "[2, 32]",
     "model.safetensors: tensor \"model.lower_bounds\": the configuration has no use for it"},
    {"hgrn2", "model.layers.1.attn.f_proj.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.attn.f_proj.weight\": expected shape [32, 32], "
     "got nothing: the tensor is missing"},
    {"kda", "model.layers.0.attn.dt_bias", SHAPE, "[12, 2]",
     "model.safetensors: tensor \"model.layers.0.attn.dt_bias\": expected shape [24], got [12, 2]"},
    {"kda", "model.layers.1.attn.g_proj.1.bias", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.attn.g_proj.1.bias\": expected shape [36], got "
     "nothing: the tensor is missing"},
    {"kda", "model.layers.1.attn.v_conv1d.weight", SHAPE, "[35, 1, 4]",
     "model.safetensors: tensor \"model.layers.1.attn.v_conv1d.weight\": expected shape [36, 1, "
     "4], got [35, 1, 4]"},
    {"retnet", "model.layers.0.attn.g_norm.weight", ADD, "[16]",
     "model.safetensors: tensor \"model.layers.0.attn.g_norm.weight\": the configuration has no "
     "use for it"},
    {"gla_fla_conv", "model.layers.0.attn.k_conv1d.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.attn.k_conv1d.weight\": expected shape [8, 1, "
     "3], got nothing: the tensor is missing"},
    {"rwkv7", "model.layers.1.attn.v_lora.lora.0.weight", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.1.attn.v_lora.lora.0.weight\": expected shape [4, "
     "32], got nothing: the tensor is missing"},
    {"rwkv7", "model.layers.0.attn.w_lora.lora.2.weight", SHAPE, "[8, 32]",
     "model.safetensors: tensor \"model.layers.0.attn.w_lora.lora.2.weight\": expected shape [32, "
     "8], got [8, 32]"},
    {"rwkv7", "model.layers.0.attn.a_lora.lora.2.bias", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.attn.a_lora.lora.2.bias\": expected shape [32], "
     "got nothing: the tensor is missing"},
    {"rwkv7", "model.layers.2.attn.r_k", SHAPE, "[8, 4]",
     "model.safetensors: tensor \"model.layers.2.attn.r_k\": expected shape [4, 8], got [8, 4]"},
    {"rwkv7", "model.layers.2.attn.x_g", SHAPE, "[1, 31]",
     "model.safetensors: tensor \"model.layers.2.attn.x_g\": expected shape [1, 1, 32], got [1, "
     "31]"},
    {"rwkv7", "model.layers.0.ffn.x_k", REMOVE, NULL,
     "model.safetensors: tensor \"model.layers.0.ffn.x_k\": expected shape [32], got nothing: the "
     "tensor is missing"},
    {"rwkv7", "model.layers.1.pre_norm.weight", ADD, "[32]",
     "model.safetensors: tensor \"model.layers.1.pre_norm.weight\": the configuration has no use "
     "for it"},
    {"rwkv7", "model.layers.0.attn.v_lora.lora.0.weight", ADD, "[4, 32]", NULL},
    {"mamba2", "backbone.layers.0.mixer.in_proj.weight", SHAPE, "[36, 214]",
     "model.safetensors: tensor \"backbone.layers.0.mixer.in_proj.weight\": expected shape [214, "
     "36], got [36, 214]"},
    {"mamba2", "backbone.layers.1.mixer.A_log", REMOVE, NULL,
     "model.safetensors: tensor \"backbone.layers.1.mixer.A_log\": expected shape [6], got "
     "nothing: "
     "the tensor is missing"},
    {"mamba2", "backbone.layers.1.mixer.dt_bias", SHAPE, "[6, 1]",
     "model.safetensors: tensor \"backbone.layers.1.mixer.dt_bias\": expected shape [6], got [6, "
     "1]"},
    {"mamba2", "backbone.layers.0.mixer.conv1d.bias", REMOVE, NULL,
     "model.safetensors: tensor \"backbone.layers.0.mixer.conv1d.bias\": expected shape [136], got "
     "nothing: the tensor is missing"},
    {"mamba2", "backbone.layers.0.mixer.in_proj.bias", ADD, "[214]",
     "model.safetensors: tensor \"backbone.layers.0.mixer.in_proj.bias\": the configuration has no "
     "use for it"},
    {"falcon_h1", "model.layers.0.mamba.norm.weight", ADD, "[40]",
     "model.safetensors: tensor \"model.layers.0.mamba.norm.weight\": the configuration has no use "
     "for it"},
    {"granitemoehybrid", "model.layers.1.shared_mlp.input_linear.weight", SHAPE, "[36, 60]",
     "model.safetensors: tensor \"model.layers.1.shared_mlp.input_linear.weight\": expected shape "
     "[60, 36], got [36, 60]"},
    {"granitemoehybrid", "model.layers.1.mamba.D", ADD, "[6]",
     "model.safetensors: tensor \"model.layers.1.mamba.D\": the configuration has no use for it"},
    {"nemotron_h", "backbone.layers.1.mixer.gate_proj.weight", ADD, "[48, 40]",
     "model.safetensors: tensor \"backbone.layers.1.mixer.gate_proj.weight\": the configuration "
     "has "
     "no use for it"},
    {"gla", "model.layers.0.attn.g_norm_swish_gate.weight", RENAME,
     "model.layers.0.attn.g_norm.weight",
     "model.safetensors: tensor \"model.layers.0.attn.g_norm_swish_gate.weight\": expected shape "
     "[24], got nothing: the tensor is missing"},
    {"gpt_neox", "embed_out.bias", ADD, "[275]",
     "model.safetensors: tensor \"embed_out.bias\": the configuration has no use for it"},
    {"gla", "model.layers.0.attn.q_conv1d.weight", ADD, "[24, 1, 4]",
     "model.safetensors: tensor \"model.layers.0.attn.q_conv1d.weight\": the configuration has no "
     "use for it"},
};

/* Loads the model that they are, and closes it; takes both. */
static int try_load(struct parts *parts, json_t *config, struct error *err)
{
    size_t size;
    char *bytes = parts_write(parts, 0, &size);
    char *text = json_dumps(config, 0);
    struct model *model;
    int result = model_load(&model, text, strlen(text), bytes, size, err);
    model_close(model);
    free(text);
    json_decref(config);
    free(bytes);
    parts_free(parts);
    return result;
}

Test(model, tensor_changes)
{
    for (size_t i = 0; i < sizeof tensor_cases / sizeof *tensor_cases; i++) {
        const struct tensor_case *c = &tensor_cases[i];
        struct parts parts = golden_parts(c->golden);
        edit_parts(&parts, c);
        struct error err = ERROR_INIT;
        int result = try_load(&parts, golden_config(c->golden), &err);
        cr_expect_eq(result, c->message ? -1 : 0, "%s %s (edit %d): %s", c->golden, c->tensor,
                     (int)c->edit, err.message);
        if (c->message)
            cr_expect_str_eq(err.message, c->message, "%s %s:\n got %s\nwant %s", c->golden,
                             c->tensor, err.message, c->message);
    }
}

Test(model, values_of_a_long_short_window)
{
    static const struct tensor_case edits[] = {
        {.tensor = "model.layers.0.attn.v_proj.weight", .edit = SHAPE, .value = "[16, 18]"},
        {.tensor = "model.layers.0.attn.v_proj.bias", .edit = SHAPE, .value = "[16]"},
    };
    struct parts parts = golden_parts("long_short_rank3_alibi");
    struct error err = ERROR_INIT;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        edit_parts(&parts, &edits[i]);
    cr_expect_eq(try_load(&parts, golden_config("long_short_rank3_alibi"), &err), -1);
    cr_expect_str_eq(
        err.message,
        "model.safetensors: tensor \"model.layers.0.attn.v_proj.weight\": expected the "
        "height of \"model.layers.0.attn.k_proj.weight\" (one norm serves keys and "
        "values of a window long_short), 14, got 16");
}

/* The values of added parts are the pair's, and so is a shared projection for q and k. */
Test(model, values_of_a_pair_with_a_long_short_part)
{
    static const char *const orders[] = {"[\"quad\", \"linear\"]", "[\"linear\", \"quad\"]"};
    for (size_t i = 0; i < 2; i++) {
        struct parts parts = golden_parts("flash");
        json_t *config = golden_config("flash");
        json_patch(config, "mixers/quad",
                   "{\"kind\": \"softmax\", \"window\": \"long_short\", \"window_size\": 20, "
                   "\"segment_length\": 4, \"segment_rank\": 1, \"num_heads\": 1, "
                   "\"qk_projection\": \"shared\", \"value_activation\": \"silu\"}");
        json_patch(config, "mixers/flash/parts", orders[i]);
        struct error err = ERROR_INIT;
        cr_expect_eq(try_load(&parts, config, &err), -1);
        cr_expect_str_eq(
            err.message,
            "model.safetensors: tensor \"model.layers.0.attn.v_proj.weight\": expected "
            "the height of \"model.layers.0.attn.qk_proj.weight\" (one norm serves "
            "keys and values of a window long_short), 8, got 36");
    }
}

/* Data may begin at any byte: the sanitizers see to it that no read is misaligned. */
Test(model, unaligned_data)
{
    static const char *const goldens[] = {"regla", "regla_small_eps_bf16", "gpt_neox", "lrpe3"};
    for (size_t g = 0; g < sizeof goldens / sizeof *goldens; g++)
        for (size_t pad = 0; pad < 4; pad++) {
            struct parts parts = golden_parts(goldens[g]);
            size_t size;
            char *bytes = parts_write(&parts, pad, &size);
            json_t *config = golden_config(goldens[g]);
            char *text = json_dumps(config, 0);
            struct model *model, *reference = open_golden(goldens[g]);
            struct error err = ERROR_INIT;
            cr_assert(model_load(&model, text, strlen(text), bytes, size, &err) == 0, "%s",
                      err.message);
            const struct matrix *got = &layer_branch(&model->layers[1], 0)->mixer->v_proj;
            const struct matrix *want = &layer_branch(&reference->layers[1], 0)->mixer->v_proj;
            for (int64_t r = 0; r < got->rows; r++) {
                float row[2][256];
                cr_assert(got->cols <= 256);
                packing_numbers(got, model_matrix_row(got, r) * got->cols, got->cols, row[0]);
                packing_numbers(want, model_matrix_row(want, r) * got->cols, got->cols, row[1]);
                cr_expect_arr_eq(row[0], row[1], (size_t)got->cols * sizeof(float));
            }
            model_close(model);
            model_close(reference);
            free(text);
            json_decref(config);
            free(bytes);
            parts_free(&parts);
        }
}

Test(model, directories)
{
    struct model *model;
    struct error err = ERROR_INIT;
    cr_expect(model_open(&model, "/nonexistent/model", &err) == -1);
    cr_expect_str_eq(err.message, "/nonexistent/model: cannot open: No such file or directory");

    char directory[] = "/tmp/regla-model-XXXXXX", message[256];
    cr_assert(mkdtemp(directory));
    error_clear(&err);
    cr_expect(model_open(&model, directory, &err) == -1);
    snprintf(message, sizeof message, "%s/config.json: cannot open: No such file or directory",
             directory);
    cr_expect_str_eq(err.message, message);

    size_t size;
    char *text = read_whole(GOLDEN "regla/config.json", &size);
    write_whole(directory, "config.json", text, size);
    error_clear(&err);
    cr_expect(model_open(&model, directory, &err) == -1);
    snprintf(message, sizeof message,
             "%s: expected model.safetensors or model.safetensors.index.json, got neither",
             directory);
    cr_expect_str_eq(err.message, message);
    free(text);

    text = read_whole(GOLDEN "regla/model.safetensors", &size);
    write_whole(directory, "model.safetensors", text, size);
    write_whole(directory, "generation_config.json", "{\"eos_token_id\": [3, 4]}", 24);
    error_clear(&err);
    cr_assert(model_open(&model, directory, &err) == 0, "%s", err.message);
    cr_expect(model->eos.count == 2 && model->eos.ids[1] == 4);
    model_close(model);

    write_whole(directory, "model.safetensors", text, size / 2);
    error_clear(&err);
    cr_expect(model_open(&model, directory, &err) == -1);
    cr_expect(strstr(err.message, "are not inside the file's"), "%s", err.message);
    free(text);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", directory);
    cr_expect_eq(system(command), 0);
}
