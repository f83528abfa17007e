/* Gates: which projections each has, and how a, f, b, g of the row recurrence come from them.
 * A new gate is a case in each of the functions here and its formula in engine/formulas.h. */
#include "engine/mixers/mixer.h"

/* The projections of x that the gate needs, as parts of the layer's one projection. */
int mixer_gate_parts(const struct mixer *config, const struct matrix *parts[2])
{
    switch (config->gate) {
    case GATE_NONE:
        return 0;
    case GATE_SCALAR:
        parts[0] = &config->g_proj;
        return 1;
    case GATE_FAST_DECAY:
        parts[0] = &config->z_proj;
        parts[1] = &config->f_proj;
        return 2;
    case GATE_REFINED:
        parts[0] = &config->g_proj;
        parts[1] = &config->r_proj;
        return 2;
    case GATE_GLA:
        parts[0] = &config->gk_proj_0;
        return 1;
    case GATE_DELTA:
        parts[0] = &config->b_proj;
        return 1;
    }
    return 0;
}

int mixer_gate_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    struct mixer_widths *widths = &context->widths;
    mixer_widen(&widths->row_gate, (int64_t)config->num_heads * config->value_dim);
    mixer_widen(&widths->feature_gate, (int64_t)config->num_kv_heads * config->features);
    mixer_widen(&widths->head_gate, config->num_heads);
    if (config->gate != GATE_GLA)
        return 0;
    mixer_widen(&widths->low_rank, config->gk_proj_1.rows);
    if (context->ops->weight_create(context->backend, &layer->low_rank, &config->gk_proj_1, 1, 1,
                                    err) != 0)
        return -1;
    context->weights_bytes += context->ops->weight_bytes(layer->low_rank);
    return 0;
}

struct gate_call {
    const struct ops *ops;
    struct backend *backend;
    int num_rows;
};

static void map(const struct gate_call *call, enum formula formula, int num_cols, struct rows u,
                struct rows w, float constant, struct rows out)
{
    call->ops->map(call->backend, &(struct ops_map){.formula = formula,
                                                    .constant = constant,
                                                    .num_rows = call->num_rows,
                                                    .num_cols = num_cols,
                                                    .out = out,
                                                    .u = u,
                                                    .w = w});
}

void mixer_gate_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
                    struct mixer_workspace *workspace, int num_rows,
                    struct ops_recurrence *recurrence)
{
    const struct mixer *config = layer->config;
    const struct gate_call call = {ops, backend, num_rows};
    const struct rows none = {NULL, 0};
    struct rows u = mixer_columns(workspace->project, layer->gate_at);
    struct rows w = mixer_columns(workspace->project, layer->gate2_at);
    int heads = config->num_heads, rows = heads * config->value_dim;
    int features = config->num_kv_heads * config->features;

    switch (config->gate) {
    case GATE_NONE:
        break;
    case GATE_SCALAR: /* RFA: a = g, b = 1 - g */
        map(&call, FORMULA_SIGMOID, heads, u, none, 0.0f, workspace->row_gate);
        map(&call, FORMULA_ONE_MINUS_SIGMOID, heads, u, none, 0.0f, workspace->input_scale);
        recurrence->row_decay = workspace->row_gate;
        recurrence->row_decay_per_head = true;
        recurrence->input_scale = workspace->input_scale;
        break;
    case GATE_FAST_DECAY: /* ReGLA eq. 9-10: a = z, f = f */
        map(&call, FORMULA_SIGMOID, rows, u, none, 0.0f, workspace->row_gate);
        map(&call, FORMULA_SIGMOID, features, w, none, 0.0f, workspace->feature_gate);
        recurrence->row_decay = workspace->row_gate;
        recurrence->feature_decay = workspace->feature_gate;
        break;
    case GATE_REFINED: /* ReGLA eq. 15-18: a = F */
        map(&call, FORMULA_REFINED_GATE, rows, u, w, 0.0f, workspace->row_gate);
        recurrence->row_decay = workspace->row_gate;
        break;
    case GATE_GLA: /* f = alpha; the projection is of low rank */
        ops->matmul(backend, &(struct ops_matmul){.weight = layer->low_rank,
                                                  .num_rows = num_rows,
                                                  .x = u,
                                                  .y = workspace->low_rank});
        map(&call, FORMULA_GLA_GATE, features, workspace->low_rank, none,
            config->gate_logit_normalizer, workspace->feature_gate);
        recurrence->feature_decay = workspace->feature_gate;
        break;
    case GATE_DELTA: /* b = g = beta */
        map(&call, FORMULA_SIGMOID, heads, u, none, 0.0f, workspace->input_scale);
        recurrence->input_scale = workspace->input_scale;
        recurrence->delta = workspace->input_scale;
        break;
    }
}
