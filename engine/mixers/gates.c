/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: how a, f, b, delta of the recurrence come from their projections. A new gate is a case in
 * mixer_gate_emit and its formula in engine/ops/formulas.h. */
#include "engine/mixers/mixer.h"

#include <assert.h>
#include <math.h>

/* What softplus makes `limit` of; e^limit itself may be too large. */
static float before_softplus(float limit)
{
    return (float)((double)limit + log(-expm1(-(double)limit)));
}

/* How much of a key's value is overwritten: 1 is all of it, 2 the opposite of it. */
static struct ops_factor beta_of(const struct mixer *config, struct rows u)
{
    return config->beta_max == 0
               ? (struct ops_factor){FORMULA_SIGMOID, .u = u}
               : (struct ops_factor){FORMULA_SCALED_SIGMOID, config->beta_max, .u = u};
}

/* dt's columns as softplus expects them: scaled, and inside its limits. */
static void emit_dt(const struct mixer_build *mixer, struct rows u)
{
    struct emitter *emitter = mixer->emitter;
    const struct mixer *config = mixer->config;
    const struct offset_scale *own = &config->gate_scale;
    const float least = before_softplus(config->dt_least), most = before_softplus(config->dt_most);
    const int64_t columns = config->num_heads + config->out_gate_proj.rows;
    struct ops_map map = {.formula = FORMULA_IDENTITY, .num_cols = (int)columns, .out = u, .u = u};
    if (own->weight != NULL) {
        const struct mixer_scale scale =
            mixer_scale_upload(emitter, own->weight, own->bias, (size_t)columns);
        assert(config->out_gate_proj.rows == 0 ||
               mixer->at.out_gate_proj == mixer->at.dt_proj + config->num_heads);
        map.weight = scale.weight;
        map.bias = scale.bias;
        emitter_map(emitter, &map);
    }
    map.weight = map.bias = NULL;
    map.num_cols = config->num_heads;
    map.formula = FORMULA_AT_LEAST;
    map.constant = least;
    if (!isinf(least))
        emitter_map(emitter, &map);
    map.formula = FORMULA_AT_MOST;
    map.constant = most;
    if (!isinf(most))
        emitter_map(emitter, &map);
}

/* gla's projection, of low rank. */
static struct rows emit_low_rank(const struct mixer_build *mixer)
{
    struct emitter *emitter = mixer->emitter;
    const struct matrix *matrix = &mixer->config->gk_proj_1;
    const struct rows out = emitter_rows(emitter, matrix->rows);
    emitter_product(emitter, mixer_pack(emitter, mixer->config, MATRIX_INNER),
                    &(struct ops_matmul){.x = mixer_project(mixer, mixer->at.gk_proj_0), .y = out});
    return out;
}

/* HGRN2: f and k of the same projection, q through silu. */
static void emit_forget(const struct mixer_build *mixer, struct ops_recurrence *recurrence)
{
    struct emitter *emitter = mixer->emitter;
    const struct mixer *config = mixer->config;
    const int columns = config->num_heads * config->features;
    const struct mixer_scale least =
        mixer_scale_upload(emitter, config->decay, NULL, (size_t)columns);
    const struct rows u = recurrence->k, w = {least.weight, 0};
    recurrence->feature_decay = (struct ops_factor){FORMULA_FORGET, .u = u, .w = w};
    recurrence->k = emitter_rows(emitter, columns);
    emitter_map(emitter, &(struct ops_map){.formula = FORMULA_INPUT_SHARE,
                                           .num_cols = columns,
                                           .out = recurrence->k,
                                           .u = u,
                                           .w = w});
    emitter_map(emitter, &(struct ops_map){.formula = FORMULA_SILU,
                                           .num_cols = columns,
                                           .out = recurrence->q,
                                           .u = recurrence->q});
}

/* KDA's f, of a projection of low rank. */
static void emit_kda(const struct mixer_build *mixer, struct ops_recurrence *recurrence)
{
    const struct mixer *config = mixer->config;
    const struct mixer_scale decay = mixer_scale_upload(
        mixer->emitter, config->decay, NULL, (size_t)config->num_heads * config->features);
    recurrence->feature_decay = (struct ops_factor){
        config->decay_bound != 0 ? FORMULA_BOUNDED_DECAY : FORMULA_SOFTPLUS_DECAY,
        config->decay_bound,
        .u = emit_low_rank(mixer),
        .w = {decay.weight, 0},
    };
    recurrence->input_scale = recurrence->delta =
        beta_of(config, mixer_project(mixer, mixer->at.b_proj));
}

/* RWKV-7's kappa, of unit length, and kappa sigmoid(write_proj x), each in its columns. */
static void emit_erase(const struct mixer_build *mixer, struct ops_recurrence *recurrence)
{
    const int heads = mixer_key_heads(mixer->config), features = mixer->config->features;
    const struct rows erase = mixer_project(mixer, mixer->at.erase_proj);
    const struct rows write = mixer_project(mixer, mixer->at.write_proj);
    emitter_norm(mixer->emitter, &(struct ops_norm){.kind = NORM_L2,
                                                    .eps = 1e-6f,
                                                    .groups = heads,
                                                    .size = features,
                                                    .x = erase,
                                                    .y = erase});
    emitter_norm(mixer->emitter, &(struct ops_norm){.kind = NORM_NONE,
                                                    .groups = 1,
                                                    .size = heads * features,
                                                    .x = erase,
                                                    .y = write,
                                                    .formula = FORMULA_SIGMOID,
                                                    .gate = write});
    recurrence->erase = erase;
    recurrence->write = write;
}

void mixer_gate_emit(const struct mixer_build *mixer, struct ops_recurrence *recurrence)
{
    const struct mixer *config = mixer->config;
    const union mixer_at *at = &mixer->at;
    const bool by_head = !(gate_does(config->gate) & DECAYS_FEATURES);
    const struct mixer_scale heads = mixer_scale_upload(
        mixer->emitter, by_head ? config->decay : NULL, config->skip, (size_t)config->num_heads);
    struct rows u;
    switch (config->gate) {
    case GATE_NONE:
        break;
    case GATE_SCALAR: /* RFA: a = g, b = 1 - g */
        u = mixer_project(mixer, at->g_proj);
        recurrence->row_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        recurrence->row_decay_per_head = true;
        recurrence->input_scale = (struct ops_factor){FORMULA_ONE_MINUS_SIGMOID, .u = u};
        break;
    case GATE_FAST_DECAY: /* ReGLA eq. 9-10: a = z, f = f */
        u = mixer_project(mixer, at->z_proj);
        recurrence->row_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        u = mixer_project(mixer, at->f_proj);
        recurrence->feature_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        break;
    case GATE_REFINED: /* ReGLA eq. 15-18: a = F */
        u = mixer_project(mixer, at->g_proj);
        recurrence->row_decay = (struct ops_factor){FORMULA_REFINED_GATE, .u = u,
                                                    .w = mixer_project(mixer, at->r_proj)};
        break;
    case GATE_GLA: /* f = alpha; the projection is of low rank */
        u = emit_low_rank(mixer);
        recurrence->feature_decay =
            (struct ops_factor){FORMULA_GLA_GATE, config->gate_logit_normalizer, .u = u};
        break;
    case GATE_GATED_DELTA: /* and a */
        u = mixer_project(mixer, at->a_proj);
        recurrence->row_decay =
            (struct ops_factor){FORMULA_SOFTPLUS_DECAY, .u = u, .w = {heads.weight, 0}};
        recurrence->row_decay_per_head = true;
        u = mixer_project(mixer, at->b_proj);
        recurrence->input_scale = recurrence->delta = beta_of(config, u);
        break;
    case GATE_DELTA: /* b = delta = beta */
        u = mixer_project(mixer, at->b_proj);
        recurrence->input_scale = recurrence->delta = beta_of(config, u);
        break;
    case GATE_MAMBA2: /* b = dt, a = e^(-dt decay) */
        u = mixer_project(mixer, at->dt_proj);
        emit_dt(mixer, u);
        recurrence->row_decay =
            (struct ops_factor){FORMULA_SOFTPLUS_DECAY, .u = u, .w = {heads.weight, 0}};
        recurrence->row_decay_per_head = true;
        recurrence->input_scale = (struct ops_factor){FORMULA_SOFTPLUS, .u = u};
        recurrence->skip = heads.bias;
        break;
    case GATE_FIXED: /* a */
        recurrence->row_decay = (struct ops_factor){FORMULA_IDENTITY, .u = {heads.weight, 0}};
        recurrence->row_decay_per_head = true;
        break;
    case GATE_HGRN2: /* f, and k = 1 - f */
        emit_forget(mixer, recurrence);
        break;
    case GATE_KDA: /* f, b = delta = beta */
        emit_kda(mixer, recurrence);
        break;
    case GATE_RWKV7:
        u = mixer_project(mixer, at->f_proj);
        recurrence->feature_decay = (struct ops_factor){FORMULA_RWKV7_DECAY, .u = u};
        emit_erase(mixer, recurrence);
        break;
    }
}
