/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax (and ReLA) attention: positions and biases around the backend's one attention. */
#include "engine/mixers/mixer.h"

#include <math.h>
#include <stdlib.h>

/* Lays the layer's keys and values into the pages, or into a ring of W in the slot. */
static int place_keys(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    bool full = config->window == WINDOW_FULL;
    size_t tiles = full ? 1 : ((size_t)config->window_size + OPS_TILE - 1) / OPS_TILE;
    layer->kv = full ? context->layout.kv : KV_F32; /* a slot is f32 all of it */
    struct state_part part = {
        .kind = full ? STATE_PART_KV : STATE_PART_RING,
        .layer = context->layer,
        .heads = config->num_kv_heads,
        .rows = config->value_dim,
        .features = config->features_positioned,
        .window = full ? 0 : config->window_size,
        .places = OPS_TILE,
    };
    if (__builtin_mul_overflow(tiles, ops_tile_bytes(part.features, part.rows, layer->kv),
                               &part.head_bytes))
        return error_set(err, ERROR_INVALID, "window_size: %d is too large", config->window_size);
    return state_layout_add(&context->layout, part, &layer->state_offset, err);
}

static bool has_bias(enum position_kind kind)
{
#define IS_KIND(value) || kind == value
    return false FORMULA_BIASES(IS_KIND);
#undef IS_KIND
}

/* The number of distances with a bias of their own in a table; 0: there is no table. */
static int table_distances(const struct position *position)
{
    return position->kind == POSITION_T5 ? FORMULA_T5_DISTANCES : position->distances;
}

/* The bias of each head by distance, [H, distances]. */
static int upload_table(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    const struct position *position = &config->position;
    size_t heads = (size_t)config->num_heads, distances = (size_t)table_distances(position);
    size_t bytes = heads * distances * sizeof(float);
    float *table = malloc(bytes);
    if (table == NULL)
        return error_set(err, ERROR_NO_MEMORY, "biases by distance: no memory");
    for (size_t h = 0; h < heads; h++)
        for (size_t distance = 0; distance < distances; distance++)
            table[h * distances + distance] =
                position->kind == POSITION_T5
                    ? position->bucket_bias[(size_t)formula_t5_bucket((int)distance) * heads + h]
                    : position->distance_bias[distance * heads + h];
    void *device = NULL;
    int result = context->ops->upload(context->backend, table, bytes, &device, err);
    layer->bias_table = device;
    free(table);
    return result;
}

static int create_biases(struct mixer_layer *layer, struct mixer_context *context,
                         struct error *err)
{
    const struct position *position = &layer->config->position;
    const int distances = table_distances(position);
    if (!has_bias(position->kind) && distances == 0)
        return 0;
    if (distances > 0 && upload_table(layer, context, err) != 0)
        return -1;
    size_t heads = (size_t)layer->config->num_heads;
    struct formula_bias *biases = calloc(heads, sizeof *biases);
    if (biases == NULL)
        return error_set(err, ERROR_NO_MEMORY, "position biases: no memory");
    for (size_t h = 0; h < heads; h++) {
        struct formula_bias *bias = &biases[h];
        if (position->kind == POSITION_ALIBI)
            bias->r1 = position->slopes[h];
        if (position->r1 != NULL)
            bias->r1 = position->r1[h];
        if (position->r2 != NULL)
            bias->r2 = position->r2[h];
        if (position->r3 != NULL)
            bias->r3 = position->r3[h];
        if (position->r4 != NULL)
            bias->r4 = position->r4[h];
        if (layer->bias_table != NULL)
            bias->table = layer->bias_table + h * (size_t)distances;
        bias->distances = distances;
    }
    void *device = NULL;
    int result =
        context->ops->upload(context->backend, biases, heads * sizeof *biases, &device, err);
    layer->biases = device;
    free(biases);
    return result;
}

int mixer_softmax_create(struct mixer_layer *layer, struct mixer_context *context,
                         struct error *err)
{
    const struct mixer *config = layer->config;
    mixer_widen(&context->widths.turned,
                (int64_t)(config->num_heads + config->num_kv_heads) * config->features_positioned);
    if (config->features_positioned > context->max_key_dim)
        context->max_key_dim = config->features_positioned;
    if (config->value_dim > context->max_softmax_value_dim)
        context->max_softmax_value_dim = config->value_dim;
    mixer_widen(&context->max_keys,
                config->window == WINDOW_FULL ? INT64_MAX : config->window_size);
    if (place_keys(layer, context, err) != 0 || create_biases(layer, context, err) != 0)
        return -1;
    if (config->window == WINDOW_LONG_SHORT && mixer_segments_create(layer, context, err) != 0)
        return -1;
    return mixer_position_create(layer, context, config->head_dim, err);
}

static float score_scale(const struct mixer *config)
{
    if (config->activation == SOFTMAX_ACT_RELU2)
        return (float)(1.0 / config->score_divisor);
    if (config->score_scale > 0)
        return config->score_scale;
    return (float)(1.0 / sqrt((double)config->head_dim));
}

/* A table by distance is a table, whatever it was made of. */
static enum position_kind bias_kind(const struct position *position)
{
    return position->distances > 0 ? POSITION_T5 : position->kind;
}

void mixer_softmax_run(const struct mixer_layer *layer, const struct ops *ops,
                       struct backend *backend, struct mixer_workspace *workspace, int num_rows)
{
    const struct mixer *config = layer->config;
    struct mixer_inputs inputs = mixer_inputs_run(layer, ops, backend, workspace, num_rows);
    struct ops_segments segments;
    if (mixer_position_rotates(layer))
        mixer_position_run(layer, ops, backend, workspace, &inputs.q, &inputs.k);
    if (layer->segments != NULL)
        segments =
            mixer_segments_run(layer, ops, backend, workspace, num_rows, &inputs.k, &inputs.v);
    ops->attention(backend, &(struct ops_attention){
                                .num_heads = config->num_heads,
                                .num_kv_heads = config->num_kv_heads,
                                .key_dim = config->features_positioned,
                                .value_dim = config->value_dim,
                                .scale = score_scale(config),
                                .softcap = config->score_softcap,
                                .activation = config->activation,
                                .window = config->window,
                                .window_size = config->window_size,
                                .kv = layer->kv,
                                .bias = bias_kind(&config->position),
                                .biases = layer->biases,
                                .q = inputs.q,
                                .k = inputs.k,
                                .v = inputs.v,
                                .h = mixer_columns(workspace->h, layer->h_at),
                                .offset = layer->state_offset,
                                .segments = layer->segments == NULL ? NULL : &segments,
                            });
}
