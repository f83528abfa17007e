/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/family_regla.h"

#include "engine/model/position_tables.h"

#include <stdio.h>

enum { MAX_FEATURES = 1 << 20 };

/* One layer's mixer being bound. */
struct binder {
    struct weights *weights;
    const struct model *model;
    struct mixer *mixer;
    double rotary_pct;
    char prefix[48]; /* "model.layers.3.attn" */
};

static int bind_linear(struct binder *b, const char *name, int64_t rows, struct matrix *matrix,
                       struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    return weights_linear(b->weights, weights_name(full, "%s.%s", b->prefix, name), rows,
                          b->model->hidden_size, true, matrix, err);
}

static int64_t head_rows(const struct binder *b, int size)
{
    return (int64_t)b->mixer->num_heads * size;
}

/* name.weight has the rows of all heads: *size becomes one head's. */
static int split_heads(const struct binder *b, const char *name, int64_t rows, int *size,
                       struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    if (rows % b->mixer->num_heads != 0 || rows > INT32_MAX)
        return weights_bad(b->weights, weights_name(full, "%s.%s.weight", b->prefix, name), err,
                           "expected a height that %d heads divide, got %lld", b->mixer->num_heads,
                           (long long)rows);
    *size = (int)(rows / b->mixer->num_heads);
    return 0;
}

static int bind_projections(struct binder *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    char full[WEIGHT_NAME_SIZE];
    if (bind_linear(b, "q_proj", WEIGHT_ANY, &mixer->q_proj, err) != 0 ||
        split_heads(b, "q_proj", mixer->q_proj.rows, &mixer->head_dim, err) != 0 ||
        bind_linear(b, "k_proj", mixer->q_proj.rows, &mixer->k_proj, err) != 0 ||
        bind_linear(b, "v_proj", WEIGHT_ANY, &mixer->v_proj, err) != 0 ||
        split_heads(b, "v_proj", mixer->v_proj.rows, &mixer->value_dim, err) != 0)
        return -1;
    return weights_linear(b->weights, weights_name(full, "%s.o_proj", b->prefix),
                          b->model->hidden_size, mixer->v_proj.rows, true, &mixer->o_proj, err);
}

/* W of favor and cos_sin: [H, rows, d]. */
static int bind_random_features(struct binder *b, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    int64_t shape[3] = {b->mixer->num_heads, WEIGHT_ANY, b->mixer->head_dim};
    if (weights_floats(b->weights, weights_name(full, "%s.features.weight", b->prefix), 3, shape,
                       &b->mixer->feature_weight, err) != 0)
        return -1;
    if (shape[1] > MAX_FEATURES)
        return weights_bad(b->weights, full, err, "expected at most %d rows, got %lld",
                           MAX_FEATURES, (long long)shape[1]);
    b->mixer->feature_rows = (int)shape[1];
    return 0;
}

static int bind_hedgehog(struct binder *b, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    int64_t shape[3] = {b->mixer->num_heads, b->mixer->head_dim, b->mixer->head_dim};
    if (weights_floats(b->weights, weights_name(full, "%s.feature_q.weight", b->prefix), 3, shape,
                       &b->mixer->feature_q, err) != 0)
        return -1;
    return weights_floats(b->weights, weights_name(full, "%s.feature_k.weight", b->prefix), 3,
                          shape, &b->mixer->feature_k, err);
}

/* The feature map's tensors and m, the size of what it makes. */
static int bind_features(struct binder *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    int64_t features = mixer->head_dim;
    switch (mixer->kind == MIXER_SOFTMAX ? FEATURE_IDENTITY : mixer->feature_map) {
    case FEATURE_FAVOR:
    case FEATURE_COS_SIN:
        if (bind_random_features(b, err) != 0)
            return -1;
        features = (int64_t)mixer->feature_rows * (mixer->feature_map == FEATURE_COS_SIN ? 2 : 1);
        break;
    case FEATURE_HEDGEHOG:
        if (bind_hedgehog(b, err) != 0)
            return -1;
        features = 2 * features;
        break;
    case FEATURE_DPFP:
        features = 2 * features * mixer->dpfp_nu;
        break;
    default:
        break;
    }
    if (features > MAX_FEATURES)
        return error_set(err, ERROR_INVALID, "%s: expected at most %d features a head, got %lld",
                         b->prefix, MAX_FEATURES, (long long)features);
    mixer->features = (int)features;
    return 0;
}

static int bind_gla_gate(struct binder *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    char full[WEIGHT_NAME_SIZE];
    if (weights_linear(b->weights, weights_name(full, "%s.gk_proj.0", b->prefix), WEIGHT_ANY,
                       b->model->hidden_size, false, &mixer->gk_proj_0, err) != 0)
        return -1;
    return weights_linear(b->weights, weights_name(full, "%s.gk_proj.1", b->prefix),
                          head_rows(b, mixer->features), mixer->gk_proj_0.rows, true,
                          &mixer->gk_proj_1, err);
}

static int bind_gate(struct binder *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    switch (mixer->gate) {
    case GATE_SCALAR:
        return bind_linear(b, "g_proj", mixer->num_heads, &mixer->g_proj, err);
    case GATE_FAST_DECAY:
        if (bind_linear(b, "z_proj", mixer->v_proj.rows, &mixer->z_proj, err) != 0)
            return -1;
        return bind_linear(b, "f_proj", head_rows(b, mixer->features), &mixer->f_proj, err);
    case GATE_REFINED:
        if (bind_linear(b, "g_proj", mixer->v_proj.rows, &mixer->g_proj, err) != 0)
            return -1;
        return bind_linear(b, "r_proj", mixer->v_proj.rows, &mixer->r_proj, err);
    case GATE_GLA:
        return bind_gla_gate(b, err);
    case GATE_DELTA:
        return bind_linear(b, "b_proj", mixer->num_heads, &mixer->b_proj, err);
    case GATE_NONE:
        break;
    }
    return 0;
}

static int bind_mixer(struct binder *b, struct error *err)
{
    struct mixer *mixer = b->mixer;
    char full[WEIGHT_NAME_SIZE];
    if (bind_projections(b, err) != 0 || bind_features(b, err) != 0 ||
        (mixer->kind == MIXER_LINEAR && bind_gate(b, err) != 0) ||
        position_tables_bind(b->weights, mixer, b->prefix, b->rotary_pct, err) != 0)
        return -1;
    const int64_t norm_size =
        mixer->output_norm_scope == NORM_SCOPE_HEAD ? mixer->value_dim : mixer->v_proj.rows;
    if (weights_norm(b->weights, weights_name(full, "%s.out_norm", b->prefix), norm_size,
                     &mixer->output_norm, err) != 0)
        return -1;
    if (mixer->output_gate == OUTPUT_GATE_NONE)
        return 0;
    return bind_linear(b, "out_gate_proj", mixer->v_proj.rows, &mixer->out_gate_proj, err);
}

static int bind_mlp(struct weights *weights, const struct model *model, int i, struct layer *layer,
                    struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t hidden = model->hidden_size, inner = model->intermediate_size;
    if (weights_has(weights, weights_name(name, "model.layers.%d.mlp.gate_proj.weight", i)) &&
        weights_linear(weights, weights_name(name, "model.layers.%d.mlp.gate_proj", i), inner,
                       hidden, true, &layer->gate_proj, err) != 0)
        return -1;
    if (weights_linear(weights, weights_name(name, "model.layers.%d.mlp.up_proj", i), inner, hidden,
                       true, &layer->up_proj, err) != 0)
        return -1;
    return weights_linear(weights, weights_name(name, "model.layers.%d.mlp.down_proj", i), hidden,
                          inner, true, &layer->down_proj, err);
}

static int bind_layer(struct model *model, const struct config *config, struct weights *weights,
                      int i, struct error *err)
{
    struct layer *layer = &model->layers[i];
    const struct mixer_config *mixer = &config->mixers[config->layer_mixers[i]];
    char name[WEIGHT_NAME_SIZE];
    struct norm norm = {.kind = config->norm_kind, .eps = config->norm_eps};
    layer->attn_norm = layer->mlp_norm = norm;
    layer->mixer = mixer->mixer;
    layer->mixer.num_heads = layer->mixer.num_kv_heads = (int)config->num_heads;
    struct binder binder = {.weights = weights,
                            .model = model,
                            .mixer = &layer->mixer,
                            .rotary_pct = mixer->rotary_pct};
    snprintf(binder.prefix, sizeof binder.prefix, "model.layers.%d.attn", i);
    if (weights_norm(weights, weights_name(name, "model.layers.%d.attn_norm", i),
                     model->hidden_size, &layer->attn_norm, err) != 0 ||
        weights_norm(weights, weights_name(name, "model.layers.%d.mlp_norm", i), model->hidden_size,
                     &layer->mlp_norm, err) != 0 ||
        bind_mixer(&binder, err) != 0)
        return -1;
    return bind_mlp(weights, model, i, layer, err);
}

int family_regla_bind(struct model *model, const struct config *config, struct weights *weights,
                      struct error *err)
{
    struct norm norm = {.kind = config->norm_kind, .eps = config->norm_eps};
    if (weights_matrix(weights, "model.embeddings.weight", model->vocab_size, model->hidden_size,
                       &model->embeddings, err) != 0)
        return -1;
    if (config->position_embedding == POSITION_EMBEDDING_LEARNED &&
        weights_matrix(weights, "model.position_embeddings.weight", config->max_position_embeddings,
                       model->hidden_size, &model->position_embeddings, err) != 0)
        return -1;
    if (config->embedding_norm)
        model->embedding_norm = norm;
    model->final_norm = norm;
    if (weights_norm(weights, "model.embedding_norm", model->hidden_size, &model->embedding_norm,
                     err) != 0 ||
        weights_norm(weights, "model.norm", model->hidden_size, &model->final_norm, err) != 0)
        return -1;
    if (model->tied)
        model->lm_head = model->embeddings;
    else if (weights_linear(weights, "lm_head", model->vocab_size, model->hidden_size, true,
                            &model->lm_head, err) != 0)
        return -1;
    for (int i = 0; i < model->num_layers; i++)
        if (bind_layer(model, config, weights, i, err) != 0)
            return -1;
    return 0;
}
