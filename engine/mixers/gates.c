/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: how a, f, b, delta of the recurrence come from their projections. A new gate is a case in
 * mixer_gate_run and its formula in engine/ops/formulas.h. */
#include "engine/mixers/mixer.h"

#include <assert.h>
#include <math.h>

/* What softplus makes `limit` of; e^limit itself may be too large. */
static float before_softplus(float limit)
{
    return (float)((double)limit + log(-expm1(-(double)limit)));
}

static int create_mamba2(struct mixer_layer *layer, struct mixer_context *context,
                         struct error *err)
{
    const struct mixer *config = layer->config;
    const struct offset_scale *scale = &config->gate_scale;
    const int64_t columns = config->num_heads + config->out_gate_proj.rows;
    layer->dt_least = before_softplus(config->dt_least);
    layer->dt_most = before_softplus(config->dt_most);
    return mixer_scale_upload(context, scale->weight, scale->bias, (size_t)columns,
                              &layer->gate_scale, err);
}

int mixer_gate_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    if (mixer_scale_upload(context, config->decay, config->skip, (size_t)config->num_heads,
                           &layer->heads, err) != 0)
        return -1;
    if (config->gate == GATE_MAMBA2)
        return create_mamba2(layer, context, err);
    if (config->gate != GATE_GLA)
        return 0;
    mixer_widen(&context->widths.low_rank, config->gk_proj_1.rows);
    return mixer_pack(context, &layer->low_rank, &config->gk_proj_1, 1, 1, err);
}

/* How much of a key's value is overwritten: 1 is all of it, 2 the opposite of it. */
static struct ops_factor beta_of(const struct mixer *config, struct rows u)
{
    return config->beta_max == 0
               ? (struct ops_factor){FORMULA_SIGMOID, .u = u}
               : (struct ops_factor){FORMULA_SCALED_SIGMOID, config->beta_max, .u = u};
}

void mixer_gate_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend)
{
    mixer_scale_unload(&layer->heads, ops, backend);
    mixer_scale_unload(&layer->gate_scale, ops, backend);
}

/* dt's columns as softplus expects them: scaled, and inside its limits. */
static void prepare_dt(const struct mixer_layer *layer, const struct ops *ops,
                       struct backend *backend, int num_rows, struct rows u)
{
    const struct mixer *config = layer->config;
    struct ops_map map = {.formula = FORMULA_IDENTITY,
                          .num_rows = num_rows,
                          .num_cols = config->num_heads + (int)config->out_gate_proj.rows,
                          .out = u,
                          .u = u,
                          .weight = layer->gate_scale.weight,
                          .bias = layer->gate_scale.bias};
    if (map.weight != NULL) {
        assert(config->out_gate_proj.rows == 0 ||
               layer->at.out_gate_proj == layer->at.dt_proj + config->num_heads);
        ops->map(backend, &map);
    }
    map.weight = map.bias = NULL;
    map.num_cols = config->num_heads;
    map.formula = FORMULA_AT_LEAST;
    map.constant = layer->dt_least;
    if (!isinf(layer->dt_least))
        ops->map(backend, &map);
    map.formula = FORMULA_AT_MOST;
    map.constant = layer->dt_most;
    if (!isinf(layer->dt_most))
        ops->map(backend, &map);
}

void mixer_gate_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
                    struct mixer_workspace *workspace, int num_rows,
                    struct ops_recurrence *recurrence)
{
    const struct mixer *config = layer->config;
    const union mixer_at *at = &layer->at;
    struct rows u;
    switch (config->gate) {
    case GATE_NONE:
        break;
    case GATE_SCALAR: /* RFA: a = g, b = 1 - g */
        u = mixer_columns(workspace->project, at->g_proj);
        recurrence->row_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        recurrence->row_decay_per_head = true;
        recurrence->input_scale = (struct ops_factor){FORMULA_ONE_MINUS_SIGMOID, .u = u};
        break;
    case GATE_FAST_DECAY: /* ReGLA eq. 9-10: a = z, f = f */
        u = mixer_columns(workspace->project, at->z_proj);
        recurrence->row_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        u = mixer_columns(workspace->project, at->f_proj);
        recurrence->feature_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        break;
    case GATE_REFINED: /* ReGLA eq. 15-18: a = F */
        u = mixer_columns(workspace->project, at->g_proj);
        recurrence->row_decay = (struct ops_factor){
            FORMULA_REFINED_GATE, .u = u, .w = mixer_columns(workspace->project, at->r_proj)};
        break;
    case GATE_GLA: /* f = alpha; the projection is of low rank */
        ops->matmul(backend,
                    &(struct ops_matmul){.weight = layer->low_rank,
                                         .num_rows = num_rows,
                                         .x = mixer_columns(workspace->project, at->gk_proj_0),
                                         .y = workspace->low_rank});
        recurrence->feature_decay = (struct ops_factor){
            FORMULA_GLA_GATE, config->gate_logit_normalizer, .u = workspace->low_rank};
        break;
    case GATE_GATED_DELTA: /* and a */
        u = mixer_columns(workspace->project, at->a_proj);
        recurrence->row_decay =
            (struct ops_factor){FORMULA_SOFTPLUS_DECAY, .u = u, .w = {layer->heads.weight, 0}};
        recurrence->row_decay_per_head = true;
        u = mixer_columns(workspace->project, at->b_proj);
        recurrence->input_scale = recurrence->delta = beta_of(config, u);
        break;
    case GATE_DELTA: /* b = delta = beta */
        u = mixer_columns(workspace->project, at->b_proj);
        recurrence->input_scale = recurrence->delta = beta_of(config, u);
        break;
    case GATE_MAMBA2: /* b = dt, a = e^(-dt decay) */
        u = mixer_columns(workspace->project, at->dt_proj);
        prepare_dt(layer, ops, backend, num_rows, u);
        recurrence->row_decay =
            (struct ops_factor){FORMULA_SOFTPLUS_DECAY, .u = u, .w = {layer->heads.weight, 0}};
        recurrence->row_decay_per_head = true;
        recurrence->input_scale = (struct ops_factor){FORMULA_SOFTPLUS, .u = u};
        recurrence->skip = layer->heads.bias;
        break;
    }
}
