/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/family_gla.h"

/* Options that would change what is computed, and that we do not compute. */
static int refuse_options(const struct fields *root, struct error *err)
{
    static const char *const absent[] = {"attn", "clamp_min", "attnres_block_size"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (fields_has(root, absent[i]))
            return error_set(err, ERROR_UNSUPPORTED,
                             "%s: %s: expected null, got %s (not supported)", root->place,
                             absent[i], fields_kind(json_object_get(root->object, absent[i])));
    bool convolution = false;
    if (fields_bool(root, "use_short_conv", FIELD_OPTIONAL, &convolution, err) != 0)
        return -1;
    if (convolution)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: use_short_conv: expected false, got true (not supported)",
                         root->place);
    return 0;
}

/* fla/modules/mlp.py: a multiple of 256, about 2/3 of hidden_size * hidden_ratio. */
static int parse_intermediate(struct config *config, const struct fields *root, struct error *err)
{
    int64_t ratio = 4;
    if (fields_int(root, "hidden_ratio", FIELD_OPTIONAL, 1, 1024, &ratio, err) != 0)
        return -1;
    int64_t inner = (int64_t)((double)(config->hidden_size * ratio * 2) / 3);
    config->intermediate_size = (inner + 255) / 256 * 256;
    return fields_int(root, "intermediate_size", FIELD_OPTIONAL, 1, CONFIG_MAX_INTERMEDIATE,
                      &config->intermediate_size, err);
}

static int check_heads(const struct config *config, const struct fields *root, struct error *err)
{
    const struct {
        const char *what;
        int64_t value, divisor;
    } rules[] = {
        {"int(hidden_size * expand_k), a multiple of num_heads", config->key_dim,
         config->num_heads},
        {"int(hidden_size * expand_v), a multiple of num_heads", config->value_dim,
         config->num_heads},
        {"num_heads, a multiple of num_kv_heads", config->num_heads, config->num_kv_heads},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].value < 1 || rules[i].value % rules[i].divisor != 0)
            return error_set(err, ERROR_INVALID, "%s: expected %s (%lld), got %lld", root->place,
                             rules[i].what, (long long)rules[i].divisor, (long long)rules[i].value);
    return 0;
}

static int parse_sizes(struct config *config, const struct fields *root, struct error *err)
{
    double expand_k = 0.5, expand_v = 1;
    if (config_sizes(config, root, "num_heads", err) != 0 ||
        fields_double(root, "expand_k", FIELD_OPTIONAL, 0, 64, &expand_k, err) != 0 ||
        fields_double(root, "expand_v", FIELD_OPTIONAL, 0, 64, &expand_v, err) != 0)
        return -1;
    config->num_kv_heads = config->num_heads;
    config->key_dim = (int64_t)((double)config->hidden_size * expand_k);
    config->value_dim = (int64_t)((double)config->hidden_size * expand_v);
    if (fields_int(root, "num_kv_heads", FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &config->num_kv_heads,
                   err) != 0 ||
        fields_int(root, "max_position_embeddings", FIELD_OPTIONAL, 1, INT32_MAX,
                   &config->max_position_embeddings, err) != 0 ||
        parse_intermediate(config, root, err) != 0)
        return -1;
    return check_heads(config, root, err);
}

/* The layer of fla/layers/gla.py in our terms: identity or relu features, the gla gate, q scaled
 * by 1/sqrt(d) inside the kernel, a norm per head, then swish(g_proj x). */
static int parse_mixer(const struct fields *root, struct mixer_config *out, struct error *err)
{
    static const char *const maps[] = {"identity", "relu"};
    struct mixer *mixer = &out->mixer;
    int map = FEATURE_IDENTITY;
    double normalizer = 16;
    bool output_gate = true;
    if (fields_choice(root, "feature_map", FIELD_OPTIONAL, maps, 2, &map, err) != 0 ||
        fields_double(root, "gate_logit_normalizer", FIELD_OPTIONAL, 1e-6, 1e9, &normalizer, err) !=
            0 ||
        fields_bool(root, "use_output_gate", FIELD_OPTIONAL, &output_gate, err) != 0)
        return -1;
    mixer->kind = MIXER_LINEAR;
    mixer->feature_map = map;
    mixer->gate = GATE_GLA;
    mixer->gate_logit_normalizer = (float)normalizer;
    mixer->query_scale = QUERY_SCALE_SQRT_DIM;
    mixer->dpfp_nu = 1;
    mixer->position.base = 10000;
    mixer->output_norm.kind = NORM_RMSNORM;
    mixer->output_gate = output_gate ? OUTPUT_GATE_SWISH : OUTPUT_GATE_NONE;
    return 0;
}

/* Defaults are those of fla's GLAConfig, for keys its files may leave out. */
int family_gla_parse(struct config *config, const struct fields *root, struct error *err)
{
    static const char *const activations[] = {"swish", "silu"};
    struct mixer_config mixer = {0};
    double eps = 1e-6;
    int activation = 0;
    config->elementwise_affine = true;
    if (refuse_options(root, err) != 0 || parse_sizes(config, root, err) != 0 ||
        parse_mixer(root, &mixer, err) != 0 ||
        fields_choice(root, "hidden_act", FIELD_OPTIONAL, activations, 2, &activation, err) != 0 ||
        fields_double(root, "norm_eps", FIELD_OPTIONAL, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "elementwise_affine", FIELD_OPTIONAL, &config->elementwise_affine, err) !=
            0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_OPTIONAL, &config->tied, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    config->hidden_act = ACT_SILU;
    config->norm_kind = NORM_RMSNORM;
    config->norm_eps = (float)eps;
    mixer.mixer.output_norm.eps = config->norm_eps;
    return config_single_mixer(config, "gla", &mixer, err);
}

/* The norm after the recurrence, whose name says whether fla fused it with the gate. Without
 * elementwise_affine it has no parameters: a weight of ones. */
static int bind_output_norm(struct weights *weights, const struct config *config, int i,
                            struct mixer *mixer, struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    if (config->elementwise_affine) {
        weights_name(name, "model.layers.%d.attn.g_norm_swish_gate.weight", i);
        const char *norm = weights_has(weights, name) ? "g_norm_swish_gate" : "g_norm";
        return weights_norm(weights, weights_name(name, "model.layers.%d.attn.%s", i, norm),
                            mixer->value_dim, &mixer->output_norm, err);
    }
    float *ones = arena_alloc(weights->arena, (size_t)mixer->value_dim, sizeof *ones, err);
    if (!ones)
        return -1;
    for (int j = 0; j < mixer->value_dim; j++)
        ones[j] = 1;
    mixer->output_norm.weight = ones;
    return 0;
}

static int bind_attention(struct weights *weights, const struct config *config, int i,
                          struct mixer *mixer, struct error *err)
{
    int64_t hidden = config->hidden_size, groups = config->num_heads / config->num_kv_heads;
    int64_t keys = config->key_dim / groups, values = config->value_dim / groups;
    const struct {
        const char *name;
        int64_t rows, cols;
        bool bias;
        struct matrix *matrix;
    } linears[] = {
        {"q_proj", config->key_dim, hidden, false, &mixer->q_proj},
        {"k_proj", keys, hidden, false, &mixer->k_proj},
        {"v_proj", values, hidden, false, &mixer->v_proj},
        {"o_proj", hidden, config->value_dim, false, &mixer->o_proj},
        {"gk_proj.0", WEIGHT_ANY, hidden, false, &mixer->gk_proj_0},
        {"gk_proj.1", keys, WEIGHT_ANY, true, &mixer->gk_proj_1},
        {"g_proj", config->value_dim, hidden, false, &mixer->out_gate_proj},
    };
    size_t count = sizeof linears / sizeof *linears - (mixer->output_gate == OUTPUT_GATE_NONE);
    for (size_t l = 0; l < count; l++) {
        char name[WEIGHT_NAME_SIZE];
        int64_t cols = linears[l].cols == WEIGHT_ANY ? mixer->gk_proj_0.rows : linears[l].cols;
        weights_name(name, "model.layers.%d.attn.%s", i, linears[l].name);
        if (weights_linear(weights, name, linears[l].rows, cols, linears[l].bias, linears[l].matrix,
                           err) != 0)
            return -1;
    }
    mixer->num_heads = (int)config->num_heads;
    mixer->num_kv_heads = (int)config->num_kv_heads;
    mixer->head_dim = (int)(config->key_dim / config->num_heads);
    mixer->value_dim = (int)(config->value_dim / config->num_heads);
    mixer->features = mixer->features_positioned = mixer->head_dim;
    return bind_output_norm(weights, config, i, mixer, err);
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
    if (weights_norm(weights, weights_name(name, "model.layers.%d.attn_norm", i), hidden,
                     &layer->attn_norm, err) != 0 ||
        weights_norm(weights, weights_name(name, "model.layers.%d.mlp_norm", i), hidden,
                     &layer->mlp_norm, err) != 0 ||
        bind_attention(weights, config, i, &layer->mixer, err) != 0 ||
        weights_linear(weights, weights_name(name, "model.layers.%d.mlp.gate_proj", i), inner,
                       hidden, false, &layer->gate_proj, err) != 0 ||
        weights_linear(weights, weights_name(name, "model.layers.%d.mlp.up_proj", i), inner, hidden,
                       false, &layer->up_proj, err) != 0)
        return -1;
    return weights_linear(weights, weights_name(name, "model.layers.%d.mlp.down_proj", i), hidden,
                          inner, false, &layer->down_proj, err);
}

int family_gla_bind(struct model *model, const struct config *config, struct weights *weights,
                    struct error *err)
{
    model->final_norm = (struct norm){.kind = config->norm_kind, .eps = config->norm_eps};
    if (weights_matrix(weights, "model.embeddings.weight", model->vocab_size, model->hidden_size,
                       &model->embeddings, err) != 0 ||
        weights_norm(weights, "model.norm", model->hidden_size, &model->final_norm, err) != 0)
        return -1;
    if (model->tied)
        model->lm_head = model->embeddings;
    else if (weights_matrix(weights, "lm_head.weight", model->vocab_size, model->hidden_size,
                            &model->lm_head, err) != 0)
        return -1;
    for (int i = 0; i < model->num_layers; i++)
        if (bind_layer(model, config, weights, i, err) != 0)
            return -1;
    return 0;
}
