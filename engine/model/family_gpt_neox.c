/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/family_gpt_neox.h"

#include <string.h>

static const char *const activations[] = {
    "gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh", "gelu_fast", "swish"};
static const enum hidden_act activation_of[] = {ACT_GELU,     ACT_GELU_NEW, ACT_RELU, ACT_SILU,
                                                ACT_GELU_NEW, ACT_GELU_NEW, ACT_SILU};
enum { NUM_ACTIVATIONS = sizeof activations / sizeof *activations };

static int parse_scaling(const struct fields *root, const char *key, struct error *err)
{
    struct fields scaling;
    const char *type = "default";
    if (fields_object(root, key, FIELD_OPTIONAL, &scaling, err) != 0)
        return -1;
    if (scaling.object && (fields_string(&scaling, "type", FIELD_OPTIONAL, &type, err) != 0 ||
                           fields_string(&scaling, "rope_type", FIELD_OPTIONAL, &type, err) != 0))
        return -1;
    if (strcmp(type, "default") != 0)
        return error_set(
            err, ERROR_UNSUPPORTED,
            "%s: scaled rotary embeddings are not supported: expected \"default\", got "
            "\"%.40s\"",
            scaling.place, type);
    return 0;
}

/* Version 5 writes rope_parameters {rope_theta, partial_rotary_factor}, version 4 rotary_emb_base
 * and rotary_pct; the former wins, as it does there. */
static int parse_rope(const struct fields *root, struct mixer_config *mixer, struct error *err)
{
    struct fields rope;
    mixer->rotary_pct = 0.25;
    mixer->mixer.position =
        (struct position){.kind = POSITION_ROPE, .base = 10000, .pairing = ROPE_PAIRING_HALF};
    double *base = &mixer->mixer.position.base;
    if (parse_scaling(root, "rope_scaling", err) != 0 ||
        parse_scaling(root, "rope_parameters", err) != 0 ||
        fields_double(root, "rotary_emb_base", FIELD_OPTIONAL, 1, 1e12, base, err) != 0 ||
        fields_double(root, "rotary_pct", FIELD_OPTIONAL, 0, 1, &mixer->rotary_pct, err) != 0 ||
        fields_object(root, "rope_parameters", FIELD_OPTIONAL, &rope, err) != 0)
        return -1;
    if (!rope.object)
        return 0;
    if (fields_double(&rope, "rope_theta", FIELD_OPTIONAL, 1, 1e12, base, err) != 0)
        return -1;
    return fields_double(&rope, "partial_rotary_factor", FIELD_OPTIONAL, 0, 1, &mixer->rotary_pct,
                         err);
}

static int parse_sizes(struct config *config, const struct fields *root, struct error *err)
{
    if (config_sizes(config, root, "num_attention_heads", err) != 0 ||
        fields_int(root, "intermediate_size", FIELD_REQUIRED, 1, CONFIG_MAX_INTERMEDIATE,
                   &config->intermediate_size, err) != 0 ||
        fields_int(root, "max_position_embeddings", FIELD_OPTIONAL, 1, INT32_MAX,
                   &config->max_position_embeddings, err) != 0)
        return -1;
    if (config->hidden_size % config->num_heads != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: hidden_size: expected a multiple of num_attention_heads (%lld), got "
                         "%lld",
                         root->place, (long long)config->num_heads, (long long)config->hidden_size);
    return 0;
}

/* Defaults are those of transformers' GPTNeoXConfig, for keys its files may leave out. */
int family_gpt_neox_parse(struct config *config, const struct fields *root, struct error *err)
{
    struct mixer_config mixer = {.mixer = {.kind = MIXER_SOFTMAX}};
    double eps = 1e-5;
    int activation = 0;
    config->parallel_residual = true;
    if (parse_sizes(config, root, err) != 0 || parse_rope(root, &mixer, err) != 0 ||
        fields_choice(root, "hidden_act", FIELD_OPTIONAL, activations, NUM_ACTIVATIONS, &activation,
                      err) != 0 ||
        fields_double(root, "layer_norm_eps", FIELD_OPTIONAL, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "use_parallel_residual", FIELD_OPTIONAL, &config->parallel_residual,
                    err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_OPTIONAL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    config->hidden_act = activation_of[activation];
    config->norm_kind = NORM_LAYERNORM;
    config->norm_eps = (float)eps;
    return config_single_mixer(config, "softmax", &mixer, err);
}

/* query_key_value is [H, 3, d] rows high; q, k and v each become [H, d] in the arena. */
static int split_matrix(struct weights *weights, const struct matrix *fused, int num_heads,
                        struct matrix *const parts[3], struct error *err)
{
    size_t rows = (size_t)fused->rows / 3;
    size_t head_bytes = rows / (size_t)num_heads * (size_t)fused->cols * dtype_bytes(fused->dtype);
    for (int part = 0; part < 3; part++) {
        unsigned char *data = arena_alloc(weights->arena, (size_t)num_heads, head_bytes, err);
        float *bias = fused->bias ? arena_alloc(weights->arena, rows, sizeof *bias, err) : NULL;
        if (!data || (fused->bias && !bias))
            return -1;
        for (size_t h = 0; h < (size_t)num_heads; h++)
            memcpy(data + h * head_bytes,
                   (const unsigned char *)fused->data + (3 * h + (size_t)part) * head_bytes,
                   head_bytes);
        size_t head_dim = rows / (size_t)num_heads;
        for (size_t r = 0; bias && r < rows; r++)
            bias[r] = fused->bias[(3 * (r / head_dim) + (size_t)part) * head_dim + r % head_dim];
        *parts[part] = (struct matrix){.rows = (int64_t)rows,
                                       .cols = fused->cols,
                                       .dtype = fused->dtype,
                                       .data = data,
                                       .bias = bias};
    }
    return 0;
}

static int bind_attention(struct weights *weights, const struct model *model, int i,
                          const struct mixer_config *template, struct mixer *mixer,
                          struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t hidden = model->hidden_size;
    struct matrix fused;
    struct matrix *const parts[3] = {&mixer->q_proj, &mixer->k_proj, &mixer->v_proj};
    if (weights_linear(weights,
                       weights_name(name, "gpt_neox.layers.%d.attention.query_key_value", i),
                       3 * hidden, hidden, true, &fused, err) != 0 ||
        split_matrix(weights, &fused, mixer->num_heads, parts, err) != 0)
        return -1;
    mixer->head_dim = mixer->value_dim = (int)(hidden / mixer->num_heads);
    mixer->features = mixer->features_positioned = mixer->head_dim;
    mixer->position.rotary_dims = (int)(mixer->head_dim * template->rotary_pct) / 2 * 2;
    return weights_linear(weights, weights_name(name, "gpt_neox.layers.%d.attention.dense", i),
                          hidden, hidden, true, &mixer->o_proj, err);
}

static int bind_layer(struct model *model, const struct config *config, struct weights *weights,
                      int i, struct error *err)
{
    struct layer *layer = &model->layers[i];
    char name[WEIGHT_NAME_SIZE];
    int64_t hidden = model->hidden_size, inner = model->intermediate_size;
    layer->attn_norm = layer->mlp_norm =
        (struct norm){.kind = config->norm_kind, .eps = config->norm_eps};
    layer->mixer = config->mixers[0].mixer;
    layer->mixer.num_heads = layer->mixer.num_kv_heads = (int)config->num_heads;
    if (weights_norm(weights, weights_name(name, "gpt_neox.layers.%d.input_layernorm", i), hidden,
                     &layer->attn_norm, err) != 0 ||
        weights_norm(weights, weights_name(name, "gpt_neox.layers.%d.post_attention_layernorm", i),
                     hidden, &layer->mlp_norm, err) != 0 ||
        bind_attention(weights, model, i, &config->mixers[0], &layer->mixer, err) != 0 ||
        weights_linear(weights, weights_name(name, "gpt_neox.layers.%d.mlp.dense_h_to_4h", i),
                       inner, hidden, true, &layer->up_proj, err) != 0)
        return -1;
    return weights_linear(weights, weights_name(name, "gpt_neox.layers.%d.mlp.dense_4h_to_h", i),
                          hidden, inner, true, &layer->down_proj, err);
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

/* Causal masks and frequencies, which old versions saved beside the weights. */
static void ignore_buffers(struct weights *weights)
{
    static const char *const ends[] = {".attention.bias", ".masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < safetensors_count(weights->file); i++) {
        struct tensor *tensor = safetensors_at(weights->file, i);
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++)
            if (ends_with(tensor->name, ends[e]))
                weights_ignore(tensor);
    }
}

int family_gpt_neox_bind(struct model *model, const struct config *config, struct weights *weights,
                         struct error *err)
{
    model->final_norm = (struct norm){.kind = config->norm_kind, .eps = config->norm_eps};
    ignore_buffers(weights);
    if (weights_matrix(weights, "gpt_neox.embed_in.weight", model->vocab_size, model->hidden_size,
                       &model->embeddings, err) != 0 ||
        weights_norm(weights, "gpt_neox.final_layer_norm", model->hidden_size, &model->final_norm,
                     err) != 0)
        return -1;
    /* version 5 calls it lm_head in memory, and writes either name */
    const char *head = weights_has(weights, "lm_head.weight") ? "lm_head" : "embed_out";
    if (model->tied)
        model->lm_head = model->embeddings;
    else if (weights_linear(weights, head, model->vocab_size, model->hidden_size, true,
                            &model->lm_head, err) != 0)
        return -1;
    for (int i = 0; i < model->num_layers; i++)
        if (bind_layer(model, config, weights, i, err) != 0)
            return -1;
    return 0;
}
