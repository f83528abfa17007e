/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/mixers/mixer.h"

static void stack_mixer(struct emitter_stack *stack, struct mixer_build *mixer, enum matrix_use use)
{
    emitter_stack_add(stack, mixer->config, mixer_matrices, MIXER_MATRIX_COUNT, use,
                      mixer->at.columns);
}

static int64_t h_width(const struct mixer *config)
{
    return (int64_t)config->num_heads * config->value_dim;
}

/* Of a part's h, in its place. */
static struct ops_norm output_norm(const struct mixer_build *mixer)
{
    const struct mixer *config = mixer->config;
    const struct norm *norm = &config->output_norm;
    const bool by_head = config->output_norm_scope == NORM_SCOPE_HEAD;
    const int parts = config->output_norm_parts > 1 ? config->output_norm_parts : 1;
    const int groups = by_head ? config->num_heads : parts;
    const float *second = norm->kind == NORM_GATED_RMSNORM ? norm->gate : norm->bias;
    const size_t size = (size_t)(by_head ? config->value_dim : h_width(config));
    const struct mixer_scale scale = mixer_scale_upload(mixer->emitter, norm->weight, second, size);
    return (struct ops_norm){
        .kind = norm->kind,
        .eps = norm->eps,
        .weight = scale.weight,
        .bias = scale.bias,
        .by_part = !by_head && parts > 1,
        .groups = groups,
        .size = config->num_heads * config->value_dim / groups,
        .x = mixer->h,
        .y = mixer->h,
        .gate_first = config->gate_first,
    };
}

static void emit_part(const struct mixer_build *mixer)
{
    switch (mixer->config->kind) {
    case MIXER_LINEAR:
        mixer_linear_emit(mixer);
        break;
    case MIXER_SOFTMAX:
        mixer_softmax_emit(mixer);
        break;
    case MIXER_CONV:
        mixer_gated_conv_emit(mixer);
        break;
    }
}

/* Norms each part's h and combines them. What is left to do: no norm of all of it. */
static struct ops_norm combine(const struct mixer_build *mixer, const struct mixer_build *second)
{
    const bool concatenates = mixer->config->concatenates;
    const int64_t width = h_width(mixer->config), added = h_width(second->config);
    const struct mixer_build *const parts[2] = {mixer, second};
    for (int i = 0; i < 2; i++) {
        const struct ops_norm norm = output_norm(parts[i]);
        if (norm.kind != NORM_NONE)
            emitter_norm(mixer->emitter, &norm);
    }
    if (!concatenates)
        emitter_map(mixer->emitter, &(struct ops_map){.formula = FORMULA_SUM,
                                                      .num_cols = (int)width,
                                                      .out = mixer->h,
                                                      .u = mixer->h,
                                                      .w = second->h});
    return (struct ops_norm){
        .kind = NORM_NONE,
        .groups = 1,
        .size = (int)(concatenates ? width + added : width),
        .x = mixer->h,
        .y = mixer->h,
    };
}

/* The output gate, before its formula. */
static struct rows emit_output_gate(const struct mixer_build *mixer)
{
    const struct matrix *out = &mixer->config->out_gate_out;
    if (out->rows == 0)
        return mixer_project(mixer, mixer->at.out_gate_proj);
    const struct rows gate = emitter_rows(mixer->emitter, out->rows);
    emitter_product(
        mixer->emitter, mixer_pack(mixer->emitter, mixer->config, MATRIX_INNER_GATE),
        &(struct ops_matmul){.x = mixer_project(mixer, mixer->at.out_gate_in), .y = gate});
    return gate;
}

/* What is done to h before the output projection. */
static struct ops_norm prepare_output(const struct mixer_build *mixer,
                                      const struct mixer_build *second)
{
    const struct mixer *config = mixer->config;
    const enum output_gate gate = config->output_gate;
    if (!mixer_has(config, HAS_HEADS))
        return mixer_gated_conv_output(mixer);
    struct ops_norm after = second != NULL ? combine(mixer, second) : output_norm(mixer);
    after.formula = gate == OUTPUT_GATE_SIGMOID  ? FORMULA_SIGMOID
                    : gate == OUTPUT_GATE_LINEAR ? FORMULA_IDENTITY
                                                 : FORMULA_SILU;
    if (gate != OUTPUT_GATE_NONE)
        after.gate = emit_output_gate(mixer);
    after.gate_of_group = config->gate_per_head;
    if (config->gate_per_head) {
        after.groups = config->num_heads;
        after.size = config->value_dim;
    }
    return after;
}

/* Projects x, and computes h of the mixer and of what it makes a pair with. */
static struct ops_norm emit_projected(struct mixer_build *first, const struct branch_ends *ends)
{
    struct emitter *emitter = first->emitter;
    const struct mixer *config = first->config;
    struct mixer_build mixer = *first, second;
    const bool pair = config->second != NULL;
    struct emitter_stack all = {0};
    stack_mixer(&all, &mixer, MATRIX_OF_X);
    second = mixer; /* columns of what it has none of its own are the first's */
    if (pair) {
        second.config = config->second;
        stack_mixer(&all, &second, MATRIX_OF_X);
    }
    stack_mixer(&all, &mixer, MATRIX_OF_PAIR);
    mixer.project = second.project = emitter_rows(emitter, all.width);
    mixer.h = emitter_rows(emitter, h_width(config) + (pair ? h_width(config->second) : 0));
    second.h = rows_from(mixer.h, h_width(config));
    emitter_product(emitter, emitter_pack(emitter, &all),
                    &(struct ops_matmul){.x = ends->norm != NULL ? ends->norm->y : ends->x,
                                         .y = mixer.project,
                                         .norm = ends->norm});
    emit_part(&mixer);
    if (pair)
        emit_part(&second);
    *first = mixer;
    return prepare_output(&mixer, pair ? &second : NULL);
}

/* Likewise of one whose matrices multiply mixes of x. */
static struct ops_norm emit_mixed(struct mixer_build *mixer, const struct branch_ends *ends)
{
    const struct mixer_output output = mixer_rwkv7_emit(mixer, ends);
    const int size = (int)h_width(mixer->config);
    const struct ops_norm norm = output_norm(mixer);
    emitter_norm(mixer->emitter, &norm);
    emitter_map(mixer->emitter, &(struct ops_map){.formula = FORMULA_SUM,
                                                  .num_cols = size,
                                                  .out = mixer->h,
                                                  .u = mixer->h,
                                                  .w = output.bonus});
    return (struct ops_norm){.kind = NORM_NONE,
                             .groups = 1,
                             .size = size,
                             .x = mixer->h,
                             .y = mixer->h,
                             .formula = FORMULA_IDENTITY,
                             .gate = output.gate};
}

void mixer_emit(struct emitter *emitter, const struct mixer *config, const struct branch_ends *ends)
{
    struct mixer_build mixer = {.emitter = emitter, .config = config};
    const struct ops_norm after =
        config->mixes != NULL ? emit_mixed(&mixer, ends) : emit_projected(&mixer, ends);
    const bool needed = after.kind != NORM_NONE || after.gate.data != NULL;
    emitter_product(emitter, mixer_pack(emitter, config, MATRIX_LAST),
                    &(struct ops_matmul){.x = mixer.h,
                                         .y = ends->out,
                                         .accumulate = ends->accumulate,
                                         .norm = needed ? &after : NULL});
}
