/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/mixers/mixer.h"

#include <stdlib.h>

/* The format of a matrix where those of the model have `format`. */
static enum weight_format format_of(enum weight_format format, int heads, bool head)
{
    return heads > 1 ? WEIGHTS_AUTO : head ? weight_format_of_head(format) : format;
}

static int pack(struct mixer_context *context, struct weight **out, const struct matrix *parts,
                int num_parts, int heads, bool head, struct error *err)
{
    const struct ops *ops = context->ops;
    enum weight_format format = format_of(context->weights, heads, head);
    if (ops->weight_create(context->backend, out, parts, num_parts, heads, format, err) != 0)
        return -1;
    for (int i = 0; i < num_parts; i++) {
        model_packed(context->model, &parts[i]);
        context->packed += parts[i].rows * parts[i].cols;
    }
    if (context->progress != NULL && context->packed < context->model->parameters)
        context->progress(context->progress_context,
                          (double)context->packed / (double)context->model->parameters);
    for (int as = 0; as < WEIGHT_FORMAT_COUNT; as++)
        context->weights_bytes[as] +=
            ops->weight_bytes(*out, format_of((enum weight_format)as, heads, head));
    return 0;
}

int mixer_pack(struct mixer_context *context, struct weight **out, const struct matrix *parts,
               int num_parts, int heads, struct error *err)
{
    return pack(context, out, parts, num_parts, heads, false, err);
}

int mixer_pack_head(struct mixer_context *context, struct weight **out, const struct matrix *matrix,
                    struct error *err)
{
    return pack(context, out, matrix, 1, 1, true, err);
}

int mixer_scale_upload(struct mixer_context *context, const float *weight, const float *bias,
                       size_t size, struct mixer_scale *out, struct error *err)
{
    const float *sources[2] = {weight, bias};
    float **targets[2] = {&out->weight, &out->bias};
    for (int i = 0; i < 2; i++) {
        void *device = NULL;
        if (sources[i] != NULL && context->ops->upload(context->backend, sources[i],
                                                       size * sizeof(float), &device, err) != 0)
            return -1;
        *targets[i] = device;
    }
    return 0;
}

void mixer_scale_unload(const struct mixer_scale *scale, const struct ops *ops,
                        struct backend *backend)
{
    ops->unload(backend, scale->weight);
    ops->unload(backend, scale->bias);
}

void mixer_stack_add(struct mixer_stack *stack, const void *part, const struct part_matrix *list,
                     int count, enum matrix_use use, int64_t *columns)
{
    for (int i = 0; i < count; i++) {
        const struct matrix *matrix = part_matrix_of(part, &list[i]);
        if (list[i].use != use || matrix->rows == 0)
            continue;
        if (columns != NULL)
            columns[i] = stack->width;
        stack->width += matrix->rows;
        stack->parts[stack->count++] = *matrix;
    }
}

static void stack_mixer(struct mixer_stack *stack, struct mixer_layer *layer, enum matrix_use use)
{
    mixer_stack_add(stack, layer->config, mixer_matrices, MIXER_MATRIX_COUNT, use,
                    layer->at.columns);
}

static int pack_projections(struct mixer_layer *layer, struct mixer_context *context,
                            struct error *err)
{
    struct mixer_stack all = {0};
    stack_mixer(&all, layer, MATRIX_OF_X);
    if (layer->second != NULL) {
        layer->second->at = layer->at; /* where it has none of its own */
        stack_mixer(&all, layer->second, MATRIX_OF_X);
    }
    stack_mixer(&all, layer, MATRIX_OF_PAIR);
    mixer_widen(&context->widths.project, all.width);
    return mixer_pack(context, &layer->project, all.parts, all.count, 1, err);
}

static int upload_norm(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    size_t size = (size_t)config->value_dim *
                  (config->output_norm_scope == NORM_SCOPE_HIDDEN ? (size_t)config->num_heads : 1);
    const struct norm *norm = &config->output_norm;
    const float *second = norm->kind == NORM_GATED_RMSNORM ? norm->gate : norm->bias;
    return mixer_scale_upload(context, norm->weight, second, size, &layer->norm, err);
}

static int64_t h_width(const struct mixer *config)
{
    return (int64_t)config->num_heads * config->value_dim;
}

/* A part of a pair, or a mixer that is none. */
static int create_part(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    mixer_widen(&context->widths.values, layer->h_at + h_width(config));
    if (config->kind == MIXER_CONV)
        return mixer_conv_create(layer, context, err);
    if (config->value_dim > context->max_value_dim)
        context->max_value_dim = config->value_dim;
    if (upload_norm(layer, context, err) != 0 || mixer_inputs_create(layer, context, err) != 0)
        return -1;
    return config->kind == MIXER_LINEAR ? mixer_linear_create(layer, context, err)
                                        : mixer_softmax_create(layer, context, err);
}

int mixer_create(struct mixer_layer *layer, const struct mixer *config,
                 struct mixer_context *context, struct error *err)
{
    layer->config = config;
    if (config->second != NULL) {
        layer->second = calloc(1, sizeof *layer->second);
        if (layer->second == NULL)
            return error_set(err, ERROR_NO_MEMORY, "mixer: no memory");
        layer->second->config = config->second;
        layer->second->h_at = h_width(config);
    }
    if (pack_projections(layer, context, err) != 0 ||
        mixer_pack(context, &layer->output, &config->o_proj, 1, 1, err) != 0 ||
        create_part(layer, context, err) != 0)
        return -1;
    return layer->second != NULL ? create_part(layer->second, context, err) : 0;
}

void mixer_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend)
{
    ops->weight_free(backend, layer->project);
    ops->weight_free(backend, layer->output);
    ops->weight_free(backend, layer->low_rank);
    if (layer->feature_k != layer->feature_q)
        ops->weight_free(backend, layer->feature_k);
    ops->weight_free(backend, layer->feature_q);
    mixer_inputs_clear(layer, ops, backend);
    mixer_scale_unload(&layer->conv, ops, backend);
    mixer_position_clear(layer, ops, backend);
    mixer_segments_clear(layer, ops, backend);
    mixer_scale_unload(&layer->norm, ops, backend);
    mixer_gate_clear(layer, ops, backend);
    ops->unload(backend, layer->biases);
    ops->unload(backend, layer->bias_table);
    if (layer->second != NULL)
        mixer_clear(layer->second, ops, backend);
    free(layer->second);
}

/* Of a part's h, in its place. */
static struct ops_norm output_norm(const struct mixer_layer *layer,
                                   const struct mixer_workspace *workspace, int num_rows)
{
    const struct mixer *config = layer->config;
    bool by_head = config->output_norm_scope == NORM_SCOPE_HEAD;
    const int parts = config->output_norm_parts > 1 ? config->output_norm_parts : 1;
    const int groups = by_head ? config->num_heads : parts;
    const struct rows h = mixer_columns(workspace->h, layer->h_at);
    return (struct ops_norm){
        .kind = config->output_norm.kind,
        .eps = config->output_norm.eps,
        .weight = layer->norm.weight,
        .bias = layer->norm.bias,
        .num_rows = num_rows,
        .by_part = !by_head && parts > 1,
        .groups = groups,
        .size = config->num_heads * config->value_dim / groups,
        .x = h,
        .y = h,
        .gate_first = config->gate_first,
    };
}

static void run_part(const struct mixer_layer *layer, const struct ops *ops,
                     struct backend *backend, struct mixer_workspace *workspace, int num_rows)
{
    switch (layer->config->kind) {
    case MIXER_LINEAR:
        mixer_linear_run(layer, ops, backend, workspace, num_rows);
        break;
    case MIXER_SOFTMAX:
        mixer_softmax_run(layer, ops, backend, workspace, num_rows);
        break;
    case MIXER_CONV:
        mixer_gated_conv_run(layer, ops, backend, workspace, num_rows);
        break;
    }
}

/* Norms each part's h and combines them. What is left to do: no norm of all of it. */
static struct ops_norm combine(const struct mixer_layer *layer, const struct ops *ops,
                               struct backend *backend, struct mixer_workspace *workspace,
                               int num_rows)
{
    const int64_t first = h_width(layer->config), second = h_width(layer->second->config);
    const struct mixer_layer *parts[2] = {layer, layer->second};
    for (int i = 0; i < 2; i++) {
        const struct ops_norm norm = output_norm(parts[i], workspace, num_rows);
        if (norm.kind != NORM_NONE)
            ops->norm(backend, &norm);
    }
    if (!layer->config->concatenates)
        ops->map(backend, &(struct ops_map){.formula = FORMULA_SUM,
                                            .num_rows = num_rows,
                                            .num_cols = (int)first,
                                            .out = workspace->h,
                                            .u = workspace->h,
                                            .w = mixer_columns(workspace->h, first)});
    return (struct ops_norm){
        .kind = NORM_NONE,
        .num_rows = num_rows,
        .groups = 1,
        .size = (int)(layer->config->concatenates ? first + second : first),
        .x = workspace->h,
        .y = workspace->h,
    };
}

/* What is done to h before the output projection. */
static struct ops_norm prepare_output(const struct mixer_layer *layer, const struct ops *ops,
                                      struct backend *backend, struct mixer_workspace *workspace,
                                      int num_rows)
{
    const struct mixer *config = layer->config;
    const enum output_gate gate = config->output_gate;
    if (config->kind == MIXER_CONV)
        return mixer_gated_conv_output(layer, workspace, num_rows);
    struct ops_norm after = layer->second != NULL
                                ? combine(layer, ops, backend, workspace, num_rows)
                                : output_norm(layer, workspace, num_rows);
    after.formula = gate == OUTPUT_GATE_SIGMOID ? FORMULA_SIGMOID : FORMULA_SILU;
    if (gate != OUTPUT_GATE_NONE)
        after.gate = mixer_columns(workspace->project, layer->at.out_gate_proj);
    after.gate_of_group = config->gate_per_head;
    if (config->gate_per_head) {
        after.groups = config->num_heads;
        after.size = config->value_dim;
    }
    return after;
}

void mixer_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
               struct mixer_workspace *workspace, const struct mixer_step *step)
{
    const int num_rows = step->num_rows;
    ops->matmul(backend, &(struct ops_matmul){.weight = layer->project,
                                              .num_rows = num_rows,
                                              .x = step->norm != NULL ? step->norm->y : step->x,
                                              .y = workspace->project,
                                              .norm = step->norm,
                                              .next = step->next});
    run_part(layer, ops, backend, workspace, num_rows);
    if (layer->second != NULL)
        run_part(layer->second, ops, backend, workspace, num_rows);
    const struct ops_norm after = prepare_output(layer, ops, backend, workspace, num_rows);
    bool needed = after.kind != NORM_NONE || after.gate.data != NULL;
    ops->matmul(backend, &(struct ops_matmul){.weight = layer->output,
                                              .num_rows = num_rows,
                                              .x = workspace->h,
                                              .y = step->out,
                                              .accumulate = step->accumulate,
                                              .norm = needed ? &after : NULL,
                                              .next = step->next + 1});
}
