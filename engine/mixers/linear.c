/* SPDX-License-Identifier: Apache-2.0 */
/* Linear mixers: what the one row recurrence needs of their feature map, gate and position. */
#include "engine/mixers/mixer.h"

int mixer_linear_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    const int features = ops_state_features(config->features_positioned, config->chunk_size);
    const struct state_part part = {
        .kind = STATE_PART_RECURRENT,
        .layer = context->layer,
        .heads = config->num_heads,
        .rows = config->value_dim + (config->sum_norm ? 1 : 0),
        .features = features,
        .head_bytes = ops_recurrent_bytes(config->value_dim, config->sum_norm, features),
    };
    bool before =
        config->position.kind == POSITION_ROPE && config->position.stage == ROPE_STAGE_BEFORE;
    int dim = before ? config->head_dim : config->features;
    if (config->head_dim > context->max_head_dim)
        context->max_head_dim = config->head_dim;
    if (features > context->max_features)
        context->max_features = features;
    if (config->features > context->max_features)
        context->max_features = config->features;
    if (config->num_heads > context->max_linear_heads)
        context->max_linear_heads = config->num_heads;
    size_t shared = (size_t)config->num_heads *
                    ((config->sum_norm ? part.head_bytes : 0) +
                     (formula_is_exponential(config->feature_map) ? sizeof(float) : 0));
    if (shared > context->max_shared_state)
        context->max_shared_state = shared;
    if (state_layout_add(&context->layout, part, &layer->state_offset, err) != 0 ||
        mixer_features_create(layer, context, err) != 0 ||
        mixer_gate_create(layer, context, err) != 0)
        return -1;
    return mixer_position_create(layer, context, dim, err);
}

void mixer_linear_run(const struct mixer_layer *layer, const struct ops *ops,
                      struct backend *backend, struct mixer_workspace *workspace, int num_rows)
{
    const struct mixer *config = layer->config;
    const struct mixer_inputs inputs = mixer_inputs_run(layer, ops, backend, workspace, num_rows);
    struct ops_positions position;
    struct ops_recurrence recurrence = {
        .num_heads = config->num_heads,
        .num_qk_heads = config->num_qk_heads,
        .num_kv_heads = config->num_kv_heads,
        .value_dim = config->value_dim,
        .features = config->features_positioned,
        .sum_norm = config->sum_norm,
        .chunk_size = config->chunk_size,
        .q = inputs.q,
        .k = inputs.k,
        .v = inputs.v,
        .h = mixer_columns(workspace->h, layer->h_at),
        .state_offset = layer->state_offset,
    };
    mixer_features_run(layer, ops, backend, workspace, num_rows, &position, &recurrence);
    mixer_gate_run(layer, ops, backend, workspace, num_rows, &recurrence);
    ops->recurrence(backend, &recurrence);
}
