/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution over a text's rows (engine/ops/ops.h). A thread has a channel of one text, with
 * its weights and its last K - 1 numbers in registers, and takes AHEAD tokens at once: the rows of
 * a text are far from each other, and each number is needed at once. Each sum is of one thread, in
 * the order of ops.h, so its bits do not depend on what a thread takes.
 *
 * Where texts have more rows, and not just a few texts among many that have one, a block takes a
 * round of 16 pieces of AHEAD tokens side by side, a warp each. A prompt would else be one thread's
 * chain of loads: on an H200 that was 680 us of 2,048 tokens of mamba2-130m, for 29 MB that memory
 * moves in 7. The result lies in the input's place, so all pieces read, those before their own
 * first token too, before one writes; the last numbers of a round go to the first piece of the next
 * through shared memory. */
#include "engine/cuda/common.cuh"

namespace
{

enum { THREADS = 128, LANES = 32, AHEAD = 16 /* tokens */, PIECES = 16 };

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

/* u [WIDTH - 1 + AHEAD] goes n <= AHEAD tokens on: its last numbers become the older ones. */
template <int WIDTH> __device__ void move_on(float *u, int n)
{
#pragma unroll
    for (int t = 0; t < AHEAD; t++)
        if (t < n)
#pragma unroll
            for (int j = 0; j < WIDTH - 1; j++)
                u[j] = u[j + 1 < WIDTH - 1 ? j + 1 : WIDTH - 1 + t];
}

/* Blocks of [channels, pieces] threads; grid: [spans, channels / a block's]. Shared memory, with
 * pieces: [WIDTH - 1, channels of a block], of one round for the next. */
template <int WIDTH, int pieces>
__global__ void __launch_bounds__(pieces > 1 ? PIECES * LANES : THREADS, 1)
    conv_kernel(const ops_conv a, const device_batch batch)
{
    static_assert(WIDTH - 1 <= AHEAD, "what a piece reads of the one before it");
    const int older = WIDTH - 1, channels = pieces > 1 ? LANES : THREADS;
    SHARED_MEMORY(float, carried);
    grid_wait();
    const device_span span = batch.spans[blockIdx.x];
    const int lane = (int)threadIdx.x % channels, piece = (int)threadIdx.x / channels;
    const int channel = (int)blockIdx.y * channels + lane;
    if (span.slot == nullptr)
        return;
    const bool own = channel < a.channels;
    float *state = reinterpret_cast<float *>(span.slot + a.state_offset) + channel;
    float weight[WIDTH], u[WIDTH - 1 + AHEAD], bias = 0.0f;
    if (own) {
        bias = a.bias == nullptr ? 0.0f : a.bias[channel];
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            weight[j] = a.weight[(int64_t)j * a.channels + channel];
    }
    for (int round = 0; round < span.num_rows; round += pieces * AHEAD) {
        const int first = round + piece * AHEAD;
        const int n = own ? min((int)AHEAD, span.num_rows - first) : 0; /* less than 1: none */
        float *x = a.x.data + (span.first_row + first) * a.x.stride + channel;
        if (n > 0) {
#pragma unroll
            for (int j = 0; j < older; j++)
                if (piece > 0)
                    u[j] = x[(j - older) * a.x.stride];
                else if (round == 0)
                    u[j] = state[(span.position + j) % older * a.channels];
                else if (pieces > 1)
                    u[j] = carried[j * channels + lane];
#pragma unroll
            for (int t = 0; t < AHEAD; t++)
                u[older + t] = t < n ? x[t * a.x.stride] : 0.0f;
        }
        if (pieces > 1)
            __syncthreads();
        if (n > 0) {
            convolve<WIDTH>(a, weight, bias, u, n, x);
            move_on<WIDTH>(u, n);
            if (pieces > 1 && piece == pieces - 1)
#pragma unroll
                for (int j = 0; j < older; j++)
                    carried[j * channels + lane] = u[j];
            if (first + n == span.num_rows)
#pragma unroll
                for (int j = 0; j < older; j++)
                    state[(span.position + span.num_rows + j) % older * a.channels] = u[j];
        }
        if (pieces > 1)
            __syncthreads();
    }
}

template <int WIDTH> void conv(struct backend *backend, const struct ops_conv &a)
{
    const int spans = backend->batch.num_spans;
    const bool split = backend->batch.num_rows > AHEAD * spans;
    const int channels = split ? LANES : THREADS;
    const dim3 grid((unsigned)spans, (unsigned)((a.channels + channels - 1) / channels));
    if (split)
        launch(backend, conv_kernel<WIDTH, PIECES>, grid, dim3(LANES * PIECES),
               (WIDTH - 1) * LANES * sizeof(float), a, backend->batch);
    else
        launch(backend, conv_kernel<WIDTH, 1>, grid, dim3(THREADS), 0, a, backend->batch);
}

} // namespace

extern "C" void cuda_conv(struct backend *backend, const struct ops_conv *a)
{
#define CONV(width)               \
    case width:                   \
        conv<width>(backend, *a); \
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
