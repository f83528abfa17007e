/* SPDX-License-Identifier: Apache-2.0 */
/* Short convolutions: of q, k and v, and as a mixer by themselves (LFM 2). */
#include "engine/mixers/mixer.h"

#include <stdlib.h>

/* Row by row of the text, as kernels read it: [K, channels]. */
static float *weights_by_row(const struct convolution *conv, size_t channels)
{
    const size_t width = (size_t)conv->width;
    float *weights = malloc(width * channels * sizeof *weights);
    for (size_t i = 0; weights != NULL && i < width * channels; i++)
        weights[i] = conv->weight[i % channels * width + i / channels];
    return weights;
}

int mixer_conv_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
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

void mixer_conv_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
                    struct rows x)
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

/* [B | C | u]: B times u, convolved in its place. Its gate C comes with the output projection. */
void mixer_gated_conv_run(const struct mixer_layer *layer, const struct ops *ops,
                          struct backend *backend, struct mixer_workspace *workspace, int num_rows)
{
    const int64_t channels = mixer_conv_channels(layer->config);
    const struct rows x = mixer_columns(workspace->project, layer->at.in_proj);
    ops->map(backend, &(struct ops_map){.formula = FORMULA_PRODUCT,
                                        .num_rows = num_rows,
                                        .num_cols = (int)channels,
                                        .out = x,
                                        .u = x,
                                        .w = mixer_columns(x, 2 * channels)});
    mixer_conv_run(layer, ops, backend, x);
}

struct ops_norm mixer_gated_conv_output(const struct mixer_layer *layer,
                                        const struct mixer_workspace *workspace, int num_rows)
{
    const int64_t channels = mixer_conv_channels(layer->config);
    const struct rows x = mixer_columns(workspace->project, layer->at.in_proj);
    return (struct ops_norm){
        .kind = NORM_NONE,
        .num_rows = num_rows,
        .groups = 1,
        .size = (int)channels,
        .x = x,
        .y = workspace->h,
        .formula = FORMULA_IDENTITY,
        .gate = mixer_columns(x, channels),
    };
}
