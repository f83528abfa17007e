/* SPDX-License-Identifier: Apache-2.0 */
/* Feature maps: the matrix some of them have, and where their maxima lie in a slot. The maps
 * themselves are formula_features in engine/ops/formulas.h, which the recurrence applies. */
#include "engine/mixers/mixer.h"

#include <math.h>

/* Height of a head's matrix W, 0 for the maps without one: the model's tensors say which it is. */
static int map_rows(const struct mixer *config)
{
    return (int)(config->feature_q.rows / config->num_heads);
}

/* Whether the position acts on q and k themselves. */
static bool turns_before(const struct mixer *config)
{
    const struct position *position = &config->position;
    return position->kind == POSITION_ROPE && position->stage == ROPE_STAGE_BEFORE;
}

/* The factor of phi(q), by `query_scale`, and 1/C of chunks. */
static float query_factor(const struct mixer *config)
{
    if (config->chunk_size > 0) /* without a query_scale */
        return (float)(1.0 / config->chunk_size);
    double m = config->features, e = exp(1.0);
    switch (config->query_scale) {
    case QUERY_SCALE_NONE:
        return 1.0f;
    case QUERY_SCALE_SQRT_DIM:
        return (float)(1.0 / sqrt(m));
    case QUERY_SCALE_EXP_VARIANCE: /* ReGLA section 3.1 */
        return (float)(1.0 / (e * sqrt(m * (e * e - 1.0))));
    }
    return 1.0f;
}

/* W z of q and k, turned first where the position acts before the map. */
static void emit_matrix(const struct mixer_build *mixer, const struct ops_positions *position,
                        struct ops_recurrence *recurrence)
{
    struct emitter *emitter = mixer->emitter;
    const struct mixer *config = mixer->config;
    const int heads = config->num_heads;
    const struct program_weight *q, *k;
    q = k = emitter_pack_heads(emitter, "feature_q", &config->feature_q, heads);
    if (config->feature_k.data != config->feature_q.data)
        k = emitter_pack_heads(emitter, "feature_k", &config->feature_k, heads);
    if (turns_before(config))
        mixer_position_emit(mixer, position, &recurrence->q, &recurrence->k);
    recurrence->phi.y_q = emitter_rows(emitter, (int64_t)heads * map_rows(config));
    recurrence->phi.y_k = emitter_rows(emitter, (int64_t)heads * map_rows(config));
    emitter_product(emitter, q, &(struct ops_matmul){.x = recurrence->q, .y = recurrence->phi.y_q});
    emitter_product(emitter, k, &(struct ops_matmul){.x = recurrence->k, .y = recurrence->phi.y_k});
}

/* The running maximum of exponential maps. */
static void emit_maxima(const struct mixer_build *mixer, struct ops_features *phi)
{
    const struct state_part maxima = {
        .kind = STATE_PART_MAXIMA,
        .heads = mixer_key_heads(mixer->config),
        .rows = 1,
        .features = 1,
        .head_bytes = sizeof(float),
    };
    phi->maxima = emitter_rows(mixer->emitter, maxima.heads);
    phi->maxima_offset = emitter_state(mixer->emitter, maxima);
}

void mixer_features_emit(const struct mixer_build *mixer, struct ops_positions *position,
                         struct ops_recurrence *recurrence)
{
    const struct mixer *config = mixer->config;
    const bool rotates = mixer_position_rotates(config), has_matrix = map_rows(config) > 0;
    const bool before = turns_before(config);
    if (rotates)
        *position = mixer_position_prepare(mixer, before ? config->head_dim : config->features);
    recurrence->phi = (struct ops_features){
        .map = config->feature_map,
        .query_scale = query_factor(config),
        .head_dim = config->head_dim,
        .feature_rows = map_rows(config),
        .features = config->features,
        .dpfp_nu = config->dpfp_nu,
        .before = rotates && before && !has_matrix ? position : NULL,
        .after = rotates && !before ? position : NULL,
    };
    if (formula_is_exponential(config->feature_map))
        emit_maxima(mixer, &recurrence->phi);
    if (has_matrix)
        emit_matrix(mixer, position, recurrence);
}
