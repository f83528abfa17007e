/* SPDX-License-Identifier: Apache-2.0 */
/* q, k and v of a mixer. Mostly they are columns of the projection as it is. FLASH's gated
 * attention unit (Hua et al. 2022, section 3) makes q and k from one projection z, silu(z) times a
 * factor plus an offset for each, and applies silu to v. Qwen3 and others norm q and k. Others take
 * them through a short convolution first. */
#include "engine/mixers/mixer.h"

#include <stdlib.h>

static int64_t width_of(const struct mixer *config)
{
    return (int64_t)config->num_qk_heads * config->head_dim;
}

static int upload_norm(struct mixer_layer *layer, struct mixer_context *context,
                       const struct norm *norm, int heads, struct mixer_scale *out,
                       struct error *err)
{
    const struct mixer *config = layer->config;
    const size_t groups = config->qk_norm_scope == NORM_SCOPE_HEAD ? 1 : (size_t)heads;
    return mixer_scale_upload(context, norm->weight, norm->bias, groups * (size_t)config->head_dim,
                              out, err);
}

/* The norm of q or k, in its place. */
static void run_norm(const struct mixer_layer *layer, const struct ops *ops,
                     struct backend *backend, const struct norm *norm,
                     const struct mixer_scale *scale, int heads, struct rows x, int num_rows)
{
    const struct mixer *config = layer->config;
    const bool by_head = config->qk_norm_scope == NORM_SCOPE_HEAD;
    if (norm->kind == NORM_NONE)
        return;
    ops->norm(backend, &(struct ops_norm){
                           .kind = norm->kind,
                           .eps = norm->eps,
                           .weight = scale->weight,
                           .bias = scale->bias,
                           .num_rows = num_rows,
                           .groups = by_head ? heads : 1,
                           .size = by_head ? config->head_dim : heads * config->head_dim,
                           .x = x,
                           .y = x,
                       });
}

/* Row by row of the text, as kernels read it: [K, channels]. */
static float *weights_by_row(const struct convolution *conv, size_t channels)
{
    const size_t width = (size_t)conv->width;
    float *weights = malloc(width * channels * sizeof *weights);
    for (size_t i = 0; weights != NULL && i < width * channels; i++)
        weights[i] = conv->weight[i % channels * width + i / channels];
    return weights;
}

static int create_conv(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct convolution *conv = &layer->config->conv;
    const int64_t channels = mixer_conv_channels(layer->config);
    const struct state_part part = {
        .kind = STATE_PART_CONV,
        .layer = context->layer,
        .heads = 1,
        .rows = conv->width - 1,
        .features = (int)channels,
        .window = conv->width,
        .head_bytes = ops_conv_bytes(conv->width, channels),
    };
    if (state_layout_add(&context->layout, part, &layer->conv_offset, err) != 0)
        return -1;
    float *weights = weights_by_row(conv, (size_t)channels);
    void *device = NULL;
    if (weights == NULL)
        return error_set(err, ERROR_NO_MEMORY, "convolution: no memory");
    int result =
        context->ops->upload(context->backend, weights,
                             (size_t)(conv->width * channels) * sizeof *weights, &device, err);
    free(weights);
    layer->conv.weight = device;
    if (result == 0 && conv->bias != NULL) {
        result = context->ops->upload(context->backend, conv->bias,
                                      (size_t)channels * sizeof *conv->bias, &device, err);
        layer->conv.bias = result == 0 ? device : NULL;
    }
    return result;
}

/* Of adjacent columns, in their place. */
static void run_conv(const struct mixer_layer *layer, const struct ops *ops,
                     struct backend *backend, struct rows x)
{
    const struct convolution *conv = &layer->config->conv;
    ops->conv(backend,
              &(struct ops_conv){
                  .width = conv->width,
                  .channels = (int)mixer_conv_channels(layer->config),
                  .activation =
                      conv->activation == VALUE_ACTIVATION_SILU ? FORMULA_SILU : FORMULA_IDENTITY,
                  .weight = layer->conv.weight,
                  .bias = layer->conv.bias,
                  .x = x,
                  .state_offset = layer->conv_offset,
              });
}

int mixer_inputs_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    if (upload_norm(layer, context, &config->q_norm, config->num_qk_heads, &layer->q_norm, err) !=
            0 ||
        upload_norm(layer, context, &config->k_norm, mixer_key_heads(config), &layer->k_norm,
                    err) != 0)
        return -1;
    if (config->conv.width > 0 && create_conv(layer, context, err) != 0)
        return -1;
    if (!config->shared_qk)
        return 0;
    const struct offset_scale *q = &config->q_scale, *k = &config->k_scale;
    const size_t size = (size_t)width_of(config);
    mixer_widen(&context->widths.shared, 2 * width_of(config));
    if (mixer_scale_upload(context, q->weight, q->bias, size, &layer->q_scale, err) != 0)
        return -1;
    return mixer_scale_upload(context, k->weight, k->bias, size, &layer->k_scale, err);
}

void mixer_inputs_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend)
{
    mixer_scale_unload(&layer->q_scale, ops, backend);
    mixer_scale_unload(&layer->k_scale, ops, backend);
    mixer_scale_unload(&layer->q_norm, ops, backend);
    mixer_scale_unload(&layer->k_norm, ops, backend);
    mixer_scale_unload(&layer->conv, ops, backend);
}

struct mixer_inputs mixer_inputs_run(const struct mixer_layer *layer, const struct ops *ops,
                                     struct backend *backend, struct mixer_workspace *workspace,
                                     int num_rows)
{
    const struct mixer *config = layer->config;
    struct mixer_inputs inputs = {
        .q = mixer_columns(workspace->project, layer->q_at),
        .k = mixer_columns(workspace->project, layer->k_at),
        .v = mixer_columns(workspace->project, layer->v_at),
    };
    struct ops_map map = {.formula = FORMULA_SILU, .num_rows = num_rows};
    if (config->conv.width > 0)
        run_conv(layer, ops, backend, inputs.q);
    if (config->value_activation == VALUE_ACTIVATION_SILU) {
        map.num_cols = config->num_kv_heads * config->value_dim;
        map.u = map.out = inputs.v;
        ops->map(backend, &map);
    }
    if (!config->shared_qk) {
        run_norm(layer, ops, backend, &config->q_norm, &layer->q_norm, config->num_qk_heads,
                 inputs.q, num_rows);
        run_norm(layer, ops, backend, &config->k_norm, &layer->k_norm, mixer_key_heads(config),
                 inputs.k, num_rows);
        return inputs;
    }
    map.num_cols = (int)width_of(config);
    map.u = inputs.q;
    inputs.q = workspace->shared;
    inputs.k = mixer_columns(workspace->shared, map.num_cols);
    const struct mixer_scale *scales[2] = {&layer->q_scale, &layer->k_scale};
    const struct rows outputs[2] = {inputs.q, inputs.k};
    for (int i = 0; i < 2; i++) {
        map.weight = scales[i]->weight;
        map.bias = scales[i]->bias;
        map.out = outputs[i];
        ops->map(backend, &map);
    }
    return inputs;
}
