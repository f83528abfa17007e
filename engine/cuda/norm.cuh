/* SPDX-License-Identifier: Apache-2.0 */
/* Norms a part of a row: for the norm operation (elementwise.cu), for products that norm and gate
 * their x as they read it (product.cuh), and for the kernel that splits x for them
 * (product_split.cu). All give the same bits, since the part's size alone decides the tree of a
 * sum: a lane's fours in order, then the lanes. So one warp adds (norm_terms_of), wherever x is; a
 * whole block only loads and writes (norm_by_block). */
#ifndef ENGINE_CUDA_NORM_CUH
#define ENGINE_CUDA_NORM_CUH

#include "engine/cuda/common.cuh"

/* What all numbers of a part share. */
struct norm_terms {
    float mean, factor;
};

/* Numbers [j, j + 4) of `count`; zero past the last. j is a multiple of 4. aligned: number 0 lies
 * at a multiple of 16 bytes. */
__device__ inline float4 load_four(const float *from, int j, int count, bool aligned)
{
    if (aligned && j + 4 <= count)
        return *reinterpret_cast<const float4 *>(from + j);
    float4 x;
    x.x = j < count ? from[j] : 0.0f;
    x.y = j + 1 < count ? from[j + 1] : 0.0f;
    x.z = j + 2 < count ? from[j + 2] : 0.0f;
    x.w = j + 3 < count ? from[j + 3] : 0.0f;
    return x;
}

/* whole: x and its end lie at multiples of 16 bytes. Then nothing separates the loads, and several
 * are under way at once. */
template <bool whole>
__device__ inline float4 load_part(const struct ops_norm &a, const float *x, int j, bool aligned)
{
    return whole ? *reinterpret_cast<const float4 *>(x + j) : load_four(x, j, a.size, aligned);
}

/* A lane's fours from j on, one every 128 numbers. */
template <bool whole, int loads>
__device__ inline void load_parts(const struct ops_norm &a, const float *x, int j, bool aligned,
                                  float4 (&fours)[loads])
{
#pragma unroll
    for (int i = 0; i < loads; i++)
        if (j + i * 128 < a.size)
            fours[i] = load_part<whole>(a, x, j + i * 128, aligned);
}

template <bool whole, int loads>
__device__ inline struct norm_terms norm_terms_by(const struct ops_norm &a, const float *x,
                                                  bool aligned)
{
    int first = (int)threadIdx.x % 32 * 4;
    float n = (float)a.size, mean = 0.0f, squares = 0.0f;
    float4 fours[loads];
    if (a.kind == NORM_LAYERNORM) {
        float sum = 0.0f;
#pragma unroll 1
        for (int j = first; j < a.size; j += loads * 128) {
            load_parts<whole, loads>(a, x, j, aligned, fours);
#pragma unroll
            for (int i = 0; i < loads; i++)
                if (j + i * 128 < a.size)
                    sum += (fours[i].x + fours[i].y) + (fours[i].z + fours[i].w);
        }
        mean = warp_sum(sum) / n;
    }
#pragma unroll 1
    for (int j = first; j < a.size; j += loads * 128) {
        load_parts<whole, loads>(a, x, j, aligned, fours);
#pragma unroll
        for (int i = 0; i < loads * 4; i++)
            if (j + i / 4 * 128 + (whole ? 0 : i % 4) < a.size) {
                float4 four = fours[i / 4];
                float number = i % 4 == 0   ? four.x
                               : i % 4 == 1 ? four.y
                               : i % 4 == 2 ? four.z
                                            : four.w;
                squares = fmaf(number - mean, number - mean, squares);
            }
    }
    float square = warp_sum(squares) / (a.kind == NORM_L2 ? 1.0f : n);
    return {mean, a.kind == NORM_SIMPLE_RMSNORM ? 1.0f / (sqrtf(square) + a.eps)
                                                : 1.0f / sqrtf(square + a.eps)};
}

enum { NORM_LOADS = 2 }; /* where others are under way, too, or x is in shared memory */

/* The terms of a part x [a.size]; every lane of the warp gets them. loads: how many fours a lane
 * has under way at once, which takes registers. */
template <int loads>
__device__ inline struct norm_terms norm_terms_of(const struct ops_norm &a, const float *x)
{
    bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    return aligned && a.size % 4 == 0 ? norm_terms_by<true, loads>(a, x, aligned)
                                      : norm_terms_by<false, loads>(a, x, aligned);
}

/* Norms a number of the part. weight and bias are those of its place, if there are any. */
__device__ inline float norm_number(const struct ops_norm &a, struct norm_terms terms, float x,
                                    float weight, float bias)
{
    float value = (x - terms.mean) * terms.factor;
    if (a.weight != NULL)
        value *= weight;
    if (a.kind == NORM_GATED_RMSNORM)
        return formula_own_gate(value, bias, x);
    if (a.bias != NULL)
        value += bias;
    return value;
}

/* Four adjacent numbers with their weights and biases, all loaded before any is needed. */
struct norm_four {
    float4 x, weight, bias, gate;
};

/* Which parameter number j of a part has. */
__device__ inline int parameter_of(const struct ops_norm &a, int part, int j)
{
    return a.by_part ? part * a.size + j : j;
}

/* Parameters [j, j + 4), which must all exist. j is a multiple of 4, and parameters begin at a
 * multiple of 16 bytes. */
__device__ inline void load_parameters(struct norm_four &four, const struct ops_norm &a, int j)
{
    if (a.weight != NULL)
        four.weight = *reinterpret_cast<const float4 *>(a.weight + j);
    if (a.bias != NULL)
        four.bias = *reinterpret_cast<const float4 *>(a.bias + j);
}

/* x of it, normed. */
__device__ inline float4 norm_of_four(const struct ops_norm &a, struct norm_terms terms,
                                      const struct norm_four &four)
{
    return make_float4(norm_number(a, terms, four.x.x, four.weight.x, four.bias.x),
                       norm_number(a, terms, four.x.y, four.weight.y, four.bias.y),
                       norm_number(a, terms, four.x.z, four.weight.z, four.bias.z),
                       norm_number(a, terms, four.x.w, four.weight.w, four.bias.w));
}

/* Numbers after their gates. */
__device__ inline float4 gate_four(enum formula formula, float4 gate, float4 x)
{
    return make_float4(formula_apply(formula, gate.x, 0.0f, 0.0f) * x.x,
                       formula_apply(formula, gate.y, 0.0f, 0.0f) * x.y,
                       formula_apply(formula, gate.z, 0.0f, 0.0f) * x.z,
                       formula_apply(formula, gate.w, 0.0f, 0.0f) * x.w);
}

/* ---- a block per part ----
 * Where there are too few parts to keep all multiprocessors busy with a warp each, what counts is
 * how often a warp waits for memory. A block requests all of a part at once. */

enum {
    NORM_THREADS = 256,
    NORM_BLOCKS = 4, /* in a multiprocessor, for which they have few registers */
    NORM_FOURS = 2,  /* of a thread at once */
    NORM_STEP = NORM_THREADS * 4,
    LEAST_BLOCK_PART = 256
};

/* Shared memory of norm_by_block: the terms, and `count` numbers. */
inline size_t norm_block_bytes(int count)
{
    return (4 + ((size_t)count + 3) / 4 * 4) * sizeof(float);
}

/* Whether `parts` parts get a block each, with `count` numbers in shared memory: all of them run at
 * once, a part is more than two fours for each lane of a warp, and it fits. */
inline bool norm_by_blocks(const struct backend *backend, const struct ops_norm &a, int64_t parts,
                           int count)
{
    return switch_on(backend, CUDA_SWITCH_PARTS) && a.kind != NORM_NONE &&
           a.size > LEAST_BLOCK_PART && parts <= (int64_t)NORM_BLOCKS * backend->multiprocessors &&
           norm_block_bytes(count) <= backend->shared_bytes - OWN_ARRAYS;
}

/* A thread's fours from number `first` of `count` on, one every NORM_STEP. */
template <typename function>
__device__ inline void each_norm_four(int first, int count, function visit)
{
#pragma unroll
    for (int i = 0; i < NORM_FOURS; i++)
        if (first + i * NORM_STEP < count)
            visit(i, first + i * NORM_STEP);
}

/* Numbers [0, count) of a part, of which a.size are normed, by all NORM_THREADS threads of a block.
 * wait() is grid_wait, written in the kernel (timestamps.cuh). For fours of numbers from j on:
 * parameters(four, j) loads the weights, before the wait; values(four, j) loads x and the gate;
 * put(four, j, terms) writes what comes of it. No two threads have the same numbers. first: the
 * gate, of this formula, comes before the norm. shared: norm_block_bytes. */
template <bool first, enum formula formula, typename wait_for_kernel, typename load_weights,
          typename load_values, typename write>
__device__ inline void norm_by_block(const struct ops_norm &a, int count, float *shared,
                                     wait_for_kernel wait, load_weights parameters,
                                     load_values values, write put)
{
    struct norm_four fours[NORM_FOURS];
    struct norm_terms *of_part = reinterpret_cast<struct norm_terms *>(shared), terms;
    float *row = shared + 4;
    const int own = (int)threadIdx.x * 4, round = NORM_FOURS * NORM_STEP;
    each_norm_four(own, count, [&](int i, int j) { parameters(fours[i], j); });
    wait();
    /* backward, so that the gates of the first round are still there when it is written */
#pragma unroll 1
    for (int from = own + (count - 1) / round * round; from >= 0; from -= round) {
        each_norm_four(from, count, [&](int i, int j) { values(fours[i], j); });
        each_norm_four(from, count, [&](int i, int j) {
            float4 x = fours[i].x;
            *reinterpret_cast<float4 *>(row + j) = first ? gate_four(formula, fours[i].gate, x) : x;
        });
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        terms = norm_terms_of<NORM_LOADS>(a, row);
        if (threadIdx.x == 0)
            *of_part = terms;
    }
    __syncthreads();
    terms = *of_part;
#pragma unroll 1
    for (int from = own; from < count; from += round) {
        if (from > own)
            each_norm_four(from, count, [&](int i, int j) {
                parameters(fours[i], j);
                values(fours[i], j);
            });
        each_norm_four(from, count, [&](int i, int j) {
            fours[i].x = *reinterpret_cast<float4 *>(row + j);
            put(fours[i], j, terms);
        });
    }
}

#endif
