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
static bool turns_before(const struct mixer_layer *layer)
{
    const struct position *position = &layer->config->position;
    return position->kind == POSITION_ROPE && position->stage == ROPE_STAGE_BEFORE;
}

int mixer_features_create(struct mixer_layer *layer, struct mixer_context *context,
                          struct error *err)
{
    const struct mixer *config = layer->config;
    mixer_widen(&context->widths.mapped, (int64_t)config->num_heads * map_rows(config));
    const struct state_part maxima = {
        .kind = STATE_PART_MAXIMA,
        .layer = context->layer,
        .heads = mixer_key_heads(config),
        .rows = 1,
        .features = 1,
        .head_bytes = sizeof(float),
    };
    if (map_rows(config) > 0 && turns_before(layer))
        mixer_widen(&context->widths.turned,
                    (int64_t)(config->num_heads + config->num_kv_heads) * config->head_dim);
    if (formula_is_exponential(config->feature_map))
        mixer_widen(&context->widths.maxima, mixer_key_heads(config));
    if (formula_is_exponential(config->feature_map) &&
        state_layout_add(&context->layout, maxima, &layer->maxima_offset, err) != 0)
        return -1;
    if (map_rows(config) == 0)
        return 0;
    const int heads = config->num_heads;
    if (mixer_pack(context, &layer->feature_q, &config->feature_q, 1, heads, err) != 0)
        return -1;
    layer->feature_k = layer->feature_q;
    if (config->feature_k.data == config->feature_q.data)
        return 0;
    return mixer_pack(context, &layer->feature_k, &config->feature_k, 1, heads, err);
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
static void run_matrix(const struct mixer_layer *layer, const struct ops *ops,
                       struct backend *backend, struct mixer_workspace *workspace, int num_rows,
                       struct ops_recurrence *recurrence)
{
    if (turns_before(layer))
        mixer_position_run(layer, ops, backend, workspace, &recurrence->q, &recurrence->k);
    ops->matmul(backend, &(struct ops_matmul){.weight = layer->feature_q,
                                              .num_rows = num_rows,
                                              .x = recurrence->q,
                                              .y = workspace->mapped_q});
    ops->matmul(backend, &(struct ops_matmul){.weight = layer->feature_k,
                                              .num_rows = num_rows,
                                              .x = recurrence->k,
                                              .y = workspace->mapped_k});
}

void mixer_features_run(const struct mixer_layer *layer, const struct ops *ops,
                        struct backend *backend, struct mixer_workspace *workspace, int num_rows,
                        struct ops_positions *position, struct ops_recurrence *recurrence)
{
    const struct mixer *config = layer->config;
    bool rotates = mixer_position_rotates(layer), has_matrix = layer->feature_q != NULL;
    if (rotates)
        *position = mixer_position_prepare(layer, ops, backend, workspace);
    recurrence->phi = (struct ops_features){
        .map = config->feature_map,
        .query_scale = query_factor(config),
        .head_dim = config->head_dim,
        .feature_rows = map_rows(config),
        .features = config->features,
        .dpfp_nu = config->dpfp_nu,
        .before = rotates && turns_before(layer) && !has_matrix ? position : NULL,
        .after = rotates && !turns_before(layer) ? position : NULL,
        .maxima = workspace->maxima,
        .maxima_offset = layer->maxima_offset,
    };
    if (has_matrix) {
        run_matrix(layer, ops, backend, workspace, num_rows, recurrence);
        recurrence->phi.y_q = workspace->mapped_q;
        recurrence->phi.y_k = workspace->mapped_k;
    }
}
