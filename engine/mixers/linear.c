/* Linear mixers: feature map, gate and position around the one row recurrence. */
#include "engine/mixers/mixer.h"

int mixer_linear_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    const struct state_part part = {
        .kind = STATE_PART_RECURRENT,
        .layer = context->layer,
        .heads = config->num_heads,
        .rows = config->value_dim + (config->sum_norm ? 1 : 0),
        .features = config->features_positioned,
        .head_bytes =
            ops_recurrent_bytes(config->value_dim, config->sum_norm, config->features_positioned),
    };
    bool before =
        config->position.kind == POSITION_ROPE && config->position.stage == ROPE_STAGE_BEFORE;
    int dim = before ? config->head_dim : config->features;
    mixer_widen(&context->widths.position, (int64_t)config->num_heads * config->head_dim);
    mixer_widen(&context->widths.position,
                (int64_t)config->num_heads * config->features_positioned);
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
    struct rows q = mixer_columns(workspace->project, layer->q_at);
    struct rows k = mixer_columns(workspace->project, layer->k_at);
    bool rotates = mixer_position_rotates(layer);
    bool before = rotates && config->position.kind == POSITION_ROPE &&
                  config->position.stage == ROPE_STAGE_BEFORE;
    int heads[2] = {config->num_heads, config->num_kv_heads};
    struct rows *sides[2] = {&q, &k};
    struct rows positions[2] = {workspace->position_q, workspace->position_k};
    struct rows phi[2] = {workspace->phi_q, workspace->phi_k};
    for (int i = 0; i < 2; i++) {
        if (before) {
            mixer_position_run(layer, ops, backend, workspace, heads[i], *sides[i], positions[i]);
            *sides[i] = positions[i];
        }
        mixer_features_run(layer, ops, backend, workspace, num_rows, i == 1, *sides[i], phi[i]);
        *sides[i] = phi[i];
        if (rotates && !before) {
            mixer_position_run(layer, ops, backend, workspace, heads[i], *sides[i], positions[i]);
            *sides[i] = positions[i];
        }
    }
    struct ops_recurrence recurrence = {
        .num_heads = config->num_heads,
        .num_kv_heads = config->num_kv_heads,
        .value_dim = config->value_dim,
        .features = config->features_positioned,
        .gate_features = config->features,
        .sum_norm = config->sum_norm,
        .q = q,
        .k = k,
        .v = mixer_columns(workspace->project, layer->v_at),
        .h = workspace->h,
        .state_offset = layer->state_offset,
    };
    if (formula_is_exponential(config->feature_map))
        recurrence.rescale = workspace->rescale;
    mixer_gate_run(layer, ops, backend, workspace, num_rows, &recurrence);
    ops->recurrence(backend, &recurrence);
}
