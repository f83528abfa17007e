/* SPDX-License-Identifier: Apache-2.0 */
/* Pythia / GPT-NeoX, as `transformers` 4 and 5 save GPTNeoXForCausalLM. */
#include "engine/model/blocks.h"
#include "engine/model/family.h"

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
static int parse(struct config *config, const struct fields *root, struct error *err)
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

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    struct mixer *mixer = block->mixer;
    int64_t hidden = block->config->hidden_size;
    struct matrix fused = {0};
    struct matrix *const parts[3] = {&mixer->q_proj, &mixer->k_proj, &mixer->v_proj};
    const struct block_matrix matrices[] = {
        {"query_key_value", 3 * hidden, hidden, true, &fused},
        {"dense", hidden, hidden, true, &mixer->o_proj},
    };
    if (blocks_bind_matrices(block, matrices, 2, err) != 0 ||
        split_matrix(block->weights, &fused, mixer->num_heads, parts, err) != 0)
        return -1;
    mixer->head_dim = mixer->value_dim = (int)(hidden / mixer->num_heads);
    mixer->features = mixer->features_positioned = mixer->head_dim;
    mixer->position.rotary_dims = (int)(mixer->head_dim * block->rotary_pct) / 2 * 2;
    return 0;
}

static void list_mixer(struct random_list *list, const char *prefix, const struct mixer *mixer)
{
    const int64_t hidden = list->config->hidden_size;
    (void)mixer;
    random_list_linear(list, prefix, "query_key_value", 3 * hidden, hidden, 0);
    random_list_output(list, prefix, "dense", hidden, hidden);
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

static const struct block_names names = {.root = "gpt_neox",
                                         .embeddings = "embed_in",
                                         .final_norm = "final_layer_norm",
                                         .attn_norm = "input_layernorm",
                                         .mixer = "attention",
                                         .mlp_norm = "post_attention_layernorm",
                                         .up_proj = "mlp.dense_h_to_4h",
                                         .down_proj = "mlp.dense_4h_to_h",
                                         .lm_head = "embed_out",
                                         .biased = true};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    struct block_names found = names;
    ignore_buffers(weights);
    if (weights_has(weights, "lm_head.weight")) /* version 5 writes either name */
        found.lm_head = "lm_head";
    return blocks_bind(model, config, weights, &found, bind_mixer, err);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, list_mixer);
}

const struct family family_gpt_neox = {
    .name = "gpt_neox", .parse = parse, .bind = bind, .random = list_random};
