/* SPDX-License-Identifier: Apache-2.0 */
/* RWKV-7 (Goose; Peng et al. 2025, and fla/layers/rwkv7.py of flash-linear-attention 0.6): each of
 * its matrices multiplies a mix of x and the token before by itself, most of them in two steps of
 * low rank. Its recurrence is that of the gate rwkv7; what follows h is the bonus, v times the sum
 * of r k over a head's features. */
#include "engine/mixers/mixer.h"

/* x, and that of the token before less it; the state is one row, whatever the number of mixes. */
struct mixes {
    const struct mixer_build *mixer;
    struct rows x, change;
};

static struct mixes emit_change(const struct mixer_build *mixer, const struct branch_ends *ends)
{
    struct emitter *emitter = mixer->emitter;
    const int size = emitter->model->hidden_size;
    struct mixes mixes = {mixer, ends->x, emitter_rows(emitter, size)};
    if (ends->norm != NULL) {
        mixes.x = ends->norm->y;
        emitter_norm(emitter, ends->norm);
    }
    emitter_map(emitter, &(struct ops_map){.num_cols = size, .out = mixes.change, .u = mixes.x});
    convolution_emit(emitter, &mixer->config->mixes->change, size, mixes.change);
    return mixes;
}

static void emit_sum(struct emitter *emitter, int64_t columns, struct rows out, struct rows u,
                     struct rows w)
{
    emitter_map(emitter,
                &(struct ops_map){
                    .formula = FORMULA_SUM, .num_cols = (int)columns, .out = out, .u = u, .w = w});
}

/* x + change * share */
static struct rows emit_mix(const struct mixes *mixes, enum token_mix which)
{
    struct emitter *emitter = mixes->mixer->emitter;
    const int size = emitter->model->hidden_size;
    const float *share = mixes->mixer->config->mixes->shares[which];
    const struct rows out = emitter_rows(emitter, size);
    emitter_map(
        emitter,
        &(struct ops_map){.num_cols = size,
                          .out = out,
                          .u = mixes->change,
                          .weight = mixer_scale_upload(emitter, share, NULL, (size_t)size).weight});
    emit_sum(emitter, size, out, mixes->x, out);
    return out;
}

/* One matrix by itself. */
static struct rows emit_product(struct emitter *emitter, const char *name,
                                const struct matrix *matrix, enum formula formula, struct rows x)
{
    const struct emitter_stack stack = {
        .parts = {*matrix}, .names = {name}, .count = 1, .width = matrix->rows};
    const struct rows out = emitter_rows(emitter, matrix->rows);
    emitter_product(emitter, emitter_pack(emitter, &stack),
                    &(struct ops_matmul){.x = x, .y = out, .activation = formula});
    return out;
}

#define EMIT_PRODUCT(mixer, field, formula, x) \
    emit_product((mixer)->emitter, #field, &(mixer)->config->field, formula, x)

/* out = sigmoid(gate) * x */
static void emit_gated(struct emitter *emitter, int columns, struct rows out, struct rows x,
                       struct rows gate)
{
    emitter_norm(emitter, &(struct ops_norm){.kind = NORM_NONE,
                                             .groups = 1,
                                             .size = columns,
                                             .x = x,
                                             .y = out,
                                             .formula = FORMULA_SIGMOID,
                                             .gate = gate});
}

/* The first layer's v as it is, and of later ones v + (the first's - v) * sigmoid(v_share(v_low
 * x)). */
static struct rows emit_values(const struct mixes *mixes)
{
    const struct mixer_build *mixer = mixes->mixer;
    struct emitter *emitter = mixer->emitter;
    const struct rows x = emit_mix(mixes, MIX_VALUE);
    const struct rows v = EMIT_PRODUCT(mixer, v_proj, FORMULA_IDENTITY, x);
    const int columns = (int)mixer->config->v_proj.rows;
    if (mixer->config->v_low.rows == 0) {
        emitter->first_values = v;
        return v;
    }
    const struct rows low = EMIT_PRODUCT(mixer, v_low, FORMULA_IDENTITY, x);
    const struct rows share = EMIT_PRODUCT(mixer, v_share, FORMULA_IDENTITY, low);
    const struct rows change = emitter_rows(emitter, columns);
    emitter_map(emitter, &(struct ops_map){.formula = FORMULA_SCALED_SUM,
                                           .constant = -1,
                                           .num_cols = columns,
                                           .out = change,
                                           .u = emitter->first_values,
                                           .w = v});
    emit_gated(emitter, columns, change, change, share);
    emit_sum(emitter, columns, v, v, change);
    return v;
}

/* Columns of k, times factors, plus offsets. */
static void emit_scaled(struct emitter *emitter, int columns, enum formula formula, struct rows out,
                        struct rows u, const float *weight, const float *bias)
{
    const struct mixer_scale scale = mixer_scale_upload(emitter, weight, bias, (size_t)columns);
    emitter_map(emitter, &(struct ops_map){.formula = formula,
                                           .num_cols = columns,
                                           .out = out,
                                           .u = u,
                                           .weight = scale.weight,
                                           .bias = scale.bias});
}

/* kappa and kappa alpha, of k and of alpha before its sigmoid; then k (1 + (alpha - 1) rate_scale)
 * in its place. */
static void emit_rates(const struct mixer_build *mixer, struct ops_recurrence *recurrence,
                       struct rows rate)
{
    struct emitter *emitter = mixer->emitter;
    const struct mixer *config = mixer->config;
    const struct token_mixes *mixes = config->mixes;
    const int columns = config->num_heads * config->head_dim;
    const struct rows k = recurrence->k, factor = emitter_rows(emitter, columns);
    recurrence->erase = emitter_rows(emitter, columns);
    recurrence->write = emitter_rows(emitter, columns);
    emit_scaled(emitter, columns, FORMULA_IDENTITY, recurrence->erase, k, mixes->erase_scale, NULL);
    emitter_norm(emitter, &(struct ops_norm){.kind = NORM_L2,
                                             .eps = config->k_norm.eps,
                                             .groups = config->num_heads,
                                             .size = config->head_dim,
                                             .x = recurrence->erase,
                                             .y = recurrence->erase});
    emit_gated(emitter, columns, recurrence->write, recurrence->erase, rate);
    emit_scaled(emitter, columns, FORMULA_SIGMOID, factor, rate, mixes->rate_scale,
                mixes->rate_rest);
    emitter_map(
        emitter,
        &(struct ops_map){
            .formula = FORMULA_PRODUCT, .num_cols = columns, .out = k, .u = k, .w = factor});
}

/* v times the sum over a head's features of r k bonus. */
static struct rows emit_bonus(const struct mixer_build *mixer,
                              const struct ops_recurrence *recurrence)
{
    struct emitter *emitter = mixer->emitter;
    const struct mixer *config = mixer->config;
    const int columns = config->num_heads * config->head_dim,
              values = config->num_heads * config->value_dim;
    const struct rows both = emitter_rows(emitter, columns), own = emitter_rows(emitter, values);
    const struct rows sums = emitter_rows(emitter, config->num_heads);
    emitter_map(emitter, &(struct ops_map){.formula = FORMULA_PRODUCT,
                                           .num_cols = columns,
                                           .out = both,
                                           .u = recurrence->q,
                                           .w = recurrence->k});
    emitter_product(emitter,
                    emitter_pack_heads(emitter, "bonus", &config->bonus, config->num_heads),
                    &(struct ops_matmul){.x = both, .y = sums});
    emitter_norm(emitter, &(struct ops_norm){.kind = NORM_NONE,
                                             .groups = config->num_heads,
                                             .size = config->value_dim,
                                             .x = recurrence->v,
                                             .y = own,
                                             .formula = FORMULA_IDENTITY,
                                             .gate = sums,
                                             .gate_of_group = true});
    return own;
}

struct mixer_output mixer_rwkv7_emit(struct mixer_build *mixer, const struct branch_ends *ends)
{
    struct emitter *emitter = mixer->emitter;
    const struct mixer *config = mixer->config;
    const int values = config->num_heads * config->value_dim;
    const struct mixes mixes = emit_change(mixer, ends);
    const struct rows r =
        EMIT_PRODUCT(mixer, q_proj, FORMULA_IDENTITY, emit_mix(&mixes, MIX_RECEPTANCE));
    const struct rows decay_low =
        EMIT_PRODUCT(mixer, f_low, FORMULA_IDENTITY, emit_mix(&mixes, MIX_DECAY));
    emitter_map(emitter, &(struct ops_map){.formula = FORMULA_SOFTCAP, /* tanh */
                                           .constant = 1,
                                           .num_cols = (int)config->f_low.rows,
                                           .out = decay_low,
                                           .u = decay_low});
    const struct rows decay = EMIT_PRODUCT(mixer, f_proj, FORMULA_IDENTITY, decay_low);
    const struct rows k = EMIT_PRODUCT(mixer, k_proj, FORMULA_IDENTITY, emit_mix(&mixes, MIX_KEY));
    const struct rows v = emit_values(&mixes);
    const struct rows rate_low =
        EMIT_PRODUCT(mixer, write_low, FORMULA_IDENTITY, emit_mix(&mixes, MIX_RATE));
    const struct rows rate = EMIT_PRODUCT(mixer, write_proj, FORMULA_IDENTITY, rate_low);
    const struct rows gate_low =
        EMIT_PRODUCT(mixer, out_gate_low, FORMULA_SIGMOID, emit_mix(&mixes, MIX_GATE));
    const struct rows gate = EMIT_PRODUCT(mixer, out_gate_proj, FORMULA_IDENTITY, gate_low);
    mixer->h = emitter_rows(emitter, values);
    struct ops_positions position;
    struct ops_recurrence recurrence =
        mixer_recurrence(mixer, &(struct mixer_inputs){.q = r, .k = k, .v = v});
    mixer_features_emit(mixer, &position, &recurrence);
    recurrence.feature_decay = (struct ops_factor){FORMULA_RWKV7_DECAY, .u = decay};
    emit_rates(mixer, &recurrence, rate);
    emitter_recurrence(emitter, &recurrence);
    return (struct mixer_output){.bonus = emit_bonus(mixer, &recurrence), .gate = gate};
}
