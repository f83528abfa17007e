/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 2 and the text models of Gemma 3, as `transformers` 4 and 5 save Gemma2ForCausalLM and
 * Gemma3ForCausalLM: norms before and behind the branches, with weights 1 + w. */
#include "engine/model/config_library.h"
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"

#include <math.h>

#define GEMMA                                                                                \
    .num_kv_heads = 4, .head_dim = 256, .rope_theta = 10000, .act_key = "hidden_activation", \
    .act = ACT_GELU_NEW, .tied = true, .windows = true, .attention_bias = true

static const struct dense_class gemma2 = {GEMMA, .longest = 8192};
static const struct dense_class gemma3 = {GEMMA, .longest = 131072, .qk_norm = NORM_RMSNORM,
                                          .qk_norm_scope = NORM_SCOPE_HEAD};

static int parse_gemma(struct dense *dense, struct config *config, const struct fields *root,
                       const struct dense_class *class, struct error *err)
{
    static const struct layer_names names = {"input_layernorm", "self_attn",
                                             "pre_feedforward_layernorm", "mlp"};
    static const struct config_refusal refusal = {"use_bidirectional_attention", "false"};
    double scalar = 256;
    if (dense_parse(dense, config, root, class, &names, err) != 0 ||
        config_check_heads(config, root, err) != 0 ||
        config_library_refuse(root, &refusal, 1, err) != 0 ||
        fields_double(root, "query_pre_attn_scalar", FIELD_NOT_NULL, 1e-6, 1e9, &scalar, err) !=
            0 ||
        config_library_softcap(root, "final_logit_softcapping", &config->logit_softcap, err) != 0)
        return -1;
    struct mixer *mixer = &dense->mixer.mixer;
    mixer->score_scale = (float)(1 / sqrt(scalar));
    mixer->q_norm.plus_one = mixer->k_norm.plus_one = config->norm_plus_one = true;
    config->embedding_scale = (float)sqrt((double)config->hidden_size);
    dense_post_norms(dense);
    return 0;
}

static int parse_gemma2(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    config->logit_softcap = 30;
    if (parse_gemma(&dense, config, root, &gemma2, err) != 0 ||
        dense_rope(&rope, config, root, &gemma2, err) != 0)
        return -1;
    dense.mixer.mixer.score_softcap = 50;
    if (config_library_softcap(root, "attn_logit_softcapping", &dense.mixer.mixer.score_softcap,
                               err) != 0)
        return -1;
    return dense_pattern_layers(&dense, config, (const struct rope *[]){&rope, &rope}, 2, root,
                                err);
}

static int parse_gemma3(struct config *config, const struct fields *root, struct error *err)
{
    const struct rope_keys full = {.base = "rope_theta",
                                   .part = "partial_rotary_factor",
                                   .usual_base = 1e6,
                                   .usual_part = 1,
                                   .longest = gemma3.longest,
                                   .by_kind = true};
    struct rope_keys keys[2] = {full, full};
    struct dense dense;
    struct rope ropes[2];
    int64_t pattern = 6;
    keys[1].base = "rope_local_base_freq";
    keys[1].usual_base = gemma3.rope_theta;
    if (parse_gemma(&dense, config, root, &gemma3, err) != 0 ||
        rope_parse_kinds(ropes, root, keys, &config->warnings, err) != 0 ||
        fields_int(root, "sliding_window_pattern", FIELD_NOT_NULL, 1, CONFIG_MAX_LAYERS, &pattern,
                   err) != 0)
        return -1;
    if (fields_has(root, "attn_logit_softcapping"))
        warnings_add(
            &config->warnings,
            "%s: attn_logit_softcapping: without effect in this family, as in transformers",
            root->place);
    return dense_pattern_layers(&dense, config, (const struct rope *[]){&ropes[0], &ropes[1]},
                                pattern, root, err);
}

#define NORM_NAME(gguf, name)                                 \
    {                                                         \
        "blk.*." gguf, "model.layers.*." name, GGUF_ONE_ADDED \
    }

/* The converter has added the 1 of 1 + w. */
static const struct gguf_name gguf_names[] = {
    {"output_norm", "model.norm", GGUF_ONE_ADDED},
    NORM_NAME("attn_norm", "input_layernorm"),
    NORM_NAME("post_attention_norm", "post_attention_layernorm"),
    NORM_NAME("ffn_norm", "pre_feedforward_layernorm"),
    NORM_NAME("post_ffw_norm", "post_feedforward_layernorm"),
    NORM_NAME("attn_q_norm", "self_attn.q_norm"),
    NORM_NAME("attn_k_norm", "self_attn.k_norm"),
};

static const struct gguf_key gguf_keys[] = {
    {"attention.sliding_window", NULL, FIELD_OPTIONAL},
    {"attention.sliding_window_pattern", NULL, FIELD_OPTIONAL},
    {"final_logit_softcapping", "final_logit_softcapping", FIELD_OPTIONAL},
    {"attn_logit_softcapping", "attn_logit_softcapping", FIELD_OPTIONAL},
};

/* The model of so many layers has a scale of its own. */
static int complete_gemma2(json_t *config, const struct gguf_source *source, struct error *err)
{
    return gguf_dense_query_scale(config, 46, err) == 0
               ? gguf_dense_windows(config, source, 2, 4096, err)
               : -1;
}

static const struct gguf_names gguf2 = {.architecture = "gemma2",
                                        .base = &gguf_dense,
                                        .keys = gguf_keys,
                                        .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                        .names = gguf_names,
                                        .num_names = sizeof gguf_names / sizeof *gguf_names,
                                        .complete = complete_gemma2};

static const struct gguf_key gguf_keys3[] = {
    {"attention.sliding_window", NULL, FIELD_OPTIONAL},
    {"attention.sliding_window_pattern", NULL, FIELD_OPTIONAL},
    {"final_logit_softcapping", "final_logit_softcapping", FIELD_OPTIONAL},
    {"rope.freq_base_swa", NULL, FIELD_OPTIONAL},
    /* Of files by Ollama, which leaves out what all models of its time had. */
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", FIELD_OPTIONAL},
    {"rope.global.freq_base", NULL, FIELD_OPTIONAL},
    {"rope.local.freq_base", NULL, FIELD_OPTIONAL},
};

/* What Ollama's files call otherwise or leave out: bases of rotary embeddings, and the scaling of
 * all models but the smallest, whose texts are shorter. */
static int complete_as_ollama(json_t *config, const struct gguf_source *source, struct error *err)
{
    enum { LONG = 131072 };
    char full[GGUF_KEY_SIZE];
    const bool bare = !json_object_get(config, "rms_norm_eps");
    const bool based = gguf_find(source->gguf, gguf_config_key(full, source, "rope.freq_base"));
    const json_int_t longest =
        json_integer_value(json_object_get(config, "max_position_embeddings"));
    if (bare && !based && gguf_config_set(config, "rope_theta", json_integer(1000000), err) != 0)
        return -1;
    if (!based && gguf_config_copy(config, "rope_theta", source, "rope.global.freq_base",
                                   FIELD_OPTIONAL, err) != 0)
        return -1;
    json_t *rope = json_object_get(config, "rope_scaling");
    if (!bare || json_object_size(rope) > 0)
        return 0;
    if (gguf_dense_need_length(source, err) != 0)
        return -1;
    if (longest < LONG)
        return 0;
    return gguf_config_set(rope, "rope_type", json_string("linear"), err) == 0
               ? gguf_config_set(rope, "factor", json_integer(8), err)
               : -1;
}

static int complete_gemma3(json_t *config, const struct gguf_source *source, struct error *err)
{
    json_t *cap = json_object_get(config, "final_logit_softcapping");
    if (json_is_number(cap) && json_number_value(cap) == 0) /* none */
        json_object_del(config, "final_logit_softcapping");
    return complete_as_ollama(config, source, err) == 0 &&
                   gguf_dense_query_scale(config, 62, err) == 0 &&
                   gguf_dense_windows(config, source, 6, 0, err) == 0
               ? gguf_dense_rope_by_kind(config, source, 10000, err)
               : -1;
}

static const struct gguf_names gguf3 = {.architecture = "gemma3",
                                        .base = &gguf_dense,
                                        .keys = gguf_keys3,
                                        .num_keys = sizeof gguf_keys3 / sizeof *gguf_keys3,
                                        .names = gguf_names,
                                        .num_names = sizeof gguf_names / sizeof *gguf_names,
                                        .complete = complete_gemma3};

const struct family family_gemma2 = {.name = "gemma2",
                                     .parse = parse_gemma2,
                                     .bind = dense_bind,
                                     .random = dense_random,
                                     .gguf = &gguf2};
const struct family family_gemma3_text = {.name = "gemma3_text",
                                          .parse = parse_gemma3,
                                          .bind = dense_bind,
                                          .random = dense_random,
                                          .gguf = &gguf3};
