/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3.5 and those that have its form, as `transformers` saves Qwen3_5ForCausalLM and
 * Qwen3_5ForConditionalGeneration, of which only the language model counts here: layers of Gated
 * DeltaNet, and each fourth of softmax attention whose output has a gate. */
#include "engine/model/config_library.h"
#include "engine/model/dense.h"
#include "engine/model/gated_delta.h"
#include "engine/model/gguf_dense.h"

#include <stdlib.h>
#include <string.h>

static const struct dense_class qwen3_5 = {.num_kv_heads = 4,
                                           .head_dim = 256,
                                           .longest = 32768,
                                           .act = ACT_SILU,
                                           .windows = true,
                                           .attention_bias = true,
                                           .qk_norm = NORM_RMSNORM,
                                           .qk_norm_scope = NORM_SCOPE_HEAD};

static const struct gated_delta_names names = {"in_proj_qkv", "in_proj_z", "in_proj_b",
                                               "in_proj_a",   "norm",      "out_proj"};

static int parse_sizes(struct gated_delta_sizes *sizes, const struct fields *root,
                       struct error *err)
{
    if (gated_delta_size(root, "linear_num_key_heads", FIELD_NOT_NULL, 16, &sizes->num_qk_heads,
                         err) != 0 ||
        gated_delta_size(root, "linear_num_value_heads", FIELD_NOT_NULL, 32, &sizes->num_heads,
                         err) != 0 ||
        gated_delta_size(root, "linear_key_head_dim", FIELD_NOT_NULL, 128, &sizes->head_dim, err) !=
            0 ||
        gated_delta_size(root, "linear_value_head_dim", FIELD_NOT_NULL, 128, &sizes->value_dim,
                         err) != 0 ||
        gated_delta_width(root, "linear_conv_kernel_dim", sizes, err) != 0)
        return -1;
    return gated_delta_check(sizes, root, err);
}

/* The kinds of layers; the norms of attention and of the MLP have the same names in both. */
static int parse_layers(struct dense *dense, struct config *config, const struct rope *rope,
                        const struct fields *root, struct error *err)
{
    struct gated_delta_sizes sizes = {.conv_width = 4};
    int64_t interval = 4;
    int *kind_of;
    if (parse_sizes(&sizes, root, err) != 0 ||
        fields_int(root, "full_attention_interval", FIELD_NOT_NULL, 1, CONFIG_MAX_LAYERS, &interval,
                   err) != 0 ||
        gated_delta_layers(&kind_of, config, interval, root, err) != 0)
        return -1;
    struct mixer linear = gated_delta_mixer(&sizes, GATE_GATED_DELTA, config->norm_eps);
    struct layer_config layer = dense->layer;
    linear.output_gate = OUTPUT_GATE_SWISH;
    layer.blocks[0].branches[0].name = "linear_attn";
    const struct dense_kind kinds[] = {
        {.name = "full_attention", .rope = rope},
        {.name = "linear_attention", .mixer = &linear, .layer = &layer},
    };
    return dense_layers(dense, config, kinds, 2, kind_of, root, err);
}

static int parse_text(struct config *config, const struct fields *root, struct error *err)
{
    static const struct rope_keys keys = {.base = "rope_theta",
                                          .part = "partial_rotary_factor",
                                          .usual_base = 10000,
                                          .usual_part = 0.25,
                                          .longest = 32768,
                                          .partial = true,
                                          .mrope = true};
    static const struct config_refusal refusal = {"attn_output_gate", "true"};
    struct dense dense;
    struct rope rope;
    if (config_library_refuse(root, &refusal, 1, err) != 0 ||
        dense_parse(&dense, config, root, &qwen3_5, NULL, err) != 0 ||
        gated_delta_check_act(config, root, err) != 0 ||
        rope_parse(&rope, root, &keys, &config->warnings, err) != 0)
        return -1;
    struct mixer *mixer = &dense.mixer.mixer;
    mixer->q_norm.plus_one = mixer->k_norm.plus_one = config->norm_plus_one = true;
    mixer->output_gate = OUTPUT_GATE_SIGMOID;
    return parse_layers(&dense, config, &rope, root, err);
}

/* All but the language model's configuration. */
static int parse_outer(struct config *config, const struct fields *outer, bool *tied,
                       struct error *err)
{
    return config_library_keys(config, outer, err) == 0
               ? fields_bool(outer, "tie_word_embeddings", FIELD_NOT_NULL, tied, err)
               : -1;
}

static int parse_nested(struct config *config, const struct fields *root, struct error *err)
{
    static const char *const types[] = {"qwen3_5_text"};
    struct fields text, outer = *root;
    bool tied = false;
    int type = 0;
    if (fields_object(root, "text_config", FIELD_REQUIRED, &text, err) != 0 ||
        fields_choice(&text, "model_type", FIELD_OPTIONAL, types, 1, &type, err) != 0)
        return -1;
    json_t *rest = json_copy((json_t *)root->object);
    if (!rest || json_object_del(rest, "text_config") != 0) {
        json_decref(rest);
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", root->place);
    }
    outer.object = rest;
    int result = parse_outer(config, &outer, &tied, err);
    if (result == 0)
        result = parse_text(config, &text, err);
    if (result == 0)
        result = config_token_ids(config, &outer, err);
    json_decref(rest);
    config->tied = tied; /* the text's own says nothing, as in transformers */
    return result;
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    return mixer_has(block->mixer, HAS_FEATURES) ? gated_delta_bind(block, &names, err)
                                                 : dense_bind_attention(block, err);
}

/* A model of text alone may have been cut out of a whole one, with the names of that. */
static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    static const char *const others[] = {"model.visual.", "mtp."};
    static const char whole[] = "model.language_model";
    weights_ignore_below(weights, others, 2);
    if (!weights_has(weights, "lm_head.weight"))
        model->tied = true;
    const bool nested = weights_has(weights, "model.language_model.embed_tokens.weight");
    return dense_bind_layers(model, config, weights, nested ? whole : "model", bind_mixer, err);
}

static void list_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    if (mixer_has(mixer, HAS_FEATURES))
        gated_delta_random(list, prefix, &names, mixer);
    else
        dense_random_attention(list, prefix, mixer);
}

static void list_random(struct random_list *list)
{
    dense_random_layers(list, list_mixer);
}

#define LAYER "model.layers.*."
#define LINEAR LAYER "linear_attn."

/* llama.cpp has the value heads of each key head apart from each other, and 1 added to norms. */
static const struct gguf_name gguf_tensors[] = {
    {"output_norm", "model.norm", GGUF_ONE_ADDED},
    {"blk.*.attn_norm", LAYER "input_layernorm", GGUF_ONE_ADDED},
    {"blk.*.post_attention_norm", LAYER "post_attention_layernorm", GGUF_ONE_ADDED},
    {"blk.*.attn_q_norm", LAYER "self_attn.q_norm", GGUF_ONE_ADDED},
    {"blk.*.attn_k_norm", LAYER "self_attn.k_norm", GGUF_ONE_ADDED},
    {"blk.*.attn_qkv", LINEAR "in_proj_qkv", GGUF_VALUE_HEADS_LAST},
    {"blk.*.attn_gate", LINEAR "in_proj_z", GGUF_VALUE_HEADS},
    {"blk.*.ssm_beta", LINEAR "in_proj_b", GGUF_VALUE_HEADS},
    {"blk.*.ssm_alpha", LINEAR "in_proj_a", GGUF_VALUE_HEADS},
    {"blk.*.ssm_a", LINEAR "A_log", GGUF_DECAY},
    {"blk.*.ssm_dt.bias", LINEAR "dt_bias", GGUF_VALUE_HEADS_WHOLE},
    {"blk.*.ssm_conv1d", LINEAR "conv1d", GGUF_SAME},
    {"blk.*.ssm_norm", LINEAR "norm", GGUF_SAME},
    {"blk.*.ssm_out", LINEAR "out_proj", GGUF_SAME},
};

static const struct gguf_key gguf_keys[] = {
    {"ssm.conv_kernel", "linear_conv_kernel_dim", FIELD_REQUIRED},
    {"ssm.state_size", "linear_key_head_dim", FIELD_REQUIRED},
    {"ssm.group_count", "linear_num_key_heads", FIELD_REQUIRED},
    {"ssm.time_step_rank", "linear_num_value_heads", FIELD_REQUIRED},
    {"ssm.inner_size", NULL, FIELD_REQUIRED},
    {"attention.recurrent_layers", NULL, FIELD_OPTIONAL},
    {"full_attention_interval", "full_attention_interval", FIELD_OPTIONAL},
};

static int64_t number(const json_t *config, const char *name)
{
    return json_integer_value(json_object_get(config, name));
}

/* Which layers are linear; without the key each fourth is not. */
static int set_layers(json_t *config, const struct gguf_source *source, struct error *err)
{
    const struct gguf_entry *list;
    if (gguf_config_list(source, "attention.recurrent_layers", &list, err) != 0)
        return -1;
    if (!list)
        return 0;
    json_t *kinds = json_array();
    if (gguf_config_set(config, "layer_types", kinds, err) != 0)
        return -1;
    for (int64_t i = 0; i < source->layers; i++)
        if (json_array_append_new(kinds, json_string(gguf_config_at(list, i) ? "linear_attention"
                                                                             : "full_attention")) !=
            0)
            return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", source->gguf->file);
    return 0;
}

static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    const int64_t heads = number(config, "linear_num_value_heads");
    int64_t inner = 0;
    if (gguf_config_int(source, "ssm.inner_size", FIELD_REQUIRED, 1, INT32_MAX, &inner, err) != 0)
        return -1;
    if (heads < 1 || inner % heads != 0)
        return gguf_bad(source->gguf, gguf_config_key(full, source, "ssm.inner_size"), err,
                        "expected a multiple of ssm.time_step_rank (%lld), got %lld",
                        (long long)heads, (long long)inner);
    return gguf_config_set(config, "linear_value_head_dim", json_integer(inner / heads), err) == 0
               ? set_layers(config, source, err)
               : -1;
}

static const struct gguf_names gguf = {.architecture = "qwen35",
                                       .base = &gguf_dense,
                                       .partial = true,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_tensors,
                                       .num_names = sizeof gguf_tensors / sizeof *gguf_tensors,
                                       .complete = complete_gguf};

const struct family family_qwen3_5_text = {.name = "qwen3_5_text",
                                           .parse = parse_text,
                                           .bind = bind,
                                           .random = list_random,
                                           .gguf = &gguf};
const struct family family_qwen3_5 = {.name = "qwen3_5", .parse = parse_nested, .bind = bind};
