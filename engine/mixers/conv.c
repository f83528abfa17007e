/* SPDX-License-Identifier: Apache-2.0 */
/* Short convolutions: of q, k and v, as a mixer by themselves (LFM 2), and as a token shift. */
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

void convolution_emit(struct emitter *emitter, const struct convolution *conv, int64_t channels,
                      struct rows x)
{
    const size_t size = (size_t)channels;
    const struct state_part part = {
        .kind = STATE_PART_CONV,
        .heads = 1,
        .rows = conv->width - 1,
        .features = (int)channels,
        .window = conv->width,
        .head_bytes = ops_conv_bytes(conv->width, channels),
    };
    float *weights = weights_by_row(conv, size);
    if (weights == NULL)
        emitter_no_memory(emitter, "convolution");
    const size_t bytes = (size_t)conv->width * size * sizeof *weights;
    emitter_conv(emitter,
                 &(struct ops_conv){
                     .width = conv->width,
                     .channels = (int)channels,
                     .activation = conv->activation == VALUE_ACTIVATION_SILU ? FORMULA_SILU
                                                                             : FORMULA_IDENTITY,
                     .weight = emitter_upload(emitter, weights, bytes),
                     .bias = emitter_upload(emitter, conv->bias, size * sizeof(float)),
                     .x = x,
                     .state_offset = emitter_state(emitter, part),
                 });
    free(weights);
}

void mixer_conv_emit(const struct mixer_build *mixer, struct rows x)
{
    convolution_emit(mixer->emitter, &mixer->config->conv, mixer_conv_channels(mixer->config), x);
}

/* [B | C | u]: B times u, convolved in its place. Its gate C comes with the output projection. */
void mixer_gated_conv_emit(const struct mixer_build *mixer)
{
    const int64_t channels = mixer_conv_channels(mixer->config);
    const struct rows x = rows_from(mixer->project, mixer->at.in_proj);
    emitter_map(mixer->emitter, &(struct ops_map){.formula = FORMULA_PRODUCT,
                                                  .num_cols = (int)channels,
                                                  .out = x,
                                                  .u = x,
                                                  .w = rows_from(x, 2 * channels)});
    mixer_conv_emit(mixer, x);
}

struct ops_norm mixer_gated_conv_output(const struct mixer_build *mixer)
{
    const int64_t channels = mixer_conv_channels(mixer->config);
    const struct rows x = rows_from(mixer->project, mixer->at.in_proj);
    return (struct ops_norm){
        .kind = NORM_NONE,
        .groups = 1,
        .size = (int)channels,
        .x = x,
        .y = mixer->h,
        .formula = FORMULA_IDENTITY,
        .gate = rows_from(x, channels),
    };
}
