/* SPDX-License-Identifier: Apache-2.0 */
/* Applies the positions of engine/ops/ops.h to one head, an element at a time, so that threads can
 * share the work in any way. Both the operation and the feature maps of the recurrence use it. */
#ifndef ENGINE_CUDA_POSITIONS_CUH
#define ENGINE_CUDA_POSITIONS_CUH

#include "engine/cuda/common.cuh"

/* A head's position at one token. */
struct head_position {
    const float *cosines, *sines; /* of its angles */
    int64_t position;
    float twice; /* position_reflection */
};

/* Twice the dot product of x with the Householder vector, in the CPU's order: 16 running sums, then
 * a tree. The whole warp calls it. */
__device__ inline float position_reflection(const struct ops_positions &a, const float *x, int lane)
{
    float sum = 0.0f;
    if (a.basis != BASIS_HOUSEHOLDER)
        return 0.0f;
    for (int i = lane % 16; i < a.dim; i += 16)
        sum = fmaf(a.householder[i], x[i], sum);
    return 2.0f * warp_sum(sum, 16);
}

/* Element j of x in the basis of LRPE. */
__device__ inline float position_basis(const struct ops_positions &a, float twice, int j,
                                       const float *x)
{
    if (a.basis == BASIS_HOUSEHOLDER)
        return fmaf(-twice, a.householder[j], x[j]);
    if (a.basis == BASIS_ODD_EVEN)
        return x[j % 2 == 0 ? j / 2 : (a.dim + 1) / 2 + j / 2];
    return x[j];
}

/* Element j of x after its position; j is in [0, dim), or in [0, 2 dim) for unitary. */
__device__ inline float position_element(const struct ops_positions &a,
                                         const struct head_position &position, int j,
                                         const float *x)
{
    float twice = position.twice;
    if (a.kind == POSITION_LRPE_PERMUTATION) {
        int32_t length = a.length[j], step = (int32_t)(position.position % length);
        return position_basis(a, twice, a.cycle[a.start[j] + (a.place[j] + step) % length], x);
    }
    if (a.kind == POSITION_LRPE_UNITARY) {
        int i = j < a.dim ? j : j - a.dim;
        return position_basis(a, twice, i, x) *
               (j < a.dim ? position.cosines[i] : position.sines[i]);
    }
    if (j >= a.rotary_dims / 2 * 2)
        return position_basis(a, twice, j, x);
    int half = a.rotary_dims / 2;
    bool halves = a.pairing == ROPE_PAIRING_HALF;
    int pair = halves ? j % half : j / 2;
    float u = position_basis(a, twice, halves ? pair : 2 * pair, x);
    float v = position_basis(a, twice, halves ? pair + half : 2 * pair + 1, x);
    bool first = halves ? j < half : j % 2 == 0;
    return first ? u * position.cosines[pair] - v * position.sines[pair]
                 : v * position.cosines[pair] + u * position.sines[pair];
}

/* Output j of spe, of the head's q or k: one running sum over the features. */
__device__ inline float position_encoded(const struct ops_positions &a,
                                         const struct head_position &position, bool key, int head,
                                         int j, const float *x)
{
    const float *code = (key ? a.code_k : a.code_q) +
                        (int64_t)head * a.dim * (2 * a.num_sines + a.gated) * a.outputs + j;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < a.dim; i++) {
#pragma unroll 1
        for (int k = i * a.num_sines; k < (i + 1) * a.num_sines; k++, code += 2 * a.outputs) {
            sum = fmaf(x[i] * position.cosines[k], code[0], sum);
            sum = fmaf(x[i] * position.sines[k], code[a.outputs], sum);
        }
        if (a.gated) {
            sum = fmaf(x[i], *code, sum);
            code += a.outputs;
        }
    }
    return sum;
}

#endif
