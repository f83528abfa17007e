/* SPDX-License-Identifier: Apache-2.0 */
/* Splits x for the tensor cores once for a product of more than 8 rows, in the order of fragments,
 * which each CTA then copies (product_stream.cu). It norms and gates x first, in place of the norm
 * kernel and with its bits, so that a product with a norm takes as many kernels as without this
 * one.
 *
 * A call with N rows reads 4 N in bytes of x, twice where it norms, and as many of gates; it writes
 * 4 N in bytes (half if x is rounded). A warp has a part of a row, or 128 numbers of it; few large
 * parts have a block each. nvcc 13.0 for sm_90: 112 registers, 64 of a block's threads, nothing
 * spilled. */
#include "engine/cuda/product.cuh"

enum { WARPS = 8, PART = 128, FOURS = 4 };

/* Writes four inputs of a row. */
template <enum weight_format format, int numbers>
__device__ static void put_four(const product_call &call, int row, int k, float4 x, uint4 *out)
{
    uint2 split[numbers];
    split_four<format>(x, split);
    uint4 *fragment = out + split_place(call, row, k / BLOCK_INPUTS) * 32 * numbers;
#pragma unroll
    for (int n = 0; n < numbers; n++)
        reinterpret_cast<uint2 *>(fragment + n * 32)[row % 8 * 8 + k % BLOCK_INPUTS / 4] = split[n];
}

/* Inputs from k on, normed and gated; zero past the last. */
__device__ static float4 finish_four(const product_call &call, struct norm_terms terms,
                                     const struct norm_four &from, int k)
{
    float4 x = from.x;
    if (k >= call.in)
        return x;
    if (call.norm.kind != NORM_NONE)
        x = norm_of_four(call.norm, terms, from);
    return call.norm.gate.data != NULL ? gate_four(call.norm.formula, from.gate, x) : x;
}

/* size: of a part, a multiple of 4. A row's last part goes on to the end of its last block. */
template <enum weight_format format, int numbers>
__global__ static void split_kernel(product_call call, int parts, int size, uint4 *out)
{
    grid_wait();
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int row = (int)(item / parts), part = (int)(item % parts);
    if (row >= call.num_rows)
        return;
    int begin = part * size, end = part + 1 < parts ? begin + size : call.blocks * BLOCK_INPUTS;
    struct norm_terms terms = {};
    if (call.norm.kind != NORM_NONE)
        terms = norm_terms_of<8>(call.norm, input_row(call, row) + begin);
    for (int first = begin + (int)threadIdx.x % 32 * 4; first < end; first += FOURS * 128) {
        struct norm_four from[FOURS];
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            if (first + i * 128 < end)
                from[i] = load_inputs<true, true>(call, 0, row, first + i * 128);
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            int k = first + i * 128;
            if (k >= end)
                continue;
            put_four<format, numbers>(call, row, k, finish_four(call, terms, from[i], k), out);
        }
    }
}

/* A block per part, where the call norms. It reads x once. */
template <enum weight_format format, int numbers>
__global__ static void __launch_bounds__(NORM_THREADS, NORM_BLOCKS)
    split_part_kernel(product_call call, uint4 *out)
{
    KERNEL_TIMES();
    SHARED_MEMORY(float, shared);
    const int parts = call.norm.groups, size = call.norm.size;
    int row = (int)blockIdx.x / parts, part = (int)blockIdx.x % parts, begin = part * size;
    int end = part + 1 < parts ? begin + size : call.blocks * BLOCK_INPUTS;
    norm_by_block<false, FORMULA_IDENTITY>(
        call.norm, end - begin, shared, [&] { grid_wait(); },
        [&](struct norm_four &four, int j) {
            if (begin + j < call.in)
                load_parameters(four, call.norm, parameter_place(call, begin + j));
        },
        [&](struct norm_four &four, int j) { load_numbers<true>(four, call, row, begin + j); },
        [&](const struct norm_four &four, int j, struct norm_terms terms) {
            put_four<format, numbers>(call, row, begin + j,
                                      finish_four(call, terms, four, begin + j), out);
        });
}

static size_t split_bytes(int64_t rows, int64_t inputs, int numbers)
{
    return (size_t)((rows + 7) / 8 * 8 * inputs * numbers) * sizeof(uint16_t);
}

size_t split_scratch(const struct backend *backend)
{
    int64_t rows = backend->limits.max_rows, most = backend->streamed_rows;
    return split_bytes(rows < most ? rows : most, backend->limits.max_input, 2);
}

template <enum weight_format format, int numbers>
void product_split(struct backend *backend, struct product_call *call, int heads)
{
    bool norms = call->norm.kind != NORM_NONE;
    int size = norms ? call->norm.size : PART;
    int parts = norms ? call->norm.groups : (call->blocks * BLOCK_INPUTS + PART - 1) / PART;
    int64_t warps = (int64_t)call->num_rows * parts;
    uint4 *out = (uint4 *)device_scratch(
        backend,
        split_bytes(call->num_rows, (int64_t)call->blocks * BLOCK_INPUTS * heads, numbers));
    const int most = size + BLOCK_INPUTS; /* of a part, with the end of its last block */
    if (norms && norm_by_blocks(backend, call->norm, warps * heads, most))
        launch(backend, split_part_kernel<format, numbers>,
               dim3((unsigned)warps, 1, (unsigned)heads), dim3(NORM_THREADS),
               norm_block_bytes(most), *call, out);
    else
        launch(backend, split_kernel<format, numbers>,
               dim3((unsigned)((warps + WARPS - 1) / WARPS), 1, (unsigned)heads), dim3(WARPS * 32),
               0, *call, parts, size, out);
    call->split = out;
    call->norm = {};
}

#define INSTANCE(format, numbers) \
    template void product_split<format, numbers>(struct backend *, struct product_call *, int);
SPLIT_KINDS(INSTANCE)
