/* SPDX-License-Identifier: Apache-2.0 */
/* What a CTA with few rows requests all at once, by asynchronous copies into shared memory, which
 * hold no registers: its rows of x with what norms and gates them, and what is added to its sums.
 * So nothing waits for the second cache twice. */
#ifndef ENGINE_CUDA_PRODUCT_ROWS_CUH
#define ENGINE_CUDA_PRODUCT_ROWS_CUH

#include "engine/cuda/product.cuh"

/* The most of rows: with 32 KiB of fragments three CTAs have room in a multiprocessor. */
enum { MOST_KEPT_BYTES = 40 << 10 };

/* ---- rows of x ----
 * All rows of a call: x and gate [num_rows][width], and the norm's weight and bias [size], or by
 * part [groups * size]. What the
 * call has not takes no room. */

/* The numbers of a norm's weight or bias. */
__host__ __device__ inline int kept_parameters(const struct product_call &call, const float *those)
{
    if (call.norm.kind == NORM_NONE || those == NULL)
        return 0;
    return call.norm.by_part ? call.norm.groups * call.norm.size : call.norm.size;
}

/* Places them from float `at` on, a multiple of 4. parts: CTAs that share the inputs; a norm takes
 * them all. Returns where they end. */
inline size_t place_rows(struct product_call *call, size_t at, int parts)
{
    int share = (call->blocks + parts - 1) / parts * BLOCK_INPUTS;
    int width = call->norm.kind != NORM_NONE || share > call->in ? call->in : share;
    size_t of_x = (size_t)call->num_rows * (size_t)width;
    size_t gate = at + of_x, weight = gate + (call->norm.gate.data == NULL ? 0 : of_x);
    size_t bias = weight + (size_t)kept_parameters(*call, call->norm.weight);
    call->kept.width = width;
    call->kept.x = (int)at;
    call->kept.gate = (int)gate;
    call->kept.weight = (int)weight;
    call->kept.bias = (int)bias;
    return bias + (size_t)kept_parameters(*call, call->norm.bias);
}

/* Whether rows can be copied 16 bytes at a time, and are not too many bytes. */
inline bool can_keep_rows(const struct product_call *call, int parts)
{
    struct product_call placed = *call;
    return call->aligned && call->in % 4 == 0 &&
           place_rows(&placed, 0, parts) * sizeof(float) <= MOST_KEPT_BYTES;
}

/* `count` floats, a multiple of 4; both begin at multiples of 16 bytes. */
__device__ inline void request_floats(float *to, const float *from, int count)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x * 4; i < count; i += (int)blockDim.x * 4)
        copy_async_16(to + i, from + i);
}

__device__ inline void request_parameters(const product_call &call, float *shared)
{
    request_floats(shared + call.kept.weight, call.norm.weight,
                   kept_parameters(call, call.norm.weight));
    request_floats(shared + call.kept.bias, call.norm.bias, kept_parameters(call, call.norm.bias));
}

/* Inputs from `from` on. */
__device__ inline void request_rows(const product_call &call, int from, float *shared)
{
    int count = min(call.kept.width, call.in - from);
#pragma unroll 1
    for (int row = 0; row < call.num_rows; row++) {
        float *to = shared + row * call.kept.width;
        request_floats(to + call.kept.x, input_row(call, row) + from, count);
        if (call.norm.gate.data != NULL)
            request_floats(to + call.kept.gate, gate_row(call, row) + from, count);
    }
}

/* What prepare_norm and load_inputs (product.cuh) do, once the copies are there. */
__device__ inline void prepare_kept_norm(const product_call &call, const float *shared,
                                         struct norm_terms *terms)
{
    if (call.norm.kind == NORM_NONE)
        return;
    int groups = call.norm.groups, parts = call.num_rows * groups;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < parts; i += blockDim.x / 32) {
        const float *x = shared + call.kept.x + i / groups * call.kept.width;
        struct norm_terms of_part =
            norm_terms_by<true, NORM_LOADS>(call.norm, x + i % groups * call.norm.size, true);
        if (threadIdx.x % 32 == 0)
            terms[i] = of_part;
    }
    __syncthreads();
}

__device__ inline struct norm_four kept_inputs(const product_call &call, const float *shared,
                                               int from, int row, int k)
{
    struct norm_four four;
    four.x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (k >= call.in)
        return four;
    const float *place = shared + row * call.kept.width + k - from;
    four.x = *reinterpret_cast<const float4 *>(place + call.kept.x);
    if (call.norm.gate.data != NULL)
        four.gate = *reinterpret_cast<const float4 *>(place + call.kept.gate);
    if (call.norm.kind == NORM_NONE)
        return four;
    const float *parameter = shared + parameter_place(call, k);
    if (call.norm.weight != NULL)
        four.weight = *reinterpret_cast<const float4 *>(parameter + call.kept.weight);
    if (call.norm.bias != NULL)
        four.bias = *reinterpret_cast<const float4 *>(parameter + call.kept.bias);
    return four;
}

/* ---- what is added to sums ----
 * Of a CTA: bias [outputs], then the earlier y [rows][outputs]. outputs is a power of two. */

/* Places them. Returns where they end. */
inline size_t place_ends(struct product_call *call, size_t at, int rows, int outputs)
{
    call->kept.ends = (int)at;
    return at + (size_t)(1 + rows) * (size_t)outputs;
}

/* Before the wait. output: the CTA's first. */
__device__ inline void request_bias(const product_call &call, float *shared, int output,
                                    int outputs)
{
    if (call.bias == NULL)
        return;
    const float *from = call.bias + (int64_t)blockIdx.z * call.out + output;
#pragma unroll 1
    for (int i = threadIdx.x; i < outputs && output + i < call.out; i += blockDim.x)
        copy_async_4(shared + call.kept.ends + i, from + i);
}

/* After it. */
__device__ inline void request_before(const product_call &call, float *shared, int first, int rows,
                                      int output, int outputs)
{
    int column = (int)threadIdx.x & (outputs - 1), shift = __ffs(outputs) - 1;
    if (!call.accumulate || output + column >= call.out)
        return;
    rows = min(rows, call.num_rows - first);
#pragma unroll 1
    for (int row = (int)threadIdx.x >> shift; row < rows; row += (int)blockDim.x >> shift)
        copy_async_4(shared + call.kept.ends + (1 + row) * outputs + column,
                     place_of_sum(call, first + row, output + column));
}

/* What load_end does, once they are there. */
__device__ inline struct sum_end kept_end(const product_call &call, const float *shared, int row,
                                          int column, int outputs)
{
    struct sum_end end = {};
    if (call.bias != NULL)
        end.bias = shared[call.kept.ends + column];
    if (call.accumulate)
        end.before = shared[call.kept.ends + (1 + row) * outputs + column];
    return end;
}

#endif
