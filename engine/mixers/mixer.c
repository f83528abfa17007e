/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/mixers/mixer.h"

int mixer_pack(struct mixer_context *context, struct weight **out, const struct matrix *parts,
               int num_parts, int heads, struct error *err)
{
    const struct ops *ops = context->ops;
    enum weight_format format = heads > 1 ? WEIGHTS_AUTO : context->weights;
    if (ops->weight_create(context->backend, out, parts, num_parts, heads, format, err) != 0)
        return -1;
    for (int i = 0; i < num_parts; i++)
        model_packed(context->model, &parts[i]);
    for (int as = 0; as < WEIGHT_FORMAT_COUNT; as++)
        context->weights_bytes[as] +=
            ops->weight_bytes(*out, heads > 1 ? WEIGHTS_AUTO : (enum weight_format)as);
    return 0;
}

/* Packs q, k, v, the gate's projections and the output gate's as one matrix. */
static int pack_projections(struct mixer_layer *layer, struct mixer_context *context,
                            struct error *err)
{
    const struct mixer *config = layer->config;
    const struct matrix *sources[MIXER_MAX_PARTS] = {config->shared_qk ? &config->qk_proj
                                                                       : &config->q_proj};
    int64_t *at[MIXER_MAX_PARTS] = {&layer->q_at};
    int count = 1;
    if (!config->shared_qk) {
        sources[count] = &config->k_proj;
        at[count++] = &layer->k_at;
    }
    sources[count] = &config->v_proj;
    at[count++] = &layer->v_at;
    if (config->kind == MIXER_LINEAR) {
        const struct matrix *gate[2];
        int gates = mixer_gate_parts(config, gate);
        for (int i = 0; i < gates; i++) {
            sources[count] = gate[i];
            at[count++] = i == 0 ? &layer->gate_at : &layer->gate2_at;
        }
    }
    if (config->output_gate != OUTPUT_GATE_NONE) {
        sources[count] = &config->out_gate_proj;
        at[count++] = &layer->out_gate_at;
    }
    if (config->window == WINDOW_LONG_SHORT) {
        sources[count] = &config->segment_proj;
        at[count++] = &layer->segments_at;
    }
    struct matrix parts[MIXER_MAX_PARTS];
    int64_t width = 0;
    for (int i = 0; i < count; i++) {
        parts[i] = *sources[i];
        *at[i] = width;
        width += parts[i].rows;
    }
    mixer_widen(&context->widths.project, width);
    return mixer_pack(context, &layer->project, parts, count, 1, err);
}

static int upload_norm(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    size_t size = (size_t)config->value_dim *
                  (config->output_norm_scope == NORM_SCOPE_HIDDEN ? (size_t)config->num_heads : 1);
    const struct norm *norm = &config->output_norm;
    const float *sources[2] = {norm->weight,
                               norm->kind == NORM_GATED_RMSNORM ? norm->gate : norm->bias};
    float **targets[2] = {&layer->norm_weight, &layer->norm_bias};
    for (int i = 0; i < 2; i++) {
        void *device = NULL;
        if (sources[i] != NULL && context->ops->upload(context->backend, sources[i],
                                                       size * sizeof(float), &device, err) != 0)
            return -1;
        *targets[i] = device;
    }
    return 0;
}

int mixer_create(struct mixer_layer *layer, const struct mixer *config,
                 struct mixer_context *context, struct error *err)
{
    layer->config = config;
    int heads = config->num_heads;
    mixer_widen(&context->widths.values, (int64_t)heads * config->value_dim);
    if (config->value_dim > context->max_value_dim)
        context->max_value_dim = config->value_dim;
    if (pack_projections(layer, context, err) != 0 || upload_norm(layer, context, err) != 0)
        return -1;
    if (mixer_pack(context, &layer->output, &config->o_proj, 1, 1, err) != 0 ||
        mixer_inputs_create(layer, context, err) != 0)
        return -1;
    return config->kind == MIXER_LINEAR ? mixer_linear_create(layer, context, err)
                                        : mixer_softmax_create(layer, context, err);
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
    mixer_position_clear(layer, ops, backend);
    mixer_segments_clear(layer, ops, backend);
    ops->unload(backend, layer->norm_weight);
    ops->unload(backend, layer->norm_bias);
    ops->unload(backend, layer->biases);
    ops->unload(backend, layer->bias_table);
}

/* Of h, in its place. */
static struct ops_norm output_norm(const struct mixer_layer *layer,
                                   const struct mixer_workspace *workspace, int num_rows)
{
    const struct mixer *config = layer->config;
    bool by_head = config->output_norm_scope == NORM_SCOPE_HEAD;
    struct rows gate = {0};
    if (config->output_gate == OUTPUT_GATE_SWISH)
        gate = mixer_columns(workspace->project, layer->out_gate_at);
    return (struct ops_norm){
        .kind = config->output_norm.kind,
        .eps = config->output_norm.eps,
        .weight = layer->norm_weight,
        .bias = layer->norm_bias,
        .num_rows = num_rows,
        .groups = by_head ? config->num_heads : 1,
        .size = by_head ? config->value_dim : config->num_heads * config->value_dim,
        .x = workspace->h,
        .y = workspace->h,
        .formula = FORMULA_SILU,
        .gate = gate,
    };
}

void mixer_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
               struct mixer_workspace *workspace, const struct ops_norm *norm, struct rows residual,
               const struct weight *const *next)
{
    const struct mixer *config = layer->config;
    int num_rows = norm->num_rows;
    ops->matmul(backend, &(struct ops_matmul){.weight = layer->project,
                                              .num_rows = num_rows,
                                              .x = norm->y,
                                              .y = workspace->project,
                                              .norm = norm,
                                              .next = next});
    if (config->kind == MIXER_LINEAR)
        mixer_linear_run(layer, ops, backend, workspace, num_rows);
    else
        mixer_softmax_run(layer, ops, backend, workspace, num_rows);
    const struct ops_norm after = output_norm(layer, workspace, num_rows);
    bool needed = after.kind != NORM_NONE || after.gate.data != NULL;
    ops->matmul(backend, &(struct ops_matmul){.weight = layer->output,
                                              .num_rows = num_rows,
                                              .x = workspace->h,
                                              .y = residual,
                                              .accumulate = true,
                                              .norm = needed ? &after : NULL,
                                              .next = next + 1});
}
