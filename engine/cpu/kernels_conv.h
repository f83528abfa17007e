/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution over a text's rows (ops.h, struct ops_conv).
 *
 * Per number: K multiply-adds, K weights and K - 1 older numbers read from the first cache, 4 bytes
 * of the row read and 8 written; then the activation. Only one token's weights come from further
 * away: 4 K bytes a channel, in a mixer whose products read some 2 D bytes a channel. */
#ifndef ENGINE_CPU_KERNELS_CONV_H
#define ENGINE_CPU_KERNELS_CONV_H

#include "engine/cpu/kernels_elementwise.h"
#include "engine/cpu/vector.h"

/* Channels [first, end) of one row. The oldest of `rows` gets the row in its place. */
INLINE void conv_row(const int width, const struct ops_conv *a, float *const *rows, float *x,
                     int first, int end)
{
    const int64_t channels = a->channels;
    int c = first;
    for (; c + LANES <= end; c += LANES) {
        const float *weight = a->weight + c;
        vec u = vec_load(x + c), sum = a->bias == NULL ? vec_set(0.0f) : vec_load(a->bias + c);
        for (int j = 0; j < width - 1; j++)
            sum = vec_fma(vec_load(weight + j * channels), vec_load(rows[j] + c), sum);
        vec_store(rows[0] + c, u);
        vec_store(x + c, vec_fma(vec_load(weight + (width - 1) * channels), u, sum));
    }
    for (; c < end; c++) {
        const float *weight = a->weight + c;
        float u = x[c], sum = a->bias == NULL ? 0.0f : a->bias[c];
        for (int j = 0; j < width - 1; j++)
            sum = FORMULA_FMA(weight[j * channels], rows[j][c], sum);
        rows[0][c] = u;
        x[c] = FORMULA_FMA(weight[(width - 1) * channels], u, sum);
    }
}

INLINE void conv_span(const int width, const struct ops_conv *a, const struct batch_span *span,
                      int first, int end)
{
    float *state = (float *)(void *)(span->slot + a->state_offset);
    for (int t = 0; t < span->num_rows; t++) {
        float *rows[CONVOLUTION_MAX_WIDTH - 1]; /* the oldest first */
        float *x = a->x.data + (span->first_row + t) * a->x.stride;
        for (int j = 0; j < width - 1; j++)
            rows[j] = state + (span->position + t + j) % (width - 1) * a->channels;
        conv_row(width, a, rows, x, first, end);
        if (a->activation != FORMULA_IDENTITY)
            map_row(a->activation, x + first, x + first, NULL, 0.0f, end - first);
    }
}

static void kernel_conv(const struct ops_conv *a, const struct batch_span *span, int first, int end)
{
#define CONV_CASE(width)                       \
    case width:                                \
        conv_span(width, a, span, first, end); \
        break;
    switch (a->width) {
        CONV_CASE(2)
        CONV_CASE(3)
        CONV_CASE(4)
        CONV_CASE(5)
        CONV_CASE(6)
        CONV_CASE(7)
        CONV_CASE(8)
    }
#undef CONV_CASE
}

#endif
