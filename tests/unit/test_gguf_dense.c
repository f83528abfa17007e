/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files of the dense families, which llama.cpp's own converter wrote (make_gguf_dense.py):
 * they compute what their folders do, and what they say beside that is followed or refused. */
#include "lib/base/gguf.h"

#include "tests/unit/gguf_models.h"

#include <math.h>

#define NONE "\"full_attention\""
#define SLIDES "\"sliding_attention\""

/* A golden folder, of whose config.json some keys are replaced. */
static struct model *folder_with(const char *golden, const char *changes, char **bytes)
{
    char path[512];
    size_t size;
    struct model *model;
    struct error err = ERROR_INIT;
    json_t *config = golden_config(golden), *patch = json_loads(changes, 0, NULL);
    cr_assert(patch && json_object_update(config, patch) == 0, "%s", changes);
    char *text = json_dumps(config, 0);
    snprintf(path, sizeof path, GOLDEN "%s/model.safetensors", golden);
    *bytes = read_whole(path, &size);
    cr_assert(model_load(&model, text, strlen(text), *bytes, size, &err) == 0, "%s: %s", golden,
              err.message);
    json_decref(config);
    json_decref(patch);
    free(text); /* the model borrows `bytes` */
    return model;
}

/* What the converter leaves out of a file, the folder goes without. */
static const struct {
    const char *file, *golden, *changes;
} cases[] = {
    {GOLDEN "dense_qwen3/model.gguf", "dense_qwen3", "{}"},
    {GOLDEN "dense_granite/model.gguf", "dense_granite", "{}"},
    {GOLDEN "dense_olmo3/model.gguf", "dense_olmo3", "{}"},
    {GOLDEN "mamba2/model.gguf", "mamba2", "{}"},
    {GOLDEN "granitemoehybrid/model.gguf", "granitemoehybrid", "{}"},
    {GOLDEN "nemotron_h/model.gguf", "nemotron_h", "{}"},
    {GOLDEN "lfm2/model.gguf", "lfm2", "{}"},
    {GOLDEN "dense_phi3/model.gguf", "dense_phi3", "{}"},
    {GOLDEN "gemma4_text/model.gguf", "gemma4_text", "{}"},
    {GOLDEN "experts_gemma4_text/model.gguf", "experts_gemma4_text", "{}"},
    {GOLDEN "rwkv7/model.gguf", "rwkv7", "{}"},
    {DATA "dense_qwen2_tf4.gguf", "dense_qwen2_tf4", "{\"use_sliding_window\": false}"},
    {DATA "dense_smollm3.gguf", "dense_smollm3", "{\"no_rope_layers\": [1, 1, 1]}"},
    {DATA "dense_gemma2.gguf", "dense_gemma2", "{\"query_pre_attn_scalar\": 16}"},
    {DATA "dense_gemma3_text.gguf", "dense_gemma3_text",
     "{\"query_pre_attn_scalar\": 16, \"layer_types\": [" SLIDES ", " SLIDES "]}"},
};

Test(gguf_dense, a_file_computes_what_its_folder_does)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *file = open_model(cases[i].file);
        char *bytes;
        struct model *folder = folder_with(cases[i].golden, cases[i].changes, &bytes);
        cr_expect_eq(file->parameters, folder->parameters, "%s", cases[i].file);
        cr_expect(file->dtype == folder->dtype && file->tied == folder->tied, "%s", cases[i].file);
        cr_expect_null(warnings_at(&file->warnings, 0), "%s", cases[i].file);
        expect_same_logits(cases[i].file, file, folder, WEIGHTS_AUTO);
        free(bytes);
    }
}

static void expect_nearly_the_same(const char *file_path, const char *folder_path)
{
    size_t size, other_size;
    struct model *file = open_model(file_path), *folder = open_model(folder_path);
    cr_expect_eq(file->parameters, folder->parameters);
    float *one = logits_of(file, WEIGHTS_F32, &size);
    float *other = logits_of(folder, WEIGHTS_F32, &other_size);
    float most = 0;
    cr_assert_eq(size, other_size);
    for (size_t i = 0; i < size / sizeof *one; i++)
        most = fmaxf(most, fabsf(one[i] - other[i]));
    cr_expect(most > 0 && most < 1e-5f, "%g", (double)most);
    free(one);
    free(other);
}

/* Llama 3's frequencies are divided by factors that the file has rounded to f32. */
Test(gguf_dense, rope_freqs_are_nearly_the_folders)
{
    expect_nearly_the_same(GOLDEN "dense_llama/model.gguf", GOLDEN "dense_llama");
}

/* The converter's e^A_log has an error of its own. */
Test(gguf_dense, decays_are_nearly_the_folders)
{
    expect_nearly_the_same(GOLDEN "delta_qwen3_5_text/model.gguf", GOLDEN "delta_qwen3_5_text");
}

static void put(char **at, const void *bytes, size_t size)
{
    memcpy(*at, bytes, size);
    *at += size;
}

static void put_entry(char **at, const char *key, uint32_t type, const void *value, size_t size)
{
    const uint64_t length = strlen(key);
    put(at, &length, 8);
    put(at, key, length);
    put(at, &type, 4);
    put(at, value, size);
}

/* Another key in front of all, and one that fills up to the file's alignment. */
static char *add_key(char *bytes, size_t *size, const char *key, uint32_t type, const void *value,
                     size_t value_size)
{
    static const char filler[] = "general.filler", zeros[40];
    const uint64_t fixed = 8 + strlen(key) + 4 + value_size + 8 + strlen(filler) + 4 + 8;
    const uint64_t fill = (32 - fixed % 32) % 32;
    uint64_t count;
    char text[40], *out = malloc(*size + fixed + fill), *at = out;
    memcpy(&count, bytes + 16, 8);
    count += 2;
    memcpy(text, &fill, 8);
    memcpy(text + 8, zeros, fill);
    memset(text + 8, 'x', fill);
    put(&at, bytes, 16);
    put(&at, &count, 8);
    put_entry(&at, key, type, value, value_size);
    put_entry(&at, filler, GGUF_STRING, text, 8 + fill);
    put(&at, bytes + 24, *size - 24);
    *size = (size_t)(at - out);
    free(bytes);
    return out;
}

static char *add_text(char *bytes, size_t *size, const char *key, const char *text)
{
    char value[64], *at = value;
    const uint64_t length = strlen(text);
    put(&at, &length, 8);
    put(&at, text, length);
    return add_key(bytes, size, key, GGUF_STRING, value, (size_t)(at - value));
}

enum change { RENAME, BYTES, ADD_U32, ADD_F32, ADD_BOOL, ADD_TEXT };

/* The file with a key renamed, with other bytes for its value, or with one more key. */
static char *change(const char *path, enum change what, const char *key, const char *text,
                    double number, size_t *size)
{
    char *bytes = read_whole(path, size);
    const uint32_t integer = (uint32_t)number;
    const float real = (float)number;
    const char flag = (char)(number != 0);
    if (what == RENAME)
        replace_word(bytes, *size, key, text);
    else if (what == ADD_TEXT)
        return add_text(bytes, size, key, text);
    else if (what == ADD_BOOL)
        return add_key(bytes, size, key, GGUF_BOOL, &flag, 1);
    else if (what == ADD_F32)
        return add_key(bytes, size, key, GGUF_F32, &real, 4);
    else if (what == ADD_U32)
        return add_key(bytes, size, key, GGUF_U32, &integer, 4);
    else {
        char *at = memmem(bytes, *size, key, strlen(key));
        uint32_t type;
        cr_assert(at, "%s", key);
        memcpy(&type, at + strlen(key), 4);
        memcpy(at + strlen(key) + 4, type == GGUF_F32 ? (void *)&real : (void *)&integer, 4);
    }
    return bytes;
}

static const char llama[] = GOLDEN "dense_llama/model.gguf";
static const char granite[] = GOLDEN "dense_granite/model.gguf";
static const char olmo[] = GOLDEN "dense_olmo3/model.gguf";
static const char mamba[] = GOLDEN "mamba2/model.gguf";
static const char hybrid[] = GOLDEN "granitemoehybrid/model.gguf";
static const char falcon[] = GOLDEN "falcon_h1/model.gguf";
static const char nemotron[] = GOLDEN "nemotron_h/model.gguf";
static const char qwen35[] = GOLDEN "delta_qwen3_5_text/model.gguf";
static const char phi3[] = GOLDEN "dense_phi3/model.gguf";
static const char gemma4[] = GOLDEN "gemma4_text/model.gguf";
static const char gemma4_experts[] = GOLDEN "experts_gemma4_text/model.gguf";
static const char gemma2[] = DATA "dense_gemma2.gguf";
static const char gemma3[] = DATA "dense_gemma3_text.gguf";

struct damage {
    const char *file;
    enum change what;
    const char *key, *text;
    double number;
    const char *message; /* NULL: it opens */
};

static void expect_damages(const struct damage *damages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t size;
        char *bytes = change(damages[i].file, damages[i].what, damages[i].key, damages[i].text,
                             damages[i].number, &size);
        expect_opened(damages[i].key, bytes, size, damages[i].message);
        free(bytes);
    }
}

Test(gguf_dense, what_is_not_followed_is_refused)
{
    static const struct damage damages[] = {
        {llama, RENAME, "llama.rope.freq_base", "llama.rope.freq_bass", 0,
         "x.gguf: llama.rope.freq_bass: the family does not know this key"},
        {llama, RENAME, "llama.feed_forward_length", "ll4ma.feed_forward_length", 0,
         "x.gguf: llama.feed_forward_length: expected a value, got nothing"},
        {llama, RENAME, "rope_freqs.weight", "rope_frexs.weight", 0,
         "x.gguf: tensor \"rope_frexs.weight\": the family llama has no use for it"},
        {llama, RENAME, "blk.1.attn_k.bias", "blk.1.attn_x.bias", 0,
         "x.gguf: tensor \"blk.1.attn_x.bias\": the family llama has no use for it"},
        {llama, RENAME, "blk.1.attn_k.bias", "blk.9.attn_k.bias", 0,
         "x.gguf: tensor \"model.layers.1.self_attn.k_proj.bias\": expected shape [16], got "
         "nothing: the tensor is missing"},
        {llama, BYTES, "llama.attention.key_length", NULL, 8,
         "x.gguf: llama.attention.value_length: expected an integer in [8, 8], got 16"},
        {llama, BYTES, "llama.attention.value_length", NULL, 0,
         "x.gguf: llama.attention.value_length: expected an integer in [16, 16], got 0"},
        {llama, BYTES, "llama.rope.dimension_count", NULL, 8,
         "x.gguf: llama.rope.dimension_count: expected an integer in [16, 16], got 8"},
        {llama, BYTES, "llama.attention.head_count_kv", NULL, 2,
         "x.gguf, as config.json: num_key_value_heads: expected a divisor of num_attention_heads "
         "(3), got 2"},
        {llama, BYTES, "llama.block_count", NULL, 3,
         "x.gguf: tensor \"model.layers.2.input_layernorm.weight\": expected shape [36], got "
         "nothing: the tensor is missing"},
        {llama, BYTES, "llama.attention.layer_norm_rms_epsilon", NULL, (double)NAN,
         "x.gguf: llama.attention.layer_norm_rms_epsilon: expected a finite number, a BOOL or "
         "text, or a list of one for each layer, all the same, got F32"},
        {llama, ADD_U32, "llama.attention.sliding_window", NULL, 8,
         "x.gguf: llama.attention.sliding_window: expected 0 or >=context_length, got 8 (not "
         "supported)"},
        {llama, ADD_F32, "llama.rope.scaling.attn_factor", NULL, 2,
         "x.gguf: llama.rope.scaling.attn_factor: expected 1, got 2 (not supported)"},
        {llama, ADD_BOOL, "llama.attention.causal", NULL, 1, NULL},
        {llama, ADD_BOOL, "llama.attention.causal", NULL, 0,
         "x.gguf: llama.attention.causal: expected true, got false (not supported)"},
        {llama, ADD_U32, "llama.attention.causal", NULL, 1,
         "x.gguf: llama.attention.causal: expected a BOOL, got U32"},
        {llama, ADD_TEXT, "llama.rope.scaling.type", "none", 0, NULL},
        {llama, ADD_TEXT, "llama.rope.scaling.type", "longrope", 0,
         "x.gguf, as config.json: rope_scaling.rope_type: expected default, linear, llama3, yarn "
         "or proportional, got \"longrope\" (not supported)"},
        {llama, ADD_F32, "llama.rope.scaling.factor", NULL, 0, NULL},
        {llama, ADD_F32, "llama.rope.scaling.factor", NULL, -1,
         "x.gguf, as config.json: rope_scaling.factor: expected a number in [1e-06, 1e+09], got "
         "-1"},
        {llama, ADD_BOOL, "llama.rope.scaling.finetuned", NULL, 0, NULL},
        {granite, ADD_BOOL, "granite.rope.scaling.finetuned", NULL, 1, NULL},
        {granite, ADD_BOOL, "granite.rope.scaling.finetuned", NULL, 0,
         "x.gguf: granite.rope.scaling.finetuned: expected true, got false (not supported)"},
        {granite, RENAME, "granite.logit_scale", "Granite.logit_scale", 0,
         "x.gguf: granite.logit_scale: expected a value, got nothing"},
        {granite, BYTES, "granite.logit_scale", NULL, 0,
         "x.gguf, as config.json: logits_scaling: expected a number in [1e-06, 1e+06], got 0"},
        {olmo, ADD_F32, "olmo2.rope.scaling.yarn_ext_factor", NULL, 1, NULL},
        {olmo, ADD_F32, "olmo2.rope.scaling.yarn_ext_factor", NULL, 0.5,
         "x.gguf: olmo2.rope.scaling.yarn_ext_factor: expected 1, got 0.5 (not supported)"},
        {olmo, BYTES, "olmo2.block_count", NULL, 2,
         "x.gguf: olmo2.attention.sliding_window_pattern: expected 2 integers or BOOLs, as there "
         "are layers, got an array of BOOL of 3"},
        {qwen35, BYTES, "qwen35.ssm.inner_size", NULL, 50,
         "x.gguf: qwen35.ssm.inner_size: expected a multiple of ssm.time_step_rank (4), got 50"},
        {qwen35, BYTES, "qwen35.ssm.group_count", NULL, 3,
         "x.gguf, as config.json: expected a number of value heads that the number of key heads "
         "(3) "
         "divides, got 4"},
        {qwen35, RENAME, "qwen35.ssm.group_count", "qwen35.ssm.group_c0unt", 0,
         "x.gguf: qwen35.ssm.group_c0unt: the family does not know this key"},
        {qwen35, ADD_U32, "qwen35.nextn_predict_layers", NULL, 1, NULL},
        {qwen35, ADD_U32, "qwen35.nextn_predict_layers", NULL, 3,
         "x.gguf: qwen35.nextn_predict_layers: expected an integer in [0, 2], got 3"},
        {qwen35, BYTES, "qwen35.block_count", NULL, 4,
         "x.gguf: qwen35.attention.recurrent_layers: expected 4 integers or BOOLs, as there are "
         "layers, got an array of BOOL of 3"},
        {qwen35, BYTES, "qwen35.rope.dimension_count", NULL, 17,
         "x.gguf: qwen35.rope.dimension_count: expected an integer in [1, 16], got 17"},
        {qwen35, RENAME, "blk.0.ssm_a", "blk.0.ssm_b", 0,
         "x.gguf: tensor \"blk.0.ssm_b\": the family qwen35 has no use for it"},
        {gemma2, BYTES, "gemma2.attn_logit_softcapping", NULL, -1,
         "x.gguf, as config.json: attn_logit_softcapping: expected a number in [1e-06, 1e+06], "
         "got -1"},
        {gemma3, ADD_F32, "gemma3.attn_logit_softcapping", NULL, 50,
         "x.gguf: gemma3.attn_logit_softcapping: expected 0, got 50 (not supported)"},
        {gemma3, RENAME, "blk.0.post_ffw_norm.weight", "blk.0.post_ffn_norm.weight", 0,
         "x.gguf: tensor \"blk.0.post_ffn_norm.weight\": the family gemma3 has no use for it"},
    };
    expect_damages(damages, sizeof damages / sizeof *damages);
}

Test(gguf_dense, what_is_not_followed_of_phi3_is_refused)
{
    static const struct damage damages[] = {
        {phi3, RENAME, "rope_factors_long.weight", "rope_factors_lung.weight", 0,
         "x.gguf, as config.json: rope_scaling.long_factor: expected a list, got nothing"},
        {phi3, RENAME, "blk.0.attn_qkv.weight", "blk.0.attn_qxv.weight", 0,
         "x.gguf: tensor \"blk.0.attn_qxv.weight\": the family phi3 has no use for it"},
        {phi3, BYTES, "phi3.rope.dimension_count", NULL, 16,
         "x.gguf, as config.json: long_factor, short_factor: expected 8 numbers, as 16 dimensions "
         "of a head turn, got 6"},
        {phi3, BYTES, "phi3.rope.scaling.attn_factor", NULL, 0,
         "x.gguf, as config.json: rope_scaling.attention_factor: expected a number in [1e-06, "
         "1e+06], got 0"},
        {phi3, BYTES, "phi3.feed_forward_length", NULL, 43,
         "x.gguf: tensor \"model.layers.0.mlp.gate_up_proj.weight\": expected shape [86, 64], got "
         "[88, 64]"},
    };
    expect_damages(damages, sizeof damages / sizeof *damages);
}

Test(gguf_dense, what_is_not_followed_of_gemma4_is_refused)
{
    static const struct damage damages[] = {
        {gemma4, RENAME, "rope_freqs.weight", "rope_frexs.weight", 0,
         "x.gguf: tensor \"rope_freqs.weight\": expected 8 numbers of F32, got nothing"},
        {gemma4, RENAME, "blk.0.inp_gate.weight", "blk.0.imp_gate.weight", 0,
         "x.gguf: tensor \"blk.0.imp_gate.weight\": the family gemma4 has no use for it"},
        {gemma4, RENAME, "blk.0.layer_output_scale.weight", "blk.9.layer_output_scale.weight", 0,
         "x.gguf: tensor \"model.layers.0.layer_scalar\": expected shape [1], got nothing: the "
         "tensor is missing"},
        {gemma4, BYTES, "gemma4.attention.key_length", NULL, 14,
         "x.gguf: gemma4.attention.value_length: expected an integer in [14, 14], got 16"},
        {gemma4, BYTES, "gemma4.attention.key_length_swa", NULL, 14,
         "x.gguf: gemma4.attention.value_length_swa: expected an integer in [14, 14], got 12"},
        {gemma4, BYTES, "gemma4.attention.shared_kv_layers", NULL, 1,
         "x.gguf: gemma4.feed_forward_length: expected 20 for layer 3, got 40"},
        {gemma4, BYTES, "gemma4.embedding_length_per_layer_input", NULL, 5,
         "x.gguf: tensor \"model.embed_tokens_per_layer.weight\": expected shape [274, 25], got "
         "[274, 30]"},
        {gemma4_experts, BYTES, "gemma4.expert_used_count", NULL, 6,
         "x.gguf, as config.json: top_k_experts: expected an integer in [1, 5], got 6"},
        {gemma4_experts, RENAME, "blk.0.ffn_down_exps.scale", "blk.0.ffn_down_exps.scala", 0,
         "x.gguf: tensor \"blk.0.ffn_down_exps.scala\": the family gemma4 has no use for it"},
    };
    expect_damages(damages, sizeof damages / sizeof *damages);
}

/* The layers that draft are not computed, whatever they have. */
Test(gguf_dense, a_bias_of_a_draft_is_no_bias_of_the_model)
{
    static const char *const biases[][2] = {
        {"blk.1.attn_q.bias", "blk.2.attn_q.bias"},
        {"blk.1.attn_k.bias", "blk.2.attn_k.bias"},
        {"blk.1.attn_v.bias", "blk.2.attn_v.bias"},
        {"blk.1.attn_output.bias", "blk.2.attn_output.bias"},
    };
    size_t size;
    char *bytes = change(qwen35, ADD_U32, "qwen35.nextn_predict_layers", NULL, 1, &size);
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        replace_word(bytes, size, biases[i][0], biases[i][1]);
    expect_opened("biases of drafts", bytes, size, NULL);
    free(bytes);
}

Test(gguf_dense, what_is_not_followed_of_mamba2_is_refused)
{
    static const struct damage damages[] = {
        {mamba, RENAME, "blk.1.ssm_a", "blk.1.ssm_x", 0,
         "x.gguf: tensor \"blk.1.ssm_x\": the family mamba2 has no use for it"},
        {mamba, RENAME, "blk.1.ssm_d", "blk.9.ssm_d", 0,
         "x.gguf: tensor \"backbone.layers.1.mixer.D\": expected shape [6], got nothing: the "
         "tensor is missing"},
        {mamba, RENAME, "blk.0.ssm_dt.bias", "blk.0.ssm_in.bias", 0,
         "x.gguf: tensor \"backbone.layers.0.mixer.in_proj.bias\": expected shape [214], got [6]"},
        {mamba, BYTES, "mamba2.ssm.time_step_rank", NULL, 5,
         "x.gguf: mamba2.ssm.inner_size: expected a multiple of ssm.time_step_rank (5), got 72"},
        {mamba, BYTES, "mamba2.ssm.group_count", NULL, 4,
         "x.gguf, as config.json: n_groups: expected a divisor of num_heads (6), got 4"},
        {mamba, RENAME, "mamba2.ssm.state_size", "mamba2.ssm.static_siz", 0,
         "x.gguf: mamba2.ssm.static_siz: the family does not know this key"},
        {mamba, ADD_BOOL, "mamba2.ssm.dt_b_c_rms", NULL, 0, NULL},
        {mamba, ADD_BOOL, "mamba2.ssm.dt_b_c_rms", NULL, 1,
         "x.gguf: mamba2.ssm.dt_b_c_rms: expected false, got true (not supported)"},
        {hybrid, BYTES, "granitehybrid.block_count", NULL, 2,
         "x.gguf: granitehybrid.attention.head_count_kv: expected 2 integers or BOOLs, as there "
         "are "
         "layers, got an array of I32 of 3"},
        {hybrid, BYTES, "granitehybrid.expert_count", NULL, 8,
         "x.gguf, as config.json: num_experts_per_tok: expected an integer in [1, 8], got 0"},
        {hybrid, RENAME, "rope.scaling.finetuned", "rope.scaling.finetuneD", 0,
         "x.gguf: granitehybrid.rope.scaling.finetuneD: the family does not know this key"},
        {falcon, RENAME, "blk.1.ffn_norm", "blk.1.ffn_gorm", 0,
         "x.gguf: tensor \"blk.1.ffn_gorm\": the family falcon-h1 has no use for it"},
        {nemotron, BYTES, "nemotron_h.attention.value_length", NULL, 13,
         "x.gguf: nemotron_h.attention.value_length: expected an integer in [12, 12], got 13"},
        {nemotron, ADD_U32, "nemotron_h.expert_count", NULL, 8,
         "x.gguf: nemotron_h.expert_count: expected 0, got 8 (not supported)"},
    };
    expect_damages(damages, sizeof damages / sizeof *damages);
}

/* A file with a key more, and the folder that says the same. */
Test(gguf_dense, optional_keys_are_followed)
{
    static const struct {
        const char *file;
        enum change what;
        const char *key, *text;
        double number;
        const char *golden, *changes;
    } followed[] = {
        {gemma3, ADD_U32, "gemma3.attention.sliding_window_pattern", NULL, 2, "dense_gemma3_text",
         "{\"query_pre_attn_scalar\": 16, \"layer_types\": [" SLIDES ", " NONE "]}"},
        {gemma3, BYTES, "gemma3.rope.freq_base_swa", NULL, 500, "dense_gemma3_text",
         "{\"query_pre_attn_scalar\": 16, \"layer_types\": [" SLIDES ", " SLIDES "],"
         " \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": "
         "1e4}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 500}}}"},
        {gemma2, ADD_U32, "gemma2.attention.sliding_window_pattern", NULL, 1, "dense_gemma2",
         "{\"query_pre_attn_scalar\": 16, \"layer_types\": [" NONE ", " NONE "]}"},
        {granite, RENAME, "granite.attention.scale", "granit3.attention.scale", 0, "dense_granite",
         "{\"attention_multiplier\": 0.25}"},
        {granite, ADD_F32, "granite.rope.scaling.factor", NULL, 4, "dense_granite",
         "{\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 1e4}}"},
        {olmo, RENAME, "yarn", "none", 0, "dense_olmo3",
         "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": "
         "5e3}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 5e3}}}"},
        {olmo, ADD_F32, "olmo2.rope.scaling.yarn_attn_factor", NULL, 2, "dense_olmo3",
         "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"rope_theta\": "
         "5e3, \"factor\": 4, \"attention_factor\": 2, \"original_max_position_embeddings\": 32},"
         " \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 5e3}}}"},
        {olmo, ADD_F32, "olmo2.rope.scaling.yarn_log_multiplier", NULL, 0.5, "dense_olmo3",
         "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"rope_theta\": "
         "5e3, \"factor\": 4, \"mscale\": 1, \"mscale_all_dim\": 0.5, "
         "\"original_max_position_embeddings\": 32},"
         " \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 5e3}}}"},
    };
    for (size_t i = 0; i < sizeof followed / sizeof *followed; i++) {
        size_t size;
        struct model *file;
        struct error err = ERROR_INIT;
        char *bytes = change(followed[i].file, followed[i].what, followed[i].key, followed[i].text,
                             followed[i].number, &size);
        cr_assert(open_bytes(&file, bytes, size, &err) == 0, "%s: %s", followed[i].key,
                  err.message);
        char *others;
        struct model *folder = folder_with(followed[i].golden, followed[i].changes, &others);
        expect_same_logits(followed[i].key, file, folder, WEIGHTS_AUTO);
        free(others);
        free(bytes);
    }
}

/* It changes nothing but the original length of yarn where the file does not say that. */
Test(gguf_dense, context_length_is_asked_only_where_it_counts)
{
    static const struct {
        const char *file, *key, *other;
    } without[] = {
        {llama, "llama.context_length", "ll4ma.context_length"},
        {granite, "granite.context_length", "gr4nite.context_length"},
        {olmo, "olmo2.context_length", "0lmo2.context_length"},
        {hybrid, "granitehybrid.context_length", "gr4nitehybrid.context_length"},
        {falcon, "falcon-h1.context_length", "f4lcon-h1.context_length"},
        {nemotron, "nemotron_h.context_length", "nem0tron_h.context_length"},
        {qwen35, "qwen35.context_length", "qw3n35.context_length"},
        {gemma3, "gemma3.context_length", "g3mma3.context_length"},
        {GOLDEN "gpt_neox_tf5/model.gguf", "gptneox.context_length", "gptne0x.context_length"},
        {GOLDEN "lfm2/model.gguf", "lfm2.context_length", "1fm2.context_length"},
    };
    static const char original[] = "olmo2.rope.scaling.original_context_length";
    size_t size;
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        struct model *model;
        struct error err = ERROR_INIT;
        char *bytes = change(without[i].file, RENAME, without[i].key, without[i].other, 0, &size);
        cr_assert(open_bytes(&model, bytes, size, &err) == 0, "%s: %s", without[i].key,
                  err.message);
        expect_same_logits(without[i].key, model, open_model(without[i].file), WEIGHTS_AUTO);
        free(bytes);
    }
    char *bytes =
        change(olmo, RENAME, original, "0lmo2.rope.scaling.original_context_length", 0, &size);
    expect_opened(original, bytes, size, NULL);
    replace_word(bytes, size, "olmo2.context_length", "0lmo2.context_length");
    expect_opened(original, bytes, size,
                  "x.gguf: olmo2.context_length: expected a value, got nothing");
    free(bytes);
}

Test(gguf_dense, rope_freqs_must_be_numbers_over_0)
{
    static const float values[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        char message[160];
        size_t size;
        struct gguf gguf;
        struct error err = ERROR_INIT;
        char *bytes = read_whole(llama, &size);
        cr_assert(gguf_read(&gguf, bytes, size, "x.gguf", &err) == 0, "%s", err.message);
        for (size_t t = 0; t < gguf.num_tensors; t++)
            if (strcmp(gguf.tensors[t].name, "rope_freqs.weight") == 0)
                memcpy(bytes + ((const char *)gguf.data - bytes) + gguf.tensors[t].offset + 12,
                       &values[i], 4);
        gguf_clear(&gguf);
        snprintf(message, sizeof message,
                 "x.gguf: tensor \"rope_freqs.weight\": expected numbers over 0, got %g",
                 (double)values[i]);
        expect_opened("rope_freqs", bytes, size, message);
        free(bytes);
    }
}
