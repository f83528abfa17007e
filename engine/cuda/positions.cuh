/* The positions of engine/ops.h on one head, by one warp: for the operation itself and for the
 * feature maps of the recurrence, which apply them in shared memory. */
#ifndef ENGINE_CUDA_POSITIONS_CUH
#define ENGINE_CUDA_POSITIONS_CUH

#include "engine/cuda/common.cuh"

/* What a head's position at one token is. */
struct head_position {
    const float *cosines, *sines; /* of its angles */
    int64_t position;
    float twice; /* position_reflection */
};

/* Twice the dot of x with the Householder vector, in the CPU's order: 16 running sums, then a
 * tree. */
__device__ inline float position_reflection(const struct ops_positions &a, const float *x, int lane)
{
    float sum = 0.0f;
    if (a.basis != BASIS_HOUSEHOLDER)
        return 0.0f;
    for (int i = lane % 16; i < a.dim; i += 16)
        sum = fmaf(a.householder[i], x[i], sum);
    return 2.0f * warp_sum(sum, 16);
}

/* Element j of x in the basis. */
__device__ inline float position_basis(const struct ops_positions &a, float twice, int j,
                                       const float *x)
{
    if (a.basis == BASIS_HOUSEHOLDER)
        return fmaf(-twice, a.householder[j], x[j]);
    if (a.basis == BASIS_ODD_EVEN)
        return x[j % 2 == 0 ? j / 2 : (a.dim + 1) / 2 + j / 2];
    return x[j];
}

/* How many calls of position_write a head is: pairs, then what is not rotated; or its elements. */
__device__ inline int position_outputs(const struct ops_positions &a)
{
    bool rotates = a.kind != POSITION_LRPE_UNITARY && a.kind != POSITION_LRPE_PERMUTATION;
    return rotates ? a.dim - a.rotary_dims / 2 : a.dim;
}

/* Writes output j of the head; x and out may not overlap. */
__device__ inline void position_write(const struct ops_positions &a,
                                      const struct head_position &position, int j, const float *x,
                                      float *out)
{
    float twice = position.twice;
    if (a.kind == POSITION_LRPE_PERMUTATION) {
        int32_t length = a.length[j], step = (int32_t)(position.position % length);
        out[j] = position_basis(a, twice, a.cycle[a.start[j] + (a.place[j] + step) % length], x);
    } else if (a.kind == POSITION_LRPE_UNITARY) {
        float value = position_basis(a, twice, j, x);
        out[j] = value * position.cosines[j];
        out[a.dim + j] = value * position.sines[j];
    } else if (j < a.rotary_dims / 2) {
        int half = a.rotary_dims / 2;
        int first = a.pairing == ROPE_PAIRING_HALF ? j : 2 * j;
        int second = a.pairing == ROPE_PAIRING_HALF ? j + half : 2 * j + 1;
        float u = position_basis(a, twice, first, x), v = position_basis(a, twice, second, x);
        out[first] = u * position.cosines[j] - v * position.sines[j];
        out[second] = v * position.cosines[j] + u * position.sines[j];
    } else {
        int k = j + a.rotary_dims / 2;
        out[k] = position_basis(a, twice, k, x);
    }
}

#endif
