/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution over a text's rows (engine/ops/ops.h). A thread has a channel of one text, with
 * its weights and its last K - 1 numbers in registers, from the span's first token to its last. It
 * reads some tokens ahead: the rows of a text are far from each other, and each number is needed at
 * once. Each sum is of one thread, in the order of ops.h. */
#include "engine/cuda/common.cuh"

namespace
{

enum { THREADS = 128, AHEAD = 16 /* tokens */ };

/* Takes numbers [n] of a channel through the convolution: u [WIDTH - 1 + AHEAD], the older ones
 * first. */
template <int WIDTH>
__device__ void convolve(const ops_conv &a, const float *weight, float bias, const float *u, int n,
                         float *out)
{
#pragma unroll
    for (int t = 0; t < AHEAD; t++) {
        if (t >= n)
            break;
        float sum = bias;
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            sum = FORMULA_FMA(weight[j], u[t + j], sum);
        out[t * a.x.stride] =
            a.activation == FORMULA_IDENTITY ? sum : formula_apply(a.activation, sum, 0.0f, 0.0f);
    }
}

/* Grid: [spans, channels / THREADS]. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS) conv_kernel(const ops_conv a, const device_batch batch)
{
    grid_wait();
    const device_span span = batch.spans[blockIdx.x];
    const int channel = (int)(blockIdx.y * THREADS + threadIdx.x), older = WIDTH - 1;
    if (span.slot == nullptr || channel >= a.channels)
        return;
    float *state = reinterpret_cast<float *>(span.slot + a.state_offset) + channel;
    float *x = a.x.data + span.first_row * a.x.stride + channel;
    const float bias = a.bias == nullptr ? 0.0f : a.bias[channel];
    float weight[WIDTH], u[WIDTH - 1 + AHEAD];
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        weight[j] = a.weight[(int64_t)j * a.channels + channel];
#pragma unroll
    for (int j = 0; j < older; j++)
        u[j] = state[(span.position + j) % older * a.channels];
    for (int done = 0; done < span.num_rows; done += AHEAD, x += AHEAD * a.x.stride) {
        const int n = min((int)AHEAD, span.num_rows - done);
#pragma unroll
        for (int t = 0; t < AHEAD; t++)
            u[older + t] = t < n ? x[t * a.x.stride] : 0.0f;
        convolve<WIDTH>(a, weight, bias, u, n, x);
        /* the last numbers become the older ones, n of them new */
#pragma unroll
        for (int t = 0; t < AHEAD; t++)
            if (t < n)
#pragma unroll
                for (int j = 0; j < older; j++)
                    u[j] = u[j + 1 < older ? j + 1 : older + t];
    }
#pragma unroll
    for (int j = 0; j < older; j++)
        state[(span.position + span.num_rows + j) % older * a.channels] = u[j];
}

} // namespace

extern "C" void cuda_conv(struct backend *backend, const struct ops_conv *a)
{
    const dim3 grid((unsigned)backend->batch.num_spans,
                    (unsigned)((a->channels + THREADS - 1) / THREADS));
#define CONV(width)                                                                      \
    case width:                                                                          \
        launch(backend, conv_kernel<width>, grid, dim3(THREADS), 0, *a, backend->batch); \
        break;
    switch (a->width) {
        CONV(2)
        CONV(3)
        CONV(4)
        CONV(5)
        CONV(6)
        CONV(7)
        CONV(8)
    }
#undef CONV
}
