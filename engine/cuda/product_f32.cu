/* SPDX-License-Identifier: Apache-2.0 */
/* Products with f32 weights, without tensor cores (no tf32). A lane is an output. A warp has one
 * segment of a panel of 32 outputs and up to R rows. Their x is in shared memory, and all lanes
 * read the same number at a time.
 *
 * A call with N rows reads the weights once for each R rows (after the first time from the second
 * cache), 4 N in bytes of x for every CTA, and moves y. It does 2 N in out operations, two per
 * fmaf.
 *
 * nvcc 13.0 for sm_90, nothing spilled, with 8 segments: R = 1 and 8 take 92 and 110 registers and
 * 8 KiB of shared memory, 2 CTAs of 8 warps in a multiprocessor, 64 KiB of weights in flight. R =
 * 32 takes 128 registers and 32 KiB, 2 CTAs. No speed has been measured. */
#include "engine/cuda/product.cuh"

enum { MOST_WARPS = 16, FOURS = BLOCK_INPUTS / 4 };

/* Shared memory, at one time x, [segments][rows][8 fours], at another the warps' sums,
 * [warps][rows][32]. */
template <int R> static size_t shared_bytes(int warps, int segments)
{
    size_t inputs = (size_t)segments * R * FOURS * sizeof(float4);
    size_t sums = (size_t)warps * R * F32_OUTPUTS * sizeof(float);
    return inputs > sums ? inputs : sums;
}

/* Rows past the last contain any numbers; they change no other row's sums. */
template <int R>
__device__ inline void stage_inputs(const product_call &call, int first, int at,
                                    const struct norm_terms *terms, float4 *shared)
{
    const bool norms = R <= 8;
    int items = call.segments * R * FOURS;
    for (int i = threadIdx.x; i < items; i += blockDim.x) {
        int four = i % FOURS, row = i / FOURS % R, segment = i / FOURS / R;
        int block = segment_begin(call, segment) + at, k = block * BLOCK_INPUTS + four * 4;
        if (block >= segment_begin(call, segment + 1) || first + row >= call.num_rows)
            continue;
        struct norm_four inputs = load_inputs<norms, norms>(call, first, row, k);
        shared[i] = finish_inputs<norms, norms>(call, row, k, terms, inputs);
    }
}

template <int R>
__device__ inline void add_segments(const product_call &call, int first, int panel,
                                    const float *shared)
{
    int groups = blockDim.x / 32 / call.segments;
    for (int i = threadIdx.x; i < groups * R * F32_OUTPUTS; i += blockDim.x) {
        int group = i / F32_OUTPUTS % groups, row = i / F32_OUTPUTS / groups;
        int output = (panel + group) * F32_OUTPUTS + i % F32_OUTPUTS;
        if (first + row >= call.num_rows || output >= call.out)
            continue;
        const float *at =
            shared + (group * call.segments * R + row) * F32_OUTPUTS + i % F32_OUTPUTS;
        struct sum_end end = load_end(call, first + row, output);
        float sum = 0.0f;
        for (int s = 0; s < call.segments; s++)
            sum += at[s * R * F32_OUTPUTS];
        finish_sum(call, first + row, output, end, sum);
    }
}

/* sums += a block of weights times one of x. */
template <int R>
__device__ inline void multiply(float (&sums)[R], const float4 (&weights)[FOURS], const float4 *x)
{
#pragma unroll
    for (int j = 0; j < FOURS; j++)
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 input = x[r * FOURS + j];
            sums[r] = fmaf(input.x, weights[j].x, sums[r]);
            sums[r] = fmaf(input.y, weights[j].y, sums[r]);
            sums[r] = fmaf(input.z, weights[j].z, sums[r]);
            sums[r] = fmaf(input.w, weights[j].w, sums[r]);
        }
}

template <int R> __global__ void __launch_bounds__(MOST_WARPS * 32) f32_kernel(product_call call)
{
    KERNEL_TIMES();
    request_ahead(call.ahead);
    SHARED_MEMORY(float4, shared);
    __shared__ struct norm_terms terms[MOST_NORMED_PARTS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int segment = warp % call.segments, groups = blockDim.x / 32 / call.segments;
    struct cta_place place = place_of_cta(call, R);
    int first = place.row, panel = place.group * groups, own = panel + warp / call.segments;
    int begin = segment_begin(call, segment), end = segment_begin(call, segment + 1);
    int longest = (call.blocks + call.segments - 1) / call.segments;
    float sums[R] = {};
    for (int at = 0; at < longest; at++) {
        float4 weights[FOURS] = {};
        if (own < call.panels && begin + at < end) {
            const float4 *block =
                (const float4 *)(const void *)(panel_data(call, BLOCK_BYTES<WEIGHTS_F32>, own) +
                                               (size_t)(begin + at) * BLOCK_BYTES<WEIGHTS_F32>);
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                weights[j] = __ldcs(block + j * 32 + lane);
        }
        if (at > 0)
            __syncthreads();
        else {
            grid_wait();
            if (R <= 8)
                prepare_norm(call, first, R, terms);
        }
        stage_inputs<R>(call, first, at, terms, shared);
        __syncthreads();
        if (begin + at < end)
            multiply<R>(sums, weights, shared + segment * R * FOURS);
    }
    __syncthreads();
    float *all = (float *)shared;
#pragma unroll
    for (int r = 0; r < R; r++)
        all[(warp * R + r) * F32_OUTPUTS + lane] = sums[r];
    __syncthreads();
    add_segments<R>(call, first, panel, all);
}

template <int R>
static void run(struct backend *backend, const struct product_call *call, int heads)
{
    int warps = call->segments > 8 ? 16 : 8;
    launch(backend, f32_kernel<R>, product_grid(call, heads, warps / call->segments, R),
           dim3((unsigned)warps * 32), shared_bytes<R>(warps, call->segments), *call);
}

void product_f32(struct backend *backend, const struct product_call *call, int heads)
{
    if (call->num_rows == 1)
        run<1>(backend, call, heads);
    else if (call->num_rows <= 8)
        run<8>(backend, call, heads);
    else
        run<32>(backend, call, heads);
}
