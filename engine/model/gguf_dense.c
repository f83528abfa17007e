/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/gguf_dense.h"

#include "engine/model/config.h"
#include "engine/model/conversion.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int64_t number(const json_t *config, const char *name)
{
    return json_integer_value(json_object_get(config, name));
}

static bool is_text(const json_t *object, const char *name, const char *expected)
{
    const char *value = json_string_value(json_object_get(object, name));
    return value && strcmp(value, expected) == 0;
}

static bool is_number(const json_t *object, const char *name, double expected)
{
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) && json_number_value(value) == expected;
}

/* Sizes that the format leaves out where they are the usual ones, and that transformers' classes
 * take for others then. */
static int complete_sizes(json_t *config, const struct gguf_source *source, struct error *err)
{
    const int64_t heads = number(config, "num_attention_heads");
    int64_t head = heads > 0 ? number(config, "hidden_size") / heads : 0, value, rotated;
    if (gguf_config_int(source, "attention.key_length", FIELD_OPTIONAL, 1, CONFIG_MAX_HIDDEN, &head,
                        err) != 0)
        return -1;
    value = rotated = head;
    const int64_t least = source->partial ? 1 : head;
    if (gguf_config_int(source, "attention.value_length", FIELD_OPTIONAL, head, head, &value,
                        err) != 0 ||
        gguf_config_int(source, "rope.dimension_count", FIELD_OPTIONAL, least, head, &rotated,
                        err) != 0)
        return -1;
    /* a little more, as the part is cut to whole dimensions */
    const double part = rotated == head ? 1 : ((double)rotated + 0.5) / (double)head;
    if (source->partial &&
        gguf_config_set(config, "partial_rotary_factor", json_real(part), err) != 0)
        return -1;
    if (!json_object_get(config, "num_key_value_heads") &&
        gguf_config_set(config, "num_key_value_heads", json_integer(heads), err) != 0)
        return -1;
    return gguf_config_set(config, "head_dim", json_integer(head), err);
}

bool gguf_dense_any_layer(const json_t *config, const struct gguf_source *source, const char *name)
{
    char full[80];
    const int64_t layers = number(config, "num_hidden_layers");
    for (int64_t i = 0; i < layers && i < CONFIG_MAX_LAYERS; i++) {
        snprintf(full, sizeof full, "blk.%d.%s", (int)i, name);
        if (tensors_find(source->tensors, full))
            return true;
    }
    return false;
}

/* A bias is where its tensor is. */
static int complete_biases(json_t *config, const struct gguf_source *source, struct error *err)
{
    static const struct {
        const char *tensor, *name;
    } biases[] = {{"attn_q.bias", "attention_bias"}, {"ffn_up.bias", "mlp_bias"}};
    for (size_t i = 0; i < COUNT(biases); i++)
        if (gguf_dense_any_layer(config, source, biases[i].tensor) &&
            gguf_config_set(config, biases[i].name, json_true(), err) != 0)
            return -1;
    return 0;
}

int gguf_dense_refuse_false(const struct gguf_source *source, const char *key, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    bool value = true;
    gguf_config_key(full, source, key);
    if (gguf_bool(source->gguf, full, FIELD_OPTIONAL, &value, err) != 0)
        return -1;
    return value ? 0
                 : error_set(err, ERROR_UNSUPPORTED,
                             "%s: %s: expected true, got false (not supported)", source->gguf->file,
                             full);
}

int gguf_dense_need_length(const struct gguf_source *source, struct error *err)
{
    return gguf_config_copy(NULL, NULL, source, "context_length", FIELD_REQUIRED, err);
}

/* How yarn extends angles; the format's usual 1 is the only way that transformers has. */
static int check_extension(const json_t *rope, const struct gguf_source *source, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    const json_t *value = json_object_get(rope, "extrapolation_factor");
    if (!value || json_number_value(value) == 1)
        return 0;
    return error_set(
        err, ERROR_UNSUPPORTED, "%s: %s: expected 1, got %g (not supported)", source->gguf->file,
        gguf_config_key(full, source, "rope.scaling.yarn_ext_factor"), json_number_value(value));
}

/* rope_scaling of keys that llama.cpp reads: of yarn with its factor of cosines and sines, which
 * the converter writes, though llama.cpp computes that from the factor. */
static int complete_yarn(json_t *rope, const struct gguf_source *source, struct error *err)
{
    static const struct gguf_key keys[] = {
        {"rope.scaling.original_context_length", "original_max_position_embeddings",
         FIELD_OPTIONAL},
        {"rope.scaling.yarn_attn_factor", "attention_factor", FIELD_OPTIONAL},
        {"rope.scaling.yarn_beta_fast", "beta_fast", FIELD_OPTIONAL},
        {"rope.scaling.yarn_beta_slow", "beta_slow", FIELD_OPTIONAL},
        {"rope.scaling.yarn_log_multiplier", "mscale_all_dim", FIELD_OPTIONAL},
        {"rope.scaling.yarn_ext_factor", "extrapolation_factor", FIELD_OPTIONAL},
        /* as Ollama calls them */
        {"rope.scaling.beta_fast", "beta_fast", FIELD_OPTIONAL},
        {"rope.scaling.beta_slow", "beta_slow", FIELD_OPTIONAL},
        {"rope.scaling.extrapolation_factor", "extrapolation_factor", FIELD_OPTIONAL},
    };
    for (size_t i = 0; i < COUNT(keys); i++)
        if (gguf_config_copy(rope, keys[i].name, source, keys[i].key, keys[i].need, err) != 0)
            return -1;
    if (check_extension(rope, source, err) != 0 ||
        (!json_object_get(rope, "original_max_position_embeddings") &&
         gguf_dense_need_length(source, err) != 0))
        return -1;
    json_object_del(rope, "extrapolation_factor");
    if (json_number_value(json_object_get(rope, "mscale_all_dim")) > 0)
        return gguf_config_set(rope, "mscale", json_integer(1), err);
    json_object_del(rope, "mscale_all_dim");
    return 0;
}

/* A factor without a type is linear's, as in llama.cpp, which also knows an older name of it. Type
 * none has no scaling, nor has a factor of 0. */
static int complete_rope(json_t *config, const struct gguf_source *source, struct error *err)
{
    json_t *rope = json_object();
    if (gguf_config_set(config, "rope_scaling", rope, err) != 0 ||
        gguf_config_copy(rope, "rope_type", source, "rope.scaling.type", FIELD_OPTIONAL, err) !=
            0 ||
        gguf_config_copy(rope, "factor", source, "rope.scale_linear", FIELD_OPTIONAL, err) != 0 ||
        gguf_config_copy(rope, "factor", source, "rope.scaling.factor", FIELD_OPTIONAL, err) != 0)
        return -1;
    if (is_number(rope, "factor", 0) ||
        (is_number(rope, "factor", 1) && !json_object_get(rope, "rope_type")))
        json_object_del(rope, "factor"); /* none */
    if (!json_object_get(config, "rope_theta") &&
        gguf_config_set(config, "rope_theta", json_integer(10000), err) != 0)
        return -1;
    if (is_text(rope, "rope_type", "none"))
        return json_object_clear(rope);
    if (is_text(rope, "rope_type", "yarn"))
        return complete_yarn(rope, source, err);
    if (json_object_get(rope, "factor"))
        return json_object_get(rope, "rope_type")
                   ? 0
                   : gguf_config_set(rope, "rope_type", json_string("linear"), err);
    return is_text(rope, "rope_type", "linear") ? json_object_clear(rope) : 0;
}

static int complete(json_t *config, const struct gguf_source *source, struct error *err)
{
    return gguf_dense_refuse_false(source, "attention.causal", err) == 0 &&
                   complete_sizes(config, source, err) == 0 &&
                   complete_biases(config, source, err) == 0
               ? complete_rope(config, source, err)
               : -1;
}

/* Whether each layer has a window: a list, or a number of which each so-manieth has none. */
static int read_pattern(json_t *kinds, const struct gguf_source *source, int64_t layers,
                        int64_t pattern, struct error *err)
{
    static const char key[] = "attention.sliding_window_pattern";
    const struct gguf_entry *list;
    if (gguf_config_list(source, key, &list, err) != 0)
        return -1;
    if (list && !list->array) {
        list = NULL;
        if (gguf_config_int(source, key, FIELD_OPTIONAL, 0, CONFIG_MAX_LAYERS, &pattern, err) != 0)
            return -1;
    }
    for (int64_t i = 0; i < layers; i++) {
        bool slides = pattern == 0 || i % pattern < pattern - 1;
        if (list)
            slides = gguf_config_at(list, i) != 0;
        if (json_array_append_new(
                kinds, json_string(slides ? "sliding_attention" : "full_attention")) != 0)
            return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", key);
    }
    return 0;
}

int gguf_dense_windows(json_t *config, const struct gguf_source *source, int64_t pattern,
                       int64_t usual, struct error *err)
{
    const int64_t layers = number(config, "num_hidden_layers");
    json_t *kinds = json_array();
    if (gguf_config_set(config, "layer_types", kinds, err) != 0 ||
        gguf_config_int(source, "attention.sliding_window", FIELD_OPTIONAL, 0, CONFIG_MAX_WINDOW,
                        &usual, err) != 0)
        return -1;
    if (layers > CONFIG_MAX_LAYERS) /* the family refuses it */
        return 0;
    if (usual > 0 && gguf_config_set(config, "sliding_window", json_integer(usual), err) != 0)
        return -1;
    if (usual > 0)
        return read_pattern(kinds, source, layers, pattern, err);
    for (int64_t i = 0; i < layers; i++)
        if (json_array_append_new(kinds, json_string("full_attention")) != 0)
            return error_set(err, ERROR_NO_MEMORY, "layer_types: out of memory");
    return 0;
}

int gguf_dense_rope_by_kind(json_t *config, const struct gguf_source *source, double base,
                            struct error *err)
{
    json_t *sliding = json_pack("{ss sf}", "rope_type", "default", "rope_theta", base);
    json_t *full = json_object_get(config, "rope_scaling"), *both = json_object();
    json_incref(full);
    json_object_del(config, "rope_scaling");
    if (gguf_config_set(config, "rope_parameters", both, err) != 0) {
        json_decref(full);
        json_decref(sliding);
        return -1;
    }
    if (gguf_config_set(both, "full_attention", full, err) != 0) {
        json_decref(sliding);
        return -1;
    }
    if (gguf_config_set(both, "sliding_attention", sliding, err) != 0 ||
        gguf_config_set(full, "rope_theta", json_incref(json_object_get(config, "rope_theta")),
                        err) != 0)
        return -1;
    if (!json_object_get(full, "rope_type") &&
        gguf_config_set(full, "rope_type", json_string("default"), err) != 0)
        return -1;
    json_object_del(config, "rope_theta");
    return gguf_config_copy(sliding, "rope_theta", source, "rope.local.freq_base", FIELD_OPTIONAL,
                            err) == 0
               ? gguf_config_copy(sliding, "rope_theta", source, "rope.freq_base_swa",
                                  FIELD_OPTIONAL, err)
               : -1;
}

int gguf_dense_query_scale(json_t *config, int64_t largest, struct error *err)
{
    const int64_t heads = number(config, "num_attention_heads");
    int64_t scalar = number(config, "head_dim");
    if (number(config, "num_hidden_layers") == largest && heads > 0)
        scalar = number(config, "hidden_size") / heads;
    return gguf_config_set(config, "query_pre_attn_scalar", json_integer(scalar), err);
}

/* The file's rope_freqs: each frequency is divided by its number. */
static int divide(struct config *config, const struct tensor *factors, struct position *position,
                  struct error *err)
{
    const int pairs = position->rotary_dims / 2;
    if (factors->rank != 1 || factors->shape[0] != pairs || factors->dtype != TENSOR_F32)
        return error_set(err, ERROR_INVALID,
                         "%s: tensor \"%s\": expected %d numbers of F32, got another shape or type",
                         factors->file, factors->name, pairs);
    double *frequencies = arena_alloc(config->arena, (size_t)pairs, sizeof *frequencies, err);
    if (!frequencies)
        return -1;
    for (int i = 0; i < pairs; i++) {
        const double factor = conversion_value(factors, (size_t)i);
        if (!(factor > 0) || isinf(factor))
            return error_set(err, ERROR_INVALID,
                             "%s: tensor \"%s\": expected numbers over 0, got %g", factors->file,
                             factors->name, factor);
        frequencies[i] = (position->frequencies ? position->frequencies[i]
                                                : pow(position->base, -2.0 * i / (2 * pairs))) /
                         factor;
    }
    position->frequencies = frequencies;
    return 0;
}

static int finish(struct config *config, struct tensors *tensors, struct error *err)
{
    struct tensor *factors = tensors_find(tensors, "rope_freqs.weight");
    if (!factors)
        return 0;
    for (int i = 0; i < config->num_mixers; i++) {
        struct position *position = &config->mixers[i].mixer.position;
        if (position->kind == POSITION_ROPE && divide(config, factors, position, err) != 0)
            return -1;
    }
    tensor_ignore(factors);
    return 0;
}

static const struct gguf_key keys[] = {
    {"embedding_length", "hidden_size", FIELD_REQUIRED},
    {"block_count", "num_hidden_layers", FIELD_REQUIRED},
    {"attention.head_count", "num_attention_heads", FIELD_REQUIRED},
    {"attention.head_count_kv", "num_key_value_heads", FIELD_OPTIONAL},
    {"attention.key_length", NULL, FIELD_OPTIONAL},
    {"attention.value_length", NULL, FIELD_OPTIONAL},
    {"attention.causal", NULL, FIELD_OPTIONAL},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", FIELD_REQUIRED},
    {"feed_forward_length", "intermediate_size", FIELD_REQUIRED},
    {"context_length", "max_position_embeddings", FIELD_OPTIONAL},
    {"vocab_size", "vocab_size", FIELD_OPTIONAL},
    {"rope.dimension_count", NULL, FIELD_OPTIONAL},
    {"rope.freq_base", "rope_theta", FIELD_OPTIONAL},
    {"rope.scaling.type", NULL, FIELD_OPTIONAL},
    {"rope.scaling.factor", NULL, FIELD_OPTIONAL},
    {"rope.scaling.original_context_length", NULL, FIELD_OPTIONAL},
    {"rope.scaling.finetuned", NULL, FIELD_OPTIONAL},
    {"rope.scaling.yarn_attn_factor", NULL, FIELD_OPTIONAL},
    {"rope.scaling.yarn_beta_fast", NULL, FIELD_OPTIONAL},
    {"rope.scaling.yarn_beta_slow", NULL, FIELD_OPTIONAL},
    {"rope.scaling.yarn_log_multiplier", NULL, FIELD_OPTIONAL},
    {"rope.scaling.yarn_ext_factor", NULL, FIELD_OPTIONAL},
    {"rope.scaling.extrapolation_factor", NULL, FIELD_OPTIONAL},
    {"rope.scaling.beta_fast", NULL, FIELD_OPTIONAL},
    {"rope.scaling.beta_slow", NULL, FIELD_OPTIONAL},
    {"rope.scale_linear", NULL, FIELD_OPTIONAL},
};

static const struct gguf_name tensor_names[] = {
    {"token_embd", "model.embed_tokens", GGUF_SAME},
    {"output_norm", "model.norm", GGUF_SAME},
    {"output", "lm_head", GGUF_SAME},
    {"blk.*.attn_q", GGUF_DENSE_ATTENTION "q_proj", GGUF_SAME},
    {"blk.*.attn_k", GGUF_DENSE_ATTENTION "k_proj", GGUF_SAME},
    {"blk.*.attn_v", GGUF_DENSE_ATTENTION "v_proj", GGUF_SAME},
    {"blk.*.attn_output", GGUF_DENSE_ATTENTION "o_proj", GGUF_SAME},
    {"blk.*.attn_q_norm", GGUF_DENSE_ATTENTION "q_norm", GGUF_SAME},
    {"blk.*.attn_k_norm", GGUF_DENSE_ATTENTION "k_norm", GGUF_SAME},
    {"blk.*.ffn_gate", "model.layers.*.mlp.gate_proj", GGUF_SAME},
    {"blk.*.ffn_up", "model.layers.*.mlp.up_proj", GGUF_SAME},
    {"blk.*.ffn_down", "model.layers.*.mlp.down_proj", GGUF_SAME},
};

const struct gguf_names gguf_dense = {.keys = keys,
                                      .num_keys = COUNT(keys),
                                      .names = tensor_names,
                                      .num_names = COUNT(tensor_names),
                                      .complete = complete};

static const struct gguf_name prenorm_names[] = {
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", GGUF_SAME},
    {"blk.*.ffn_norm", "model.layers.*.post_attention_layernorm", GGUF_SAME},
};

const struct gguf_names gguf_dense_prenorm = {
    .base = &gguf_dense, .names = prenorm_names, .num_names = COUNT(prenorm_names)};

static const struct gguf_name paired_names[] = {
    {"blk.*.attn_q", GGUF_DENSE_ATTENTION "q_proj", GGUF_PAIRED},
    {"blk.*.attn_k", GGUF_DENSE_ATTENTION "k_proj", GGUF_PAIRED},
    {"rope_freqs", "rope_freqs", GGUF_SAME},
};

const struct gguf_names gguf_dense_paired = {.base = &gguf_dense_prenorm,
                                             .names = paired_names,
                                             .num_names = COUNT(paired_names),
                                             .finish = finish};
