/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: which projections each has, and how a, f, b, delta of the recurrence come from them.
 * A new gate is a case in each of the functions here and its formula in engine/ops/formulas.h. */
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
    case GATE_GATED_DELTA:
        parts[0] = &config->b_proj;
        parts[1] = &config->a_proj;
        return 2;
    }
    return 0;
}

int mixer_gate_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    if (config->decay != NULL) {
        void *device = NULL;
        const size_t bytes = (size_t)config->num_heads * sizeof(float);
        if (context->ops->upload(context->backend, config->decay, bytes, &device, err) != 0)
            return -1;
        layer->decay = device;
    }
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

void mixer_gate_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
                    struct mixer_workspace *workspace, int num_rows,
                    struct ops_recurrence *recurrence)
{
    const struct mixer *config = layer->config;
    struct rows u = mixer_columns(workspace->project, layer->gate_at);
    struct rows w = mixer_columns(workspace->project, layer->gate2_at);
    switch (config->gate) {
    case GATE_NONE:
        break;
    case GATE_SCALAR: /* RFA: a = g, b = 1 - g */
        recurrence->row_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        recurrence->row_decay_per_head = true;
        recurrence->input_scale = (struct ops_factor){FORMULA_ONE_MINUS_SIGMOID, .u = u};
        break;
    case GATE_FAST_DECAY: /* ReGLA eq. 9-10: a = z, f = f */
        recurrence->row_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        recurrence->feature_decay = (struct ops_factor){FORMULA_SIGMOID, .u = w};
        break;
    case GATE_REFINED: /* ReGLA eq. 15-18: a = F */
        recurrence->row_decay = (struct ops_factor){FORMULA_REFINED_GATE, .u = u, .w = w};
        break;
    case GATE_GLA: /* f = alpha; the projection is of low rank */
        ops->matmul(backend, &(struct ops_matmul){.weight = layer->low_rank,
                                                  .num_rows = num_rows,
                                                  .x = u,
                                                  .y = workspace->low_rank});
        recurrence->feature_decay = (struct ops_factor){
            FORMULA_GLA_GATE, config->gate_logit_normalizer, .u = workspace->low_rank};
        break;
    case GATE_GATED_DELTA: /* and a */
        recurrence->row_decay =
            (struct ops_factor){FORMULA_SOFTPLUS_DECAY, .u = w, .w = {layer->decay, 0}};
        recurrence->row_decay_per_head = true;
        recurrence->input_scale = recurrence->delta = beta_of(config, u);
        break;
    case GATE_DELTA: /* b = delta = beta */
        recurrence->input_scale = recurrence->delta = beta_of(config, u);
        break;
    }
}
