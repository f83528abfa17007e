/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of matrix products share: arguments, fragments of weights and of x, and the end
 * of a sum. The choice of the kernel (matmul.cu) never changes the bits of a product. */
#ifndef ENGINE_CUDA_PRODUCT_CUH
#define ENGINE_CUDA_PRODUCT_CUH

#include "engine/cuda/ahead.cuh"
#include "engine/cuda/norm.cuh"
#include "engine/cuda/switches.h"
#include "engine/cuda/weights.h"

/* Where things begin in shared memory, in floats, and how many inputs of a row there are
 * (product_rows.cuh). */
struct kept_places {
    int terms, x, gate, weight, bias, ends, width;
};

/* The arguments of one product. Head blockIdx.z of the weight meets part blockIdx.z of x and of y.
 */
struct product_call {
    const unsigned char *data;
    const float *bias; /* or NULL */
    const float *x;
    float *y;
    int64_t x_stride, y_stride;
    int in, out, panels, blocks, segments; /* of a head */
    int segment_shift;                     /* 2^segment_shift = segments */
    int num_rows;
    const uint4 *split; /* x in the order of fragments (product_split.cu), or NULL */
    bool aligned;       /* every part of a row of x begins at a multiple of 16 bytes */
    bool accumulate;
    enum formula activation;
    struct ops_norm norm; /* of x, as the product reads it; its kind may be none */
    struct ahead ahead;   /* what it asks for before it waits */
    bool stages;          /* tiles: the first weights are loaded before the wait */
    bool early;           /* few rows: what does not depend on x is requested before it */
    struct kept_places kept;
};

/* The most rows that a CTA norms by itself, their parts (two for each of its warps), and the
 * numbers that it gates. For more, a separate kernel should take less time. */
enum { MOST_NORMED_ROWS = LEAST_STREAMED_ROWS, MOST_NORMED_PARTS = 16, MOST_GATED = 4096 };

/* Whether sums of a block take its scales at their end. */
template <enum weight_format format> constexpr bool HAS_SCALES = weight_format_block(format) > 1;

static_assert(block_bytes(WEIGHTS_Q8) == Q8_SCALES + FRAGMENT_OUTPUTS * 2, "quants and scales");
static_assert(block_bytes(WEIGHTS_Q6) == Q6_SCALES + FRAGMENT_OUTPUTS * 2, "quants and scales");
static_assert(block_bytes(WEIGHTS_Q4) == Q4_MINIMA + FRAGMENT_OUTPUTS * 2, "quants and minima");
/* And minima, times the sum of x. */
template <enum weight_format format> constexpr bool HAS_MINIMA = weight_format_minimum(format);

/* All products on tensor cores: the format of the weights, and how many numbers an input is split
 * into (split_pair), one where x is rounded. */
#define PRODUCT_KINDS(X) \
    X(WEIGHTS_BF16, 1)   \
    X(WEIGHTS_BF16, 2)   \
    X(WEIGHTS_F16, 2)    \
    X(WEIGHTS_Q8, 1)     \
    X(WEIGHTS_Q8, 2)     \
    X(WEIGHTS_Q6, 1)     \
    X(WEIGHTS_Q6, 2)     \
    X(WEIGHTS_Q4, 1)     \
    X(WEIGHTS_Q4, 2)

/* How x is split for them: the integers of blocks are exact in bf16. */
#define SPLIT_KINDS(X) \
    X(WEIGHTS_BF16, 1) \
    X(WEIGHTS_BF16, 2) \
    X(WEIGHTS_F16, 2)

/* x once it is split: [heads][groups of 8 rows][blocks][numbers][32 lanes] of 16 bytes. Which of
 * the blocks of all groups and heads a row's block is in. */
__device__ inline int64_t split_place(const product_call &call, int row, int block)
{
    int64_t group = (int64_t)blockIdx.z * ((call.num_rows + 7) / 8) + row / 8;
    return group * call.blocks + block;
}

/* Splits x into scratch, normed and gated, and gives the call what it has to read then. format:
 * bf16 for weights in blocks. */
template <enum weight_format format, int numbers>
void product_split(struct backend *backend, struct product_call *call, int heads);

/* Launchers, one per kernel: for a product kind with few rows and with many, and for f32. */
template <enum weight_format format, int numbers>
void product_stream(struct backend *backend, const struct product_call *call, int heads);
template <enum weight_format format, int numbers>
void product_tiles(struct backend *backend, const struct product_call *call, int heads);
void product_f32(struct backend *backend, const struct product_call *call, int heads);
/* product_scratch is the larger of these. */
size_t split_scratch(const struct backend *backend);
size_t tiles_scratch(const struct backend *backend);

/* The first block of a segment. */
__device__ inline int segment_begin(const product_call &call, int segment)
{
    return (int)((uint32_t)call.blocks * (uint32_t)segment >> call.segment_shift);
}

__device__ inline const unsigned char *panel_data(const product_call &call, size_t bytes_of_block,
                                                  int panel)
{
    int64_t index = (int64_t)blockIdx.z * call.panels + panel;
    return call.data + index * call.blocks * (int64_t)bytes_of_block;
}

/* The place of a CTA: its first row and its group of panels. CTAs of one group are neighbours, so
 * that one of them reads the weights from memory and the others from the second cache. */
struct cta_place {
    int row, group;
};

__device__ inline struct cta_place place_of_cta(const product_call &call, int rows)
{
    int tiles = (call.num_rows + rows - 1) / rows;
    return {(int)blockIdx.x % tiles * rows, (int)blockIdx.x / tiles};
}

/* The grid for CTAs with this many panels and rows each. */
inline dim3 product_grid(const struct product_call *call, int heads, int panels, int rows)
{
    int64_t groups = (call->panels + panels - 1) / panels;
    return dim3((unsigned)(groups * ((call->num_rows + rows - 1) / rows)), 1, (unsigned)heads);
}

/* The part of x that this head multiplies, from a row on. */
__device__ inline const float *input_row(const product_call &call, int row)
{
    return call.x + row * call.x_stride + (int64_t)blockIdx.z * call.in;
}

__device__ inline const float *gate_row(const product_call &call, int row)
{
    return call.norm.gate.data + row * call.norm.gate.stride + (int64_t)blockIdx.z * call.in;
}

/* Computes terms [rows, groups] of the CTA's `rows` rows from `first` on, where x is normed. The
 * whole block calls it, and may read them afterwards. */
__device__ inline void prepare_norm(const product_call &call, int first, int rows,
                                    struct norm_terms *terms)
{
    if (call.norm.kind == NORM_NONE)
        return;
    int groups = call.norm.groups, parts = min(rows, call.num_rows - first) * groups;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < parts; i += blockDim.x / 32) {
        struct norm_terms of_part = norm_terms_of<NORM_LOADS>(
            call.norm, input_row(call, first + i / groups) + i % groups * call.norm.size);
        if (threadIdx.x % 32 == 0)
            terms[i] = of_part;
    }
    __syncthreads();
}

/* The part of a row to which input k belongs. */
__device__ inline int part_of(const product_call &call, int k)
{
    return call.norm.groups == 1 ? 0 : k / call.norm.size;
}

/* Which parameters of the norm input k has. */
__device__ inline int parameter_place(const product_call &call, int k)
{
    return call.norm.by_part ? k : k - part_of(call, k) * call.norm.size;
}

/* Inputs [k, k + 4) of a row, zero past the last, and their gates, if the call and may_gate have
 * them. */
template <bool may_gate>
__device__ inline void load_numbers(struct norm_four &four, const product_call &call, int row,
                                    int k)
{
    four.x = load_four(input_row(call, row), k, call.in, call.aligned);
    if (may_gate && k < call.in && call.norm.gate.data != NULL)
        four.gate = *reinterpret_cast<const float4 *>(gate_row(call, row) + k);
}

/* Inputs [k, k + 4) of row first + row, zero past the last, normed and gated. may_norm: the kernel
 * has few rows, and a four lies in one part (product_norms). may_gate: it also has the registers.
 */
template <bool may_norm, bool may_gate>
__device__ inline struct norm_four load_inputs(const product_call &call, int first, int row, int k)
{
    struct norm_four four;
    load_numbers<may_norm && may_gate>(four, call, first + row, k);
    if (may_norm && k < call.in && call.norm.kind != NORM_NONE)
        load_parameters(four, call.norm, parameter_place(call, k));
    return four;
}

template <bool may_norm, bool may_gate>
__device__ inline float4 finish_inputs(const product_call &call, int row, int k,
                                       const struct norm_terms *terms, const struct norm_four &four)
{
    float4 x = four.x;
    if (!may_norm || k >= call.in)
        return x;
    if (call.norm.kind != NORM_NONE)
        x = norm_of_four(call.norm, terms[row * call.norm.groups + part_of(call, k)], four);
    if (may_gate && call.norm.gate.data != NULL)
        x = gate_four(FORMULA_SILU, four.gate, x);
    return x;
}

/* What is added to a sum: bias, and the earlier y. */
struct sum_end {
    float bias, before;
};

__device__ inline float *place_of_sum(const product_call &call, int row, int output)
{
    return call.y + row * call.y_stride + (int64_t)blockIdx.z * call.out + output;
}

__device__ inline struct sum_end load_end(const product_call &call, int row, int output)
{
    struct sum_end end = {};
    if (call.bias != NULL)
        end.bias = call.bias[(int64_t)blockIdx.z * call.out + output];
    if (call.accumulate)
        end.before = *place_of_sum(call, row, output);
    return end;
}

/* Applies bias, activation and residual to a sum. */
__device__ inline void finish_sum(const product_call &call, int row, int output, struct sum_end end,
                                  float sum)
{
    if (call.bias != NULL)
        sum += end.bias;
    if (call.activation != FORMULA_IDENTITY)
        sum = formula_apply(call.activation, sum, 0.0f, 0.0f);
    *place_of_sum(call, row, output) = call.accumulate ? end.before + sum : sum;
}

/* ---- fragments ---- */

__device__ inline float limit_f16(float x)
{
    x = x > 65504.0f ? 65504.0f : x; /* a NaN stays one */
    return x < -65504.0f ? -65504.0f : x;
}

/* Splits x for the tensor cores, which multiply numbers of two bytes. x becomes the sum of two: of
 * f16 for f16 weights, else of bf16, in which the integers of blocks are exact. The first is x
 * rounded, the second the rounded remainder. An f16 pair is within 2^-23 of x (or 2^-25 of 1); from
 * 131,024 on it is infinite, so that wrong logits are noticed. A bf16 pair is within 2^-17.
 *
 * With rounded activations (--activations 16bit) one bf16 number is enough, within 2^-8;
 * log-probabilities of the shipped model were off by up to 0.05 with it. */
template <enum weight_format format, int numbers>
__device__ inline void split_pair(float first, float second, uint32_t (&out)[numbers])
{
    if constexpr (format == WEIGHTS_F16) {
        out[0] = pack_f16(limit_f16(first), limit_f16(second));
        out[1] = pack_f16(first - f32_of_f16((uint16_t)out[0]),
                          second - f32_of_f16((uint16_t)(out[0] >> 16)));
    } else {
#pragma unroll
        for (int i = 0; i < numbers; i++) {
            out[i] = pack_bf16(first, second);
            first -= f32_of_bf16((uint16_t)out[i]);
            second -= f32_of_bf16((uint16_t)(out[i] >> 16));
        }
    }
}

/* The fragments b of both steps of a block, one for each number. */
template <int numbers> struct block_inputs {
    uint4 number[numbers];
};

/* From four adjacent inputs: b of one step. */
template <enum weight_format format, int numbers>
__device__ inline void split_four(float4 x, uint2 (&out)[numbers])
{
    uint32_t first[numbers], second[numbers];
    split_pair<format>(x.x, x.y, first);
    split_pair<format>(x.z, x.w, second);
#pragma unroll
    for (int i = 0; i < numbers; i++)
        out[i] = make_uint2(first[i], second[i]);
}

/* From eight. */
template <enum weight_format format, int numbers>
__device__ inline block_inputs<numbers> split_inputs(float4 first, float4 second)
{
    uint2 of_first[numbers], of_second[numbers];
    split_four<format>(first, of_first);
    split_four<format>(second, of_second);
    block_inputs<numbers> out;
#pragma unroll
    for (int i = 0; i < numbers; i++)
        out.number[i] = make_uint4(of_first[i].x, of_first[i].y, of_second[i].x, of_second[i].y);
    return out;
}

/* A lane's part of a block, as in memory. */
template <enum weight_format format> struct block_part {
    uint4 step[2];
};
template <> struct block_part<WEIGHTS_Q8> {
    uint4 quants;
    uint32_t scales;
};
template <> struct block_part<WEIGHTS_Q6> {
    uint2 low;
    uint32_t high, scales, factors;
};
template <> struct block_part<WEIGHTS_Q4> {
    uint2 quants;
    uint32_t scales, minima;
};

/* A lane's n-th dword of an array that begins at byte `at` of a block. */
__device__ inline uint32_t block_dword(const unsigned char *block, int at, int n)
{
    return *(const uint32_t *)(const void *)(block + at + n * 4);
}

__device__ inline uint2 block_pair(const unsigned char *block, int lane)
{
    return *(const uint2 *)(const void *)(block + lane * 8);
}

/* `load` reads 16 bytes, of global or of shared memory. */
template <enum weight_format format, typename load_function>
__device__ inline void load_block(block_part<format> &part, const unsigned char *block, int lane,
                                  load_function load)
{
    if constexpr (format == WEIGHTS_Q8) {
        part.quants = load(block + lane * 16);
        part.scales = block_dword(block, Q8_SCALES, lane / 4);
    } else if constexpr (format == WEIGHTS_Q6) {
        part.low = block_pair(block, lane);
        part.high = block_dword(block, Q6_HIGH, lane);
        part.factors = block_dword(block, Q6_FACTORS, lane / 4);
        part.scales = block_dword(block, Q6_SCALES, lane / 4);
    } else if constexpr (format == WEIGHTS_Q4) {
        part.quants = block_pair(block, lane);
        part.scales = block_dword(block, Q4_SCALES, lane / 4);
        part.minima = block_dword(block, Q4_MINIMA, lane / 4);
    } else {
        part.step[0] = load(block + lane * 16);
        part.step[1] = load(block + 512 + lane * 16);
    }
}

/* Two quants of a byte, less `zero`, as bf16. 2^23 + byte is exact in f32. So is the difference to
 * 2^23 + zero, and its upper half is the bf16. */
__device__ inline uint32_t unpack_pair(uint32_t first, uint32_t second, float zero)
{
    float low = __uint_as_float(0x4b000000u | first) - (8388608.0f + zero);
    float high = __uint_as_float(0x4b000000u | second) - (8388608.0f + zero);
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

/* Of q8's bytes, from bit `shift` on. */
__device__ inline uint32_t unpack_quants(uint32_t bytes, int shift)
{
    return unpack_pair(bytes >> shift & 255, bytes >> (shift + 8) & 255, 128.0f);
}

/* A block's fragments `a`, and what its sums are multiplied with, for outputs g and g + 8: scales,
 * in q6 a row of them for each half of the inputs, in q4 the minima too, for the sum of x. */
template <enum weight_format format> struct fragments {
    uint32_t a[2][4];
    float scale[2], second[2];
};

__device__ inline void unpack_halves(float (&out)[2], uint32_t halves)
{
    out[0] = f32_of_f16((uint16_t)halves);
    out[1] = f32_of_f16((uint16_t)(halves >> 16));
}

/* Four bits of register r's two quants in each dword; in q6 two more bits of `high`. */
__device__ inline void unpack_fours(uint32_t (&a)[2][4], uint2 low, uint32_t high, float zero)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t quants = (i < 4 ? low.x : low.y) >> i % 4 * 4 & 0x000f000fu;
        quants |= (high >> i * 2 & 0x00030003u) << 4;
        a[i / 4][i % 4] = unpack_pair(quants & 0xffffu, quants >> 16, zero);
    }
}

/* Factors are bytes: of output g for both halves of the inputs, then of g + 8. */
__device__ inline void unpack_factors(fragments<WEIGHTS_Q6> &out, uint32_t factors)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float scale = out.scale[i];
        out.scale[i] = (float)(int8_t)(factors >> i * 16 & 255) * scale;
        out.second[i] = (float)(int8_t)(factors >> (i * 16 + 8) & 255) * scale;
    }
}

template <enum weight_format format>
__device__ inline void unpack_block(fragments<format> &out, const block_part<format> &part)
{
    if constexpr (format == WEIGHTS_Q8) {
        const uint32_t quants[4] = {part.quants.x, part.quants.y, part.quants.z, part.quants.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            out.a[i / 4][i % 4] = unpack_quants(quants[i / 2], i % 2 * 16);
        unpack_halves(out.scale, part.scales);
    } else if constexpr (format == WEIGHTS_Q6) {
        unpack_fours(out.a, part.low, part.high, 32.0f);
        unpack_halves(out.scale, part.scales);
        unpack_factors(out, part.factors);
    } else if constexpr (format == WEIGHTS_Q4) {
        unpack_fours(out.a, part.quants, 0, 0.0f);
        unpack_halves(out.scale, part.scales);
        unpack_halves(out.second, part.minima);
    } else {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            out.a[s][0] = part.step[s].x;
            out.a[s][1] = part.step[s].y;
            out.a[s][2] = part.step[s].z;
            out.a[s][3] = part.step[s].w;
        }
    }
}

template <enum weight_format format>
__device__ inline void multiply_part(float sums[4], const uint32_t (&a)[2][4], uint4 x)
{
    const uint32_t first[2] = {x.x, x.y}, second[2] = {x.z, x.w};
    if constexpr (format == WEIGHTS_F16) {
        mma_f16_16x8x16(sums, a[0], first);
        mma_f16_16x8x16(sums, a[1], second);
    } else {
        mma_bf16_16x8x16(sums, a[0], first);
        mma_bf16_16x8x16(sums, a[1], second);
    }
}

/* sums += scale times the sum of a block that a[] begins, of all of x's numbers. */
template <enum weight_format format, int numbers>
__device__ inline void add_scaled(float sums[4], const float (&scale)[2], const uint32_t (&a)[2][4],
                                  const block_inputs<numbers> &x)
{
    float block[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < numbers; i++)
        multiply_part<format>(block, a, x.number[i]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        sums[i] = fmaf(scale[i / 2], block[i], sums[i]);
}

/* Lanes have inputs [8t, 8t + 8): with t < 2 those of the first half, else of the second. Others'
 * fragments become zero. */
__device__ inline void keep_half(uint32_t (&out)[2][4], const uint32_t (&a)[2][4], int half)
{
    const bool own = (threadIdx.x & 3) / 2 == (unsigned)half;
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i / 4][i % 4] = own ? a[i / 4][i % 4] : 0;
}

/* sums (d of common.cuh) += a block of weights times one of x. */
template <enum weight_format format, int numbers>
__device__ inline void multiply_block(float sums[4], const fragments<format> &weights,
                                      const block_inputs<numbers> &x)
{
    if constexpr (format == WEIGHTS_Q6) {
        uint32_t half[2][4];
        keep_half(half, weights.a, 0);
        add_scaled<format>(sums, weights.scale, half, x);
        keep_half(half, weights.a, 1);
        add_scaled<format>(sums, weights.second, half, x);
    } else if constexpr (HAS_SCALES<format>) {
        if constexpr (HAS_MINIMA<format>) { /* times the sum of x: ones in bf16 */
            const uint32_t one = 0x3f803f80u;
            const uint32_t ones[2][4] = {{one, one, one, one}, {one, one, one, one}};
            add_scaled<format>(sums, weights.second, ones, x);
        }
        add_scaled<format>(sums, weights.scale, weights.a, x);
    } else {
#pragma unroll
        for (int i = 0; i < numbers; i++)
            multiply_part<format>(sums, weights.a, x.number[i]);
    }
}

/* Loads 16 bytes of weights that are read once, without displacing x in the first cache. */
__device__ inline uint4 load_once(const void *from)
{
    return __ldcs((const uint4 *)from);
}

/* Writes a warp's sums of MT panels and NT times 8 rows to shared memory, a row every `stride`. */
template <int MT, int NT>
__device__ inline void put_sums(const float (&sums)[MT][NT][4], float *to, int stride)
{
    int lane = threadIdx.x % 32, row = lane % 4 * 2, output = lane / 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[(row + n * 8 + i % 2) * stride + output + m * FRAGMENT_OUTPUTS + i / 2 * 8] =
                    sums[m][n][i];
}

#endif
