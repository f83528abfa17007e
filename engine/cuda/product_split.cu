/* SPDX-License-Identifier: Apache-2.0 */
/* Splits x for the tensor cores once for a product of more than 8 rows, in the order of fragments,
 * which each CTA then copies (product_stream.cu). It norms and gates x first, in place of the norm
 * kernel and with its bits, so that a product with a norm takes as many kernels as without this
 * one.
 *
 * A call with N rows reads 4 N in bytes of x, twice where it norms, and as many of gates; it writes
 * 4 N in bytes (half if x is rounded). A warp has a part of a row, or 128 numbers of it. nvcc 13.0
 * for sm_90: 110 registers, nothing spilled. No speed has been measured: there was no device. */
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
            float4 x = from[i].x;
            if (call.norm.kind != NORM_NONE && k < call.in)
                x = norm_of_four(call.norm, terms, from[i]);
            if (call.norm.gate.data != NULL && k < call.in)
                x = gate_four(call.norm.formula, from[i].gate, x);
            put_four<format, numbers>(call, row, k, x, out);
        }
    }
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
    launch(backend, split_kernel<format, numbers>,
           dim3((unsigned)((warps + WARPS - 1) / WARPS), 1, (unsigned)heads), dim3(WARPS * 32), 0,
           *call, parts, size, out);
    call->split = out;
    call->norm = {};
}

#define INSTANCE(format, numbers) \
    template void product_split<format, numbers>(struct backend *, struct product_call *, int);
SPLIT_KINDS(INSTANCE)
