/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax (and ReLA) attention: positions and biases around the backend's one attention.
 *
 * A layer may attend to another one's keys and values (keys_of). In pages it writes the step's once
 * more where that one has them, the same numbers; a ring that has gone on is no use, so it has its
 * own. */
#include "engine/mixers/mixer.h"

#include <math.h>
#include <stdlib.h>

/* Lays the layer's keys and values into the pages, or into a ring of W in the slot. Returns their
 * offset. */
static size_t place_keys(const struct mixer_build *mixer, enum kv_format kv)
{
    const struct mixer *config = mixer->config;
    const bool full = window_has(config->window, KEEPS_ALL_KEYS);
    const size_t tiles = full ? 1 : ((size_t)config->window_size + OPS_TILE - 1) / OPS_TILE;
    struct state_part part = {
        .kind = full ? STATE_PART_KV : STATE_PART_RING,
        .heads = config->num_kv_heads,
        .rows = config->values_in_keys ? 0 : config->value_dim,
        .features = config->features_positioned,
        .window = full ? 0 : config->window_size,
        .places = OPS_TILE,
    };
    if (__builtin_mul_overflow(tiles, ops_tile_bytes(part.features, part.rows, kv),
                               &part.head_bytes)) {
        error_set(&mixer->emitter->error, ERROR_INVALID, "window_size: %d is too large",
                  config->window_size);
        return 0;
    }
    return emitter_state(mixer->emitter, part);
}

/* The number of distances with a bias of their own in a table; 0: there is no table. */
static int table_distances(const struct position *position)
{
    return position->kind == POSITION_T5 ? FORMULA_T5_DISTANCES : position->distances;
}

/* The bias of each head by distance, [H, distances]; NULL: there is no table. */
static float *upload_table(const struct mixer_build *mixer)
{
    const struct position *position = &mixer->config->position;
    const size_t heads = (size_t)mixer->config->num_heads;
    const size_t distances = (size_t)table_distances(position);
    const size_t bytes = heads * distances * sizeof(float);
    if (distances == 0)
        return NULL;
    float *table = malloc(bytes);
    if (table == NULL) {
        emitter_no_memory(mixer->emitter, "biases by distance");
        return NULL;
    }
    for (size_t h = 0; h < heads; h++)
        for (size_t distance = 0; distance < distances; distance++)
            table[h * distances + distance] =
                position->kind == POSITION_T5
                    ? position->bucket_bias[(size_t)formula_t5_bucket((int)distance) * heads + h]
                    : position->distance_bias[distance * heads + h];
    float *device = emitter_upload(mixer->emitter, table, bytes);
    free(table);
    return device;
}

/* [H]; NULL: there is no bias. */
static const struct formula_bias *upload_biases(const struct mixer_build *mixer)
{
    const struct position *position = &mixer->config->position;
    const size_t heads = (size_t)mixer->config->num_heads;
    const int distances = table_distances(position);
    if (!position_does(position->kind, BIASES) && distances == 0)
        return NULL;
    const float *table = upload_table(mixer);
    struct formula_bias *biases = calloc(heads, sizeof *biases);
    if (biases == NULL) {
        emitter_no_memory(mixer->emitter, "position biases");
        return NULL;
    }
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
        if (table != NULL)
            bias->table = table + h * (size_t)distances;
        bias->distances = distances;
    }
    const void *device = emitter_upload(mixer->emitter, biases, heads * sizeof *biases);
    free(biases);
    return device;
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

/* Where the layer's keys and values are, or are to be. */
static size_t find_keys(const struct mixer_build *mixer, enum kv_format kv)
{
    const struct mixer *config = mixer->config;
    const bool lent = config->keys_of > 0 && window_has(config->window, KEEPS_ALL_KEYS);
    if (emitter_failed(mixer->emitter))
        return 0;
    return lent ? mixer->emitter->keys[config->keys_of - 1].offset : place_keys(mixer, kv);
}

/* Takes the keys and values of another layer, or lends its own. */
static void share_keys(const struct mixer_build *mixer, size_t offset, struct mixer_inputs *inputs)
{
    struct emitter *emitter = mixer->emitter;
    const int of = mixer->config->keys_of;
    if (emitter_failed(emitter))
        return;
    if (of == 0) {
        emitter->keys[emitter->layer] = (struct emitter_keys){inputs->k, inputs->v, offset};
        return;
    }
    inputs->k = emitter->keys[of - 1].k;
    inputs->v = emitter->keys[of - 1].v;
}

void mixer_softmax_emit(const struct mixer_build *mixer)
{
    const struct mixer *config = mixer->config;
    struct mixer_inputs inputs = mixer_inputs_emit(mixer);
    /* a slot is f32 all of it */
    const enum kv_format kv =
        window_has(config->window, KEEPS_ALL_KEYS) ? mixer->emitter->options->kv : KV_F32;
    const size_t offset = find_keys(mixer, kv);
    struct ops_segments segments;
    if (mixer_position_rotates(config)) {
        const struct ops_positions position = mixer_position_prepare(mixer, config->head_dim);
        mixer_position_emit(mixer, &position, &inputs.q, &inputs.k);
    }
    const bool has_segments = window_has(config->window, HAS_SEGMENTS);
    if (has_segments)
        segments = mixer_segments_emit(mixer, &inputs.k, &inputs.v);
    share_keys(mixer, offset, &inputs);
    emitter_attention(mixer->emitter, &(struct ops_attention){
                                          .num_heads = config->num_heads,
                                          .num_kv_heads = config->num_kv_heads,
                                          .key_dim = config->features_positioned,
                                          .value_dim = config->value_dim,
                                          .values_in_keys = config->values_in_keys,
                                          .scale = score_scale(config),
                                          .softcap = config->score_softcap,
                                          .activation = config->activation,
                                          .window = config->window,
                                          .window_size = config->window_size,
                                          .kv = kv,
                                          .bias = bias_kind(&config->position),
                                          .biases = upload_biases(mixer),
                                          .sinks = emitter_upload(mixer->emitter, config->sinks,
                                                                  (size_t)config->num_heads *
                                                                      sizeof *config->sinks),
                                          .q = inputs.q,
                                          .k = inputs.k,
                                          .v = inputs.v,
                                          .h = mixer->h,
                                          .offset = offset,
                                          .segments = has_segments ? &segments : NULL,
                                      });
}
