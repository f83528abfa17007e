/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of one head's S in the registers of a block of threads, and how a token changes and reads
 * it. */
#ifndef ENGINE_CUDA_RECURRENCE_STATE_CUH
#define ENGINE_CUDA_RECURRENCE_STATE_CUH

#include "engine/cuda/recurrence_chunk.cuh"

/* A thread's 4 features of 32 by 4 rows. */
struct slice {
    float s[4][4];
};

/* Where a thread's part of S begins, and which feature it is at. */
struct owner {
    bool works; /* the other threads only fill */
    float *state;
    int feature;     /* its first; the others of a slice are 8, 16 and 24 on */
    int row, column; /* of the piece's rows: its warp's first, and its own */
    int warp;        /* over the features */
};

__device__ static inline void load4(float out[4], const float *from)
{
    float4 v = *reinterpret_cast<const float4 *>(from);
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
}

/* state: of the piece's own blocks, which are adjacent in memory. */
__device__ static struct owner owner_of(const struct recurrence_call &call,
                                        const struct piece &piece, float *state)
{
    int lane = lane_index(), block = warp_index() / call.wide;
    struct owner owner = {};
    owner.works = block < piece.held;
    if (!owner.works)
        return owner;
    owner.warp = warp_index() % call.wide;
    owner.row = block * OPS_ROW_BLOCK;
    owner.column = owner.row + lane % 4 * 4;
    owner.feature = owner.warp * call.groups * WARP_FEATURES + lane / 4;
    owner.state = state + block * block_floats(call) + lane % 4 * 4;
    return owner;
}

__device__ static inline void load_slice(struct slice &slice, const struct owner &owner,
                                         int features, int group)
{
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int j = owner.feature + group * WARP_FEATURES + c * 8;
        for (int r = 0; r < 4; r++)
            slice.s[c][r] = 0.0f;
        if (j < features)
            load4(slice.s[c], owner.state + (int64_t)j * OPS_ROW_BLOCK);
    }
}

__device__ static inline void store_slice(const struct slice &slice, const struct owner &owner,
                                          int features, int group)
{
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int j = owner.feature + group * WARP_FEATURES + c * 8;
        const float *s = slice.s[c];
        if (j < features)
            *reinterpret_cast<float4 *>(owner.state + (int64_t)j * OPS_ROW_BLOCK) =
                make_float4(s[0], s[1], s[2], s[3]);
    }
}

template <bool DECAYS, bool FEATURES>
__device__ static inline void decay_slice(struct slice &slice, const float decay[4], const float *f)
{
    float of_feature[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (FEATURES)
        load4(of_feature, f);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            if (FEATURES)
                slice.s[c][r] *= of_feature[c];
            if (DECAYS)
                slice.s[c][r] *= decay[r];
        }
}

/* sums += s.phi */
__device__ static inline void weigh_slice(const struct slice &slice, const float *phi,
                                          float sums[4])
{
    float of_feature[4];
    load4(of_feature, phi);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            sums[r] = fmaf(slice.s[c][r], of_feature[c], sums[r]);
}

/* s += value phi_k */
__device__ static inline void add_to_slice(struct slice &slice, const float *k,
                                           const float value[4])
{
    float of_feature[4];
    load4(of_feature, k);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            slice.s[c][r] = fmaf(value[r], of_feature[c], slice.s[c][r]);
}

/* Adds 4 rows over the 8 lanes that share them, into out [16]. At each step a lane gives away the
 * half of its rows that its partner keeps. */
__device__ static inline void write_sums(const float sums[4], float *out)
{
    int lane = lane_index();
    bool upper = (lane & 16) != 0, second = (lane & 8) != 0;
    float first = upper ? sums[2] : sums[0], last = upper ? sums[3] : sums[1];
    first += __shfl_xor_sync(FULL_WARP, upper ? sums[0] : sums[2], 16);
    last += __shfl_xor_sync(FULL_WARP, upper ? sums[1] : sums[3], 16);
    float sum = second ? last : first;
    sum += __shfl_xor_sync(FULL_WARP, second ? first : last, 8);
    sum += __shfl_xor_sync(FULL_WARP, sum, 4);
    if ((lane & 4) == 0)
        out[lane % 4 * 4 + (upper ? 2 : 0) + (second ? 1 : 0)] = sum;
}

/* GROUPS slices of a thread, in registers; 0: as many as there are, in memory. */
template <int GROUPS> struct slices {
    struct slice of[GROUPS == 0 ? 1 : GROUPS];

    __device__ int count(const struct recurrence_call &call) const
    {
        return GROUPS == 0 ? call.groups : GROUPS;
    }
    __device__ struct slice &open(const struct recurrence_call &call, const struct owner &owner,
                                  int group)
    {
        if (GROUPS != 0)
            return of[group];
        load_slice(of[0], owner, call.a.features, group);
        return of[0];
    }
    __device__ void close(const struct recurrence_call &call, const struct owner &owner, int group)
    {
        if (GROUPS == 0)
            store_slice(of[0], owner, call.a.features, group);
    }
};

/* The factors of a thread's 4 rows. What was computed before the recurrence leaves out that of a
 * raised maximum, which is the same for all rows. */
template <bool GIVEN>
__device__ static inline void load_decay(const struct recurrence_call &call,
                                         const struct owner &owner, const float *shared, int t,
                                         float decay[4])
{
    load4(decay, shared + call.at.decay + t * call.height + owner.column);
    for (int r = 0; GIVEN && r < 4; r++)
        decay[r] *= shared[call.at.rescale];
}

/* Token t of the chunk changes S and reads it. */
template <int GROUPS, bool DECAYS, bool FEATURES, bool GIVEN>
__device__ static inline void recur(const struct recurrence_call &call, const struct owner &owner,
                                    struct slices<GROUPS> &slices, float *shared, int t)
{
    int own = t * call.padded + owner.warp * call.groups * WARP_FEATURES + lane_index() / 4 * 4;
    float decay[4], value[4], sums[4] = {};
    load_decay<GIVEN>(call, owner, shared, t, decay);
    load4(value, shared + call.at.value + t * call.height + owner.column);
#pragma unroll
    for (int n = 0; n < slices.count(call); n++) {
        int at = own + n * WARP_FEATURES;
        struct slice &slice = slices.open(call, owner, n);
        decay_slice<DECAYS, FEATURES>(slice, decay, shared + call.at.f + at);
        add_to_slice(slice, shared + call.at.k + at, value);
        weigh_slice(slice, shared + call.at.q + at, sums);
        slices.close(call, owner, n);
    }
    write_sums(sums,
               shared + call.at.sums + (t * call.wide + owner.warp) * call.height + owner.row);
}

/* What goes of S before a token adds to it: nothing, what its key had, or what another vector had.
 */
enum erasing { ERASES_NOTHING, ERASES_BY_KEY, ERASES_BY_ANOTHER };

/* The same where something goes first, which needs a product with S over all features before it
 * changes one. All threads of the block call it together. */
template <int GROUPS, bool GIVEN, bool APART>
__device__ static inline void recur_erasing(const struct recurrence_call &call,
                                            const struct owner &owner,
                                            struct slices<GROUPS> &slices, float *shared, int t)
{
    int own = t * call.padded + owner.warp * call.groups * WARP_FEATURES + lane_index() / 4 * 4;
    float *dots = shared + call.at.dots + t % 2 * call.wide * call.height;
    float decay[4], value[4], sums[4] = {}, erased[4];
    if (owner.works) {
        load_decay<GIVEN>(call, owner, shared, t, decay);
        load4(value, shared + call.at.value + t * call.height + owner.column);
#pragma unroll
        for (int n = 0; n < slices.count(call); n++) {
            int at = own + n * WARP_FEATURES;
            struct slice &slice = slices.open(call, owner, n);
            if (APART)
                weigh_slice(slice, shared + call.at.erase + at, sums);
            decay_slice<true, true>(slice, decay, shared + call.at.f + at);
            if (!APART)
                weigh_slice(slice, shared + call.at.k + at, sums);
            slices.close(call, owner, n);
        }
        write_sums(sums, dots + owner.warp * call.height + owner.row);
    }
    __syncthreads();
    if (!owner.works)
        return;
    for (int r = 0; r < 4; r++) {
        float dot = 0.0f;
        for (int w = 0; w < call.wide; w++)
            dot += dots[w * call.height + owner.column + r];
        if (APART)
            erased[r] = -dot;
        else
            value[r] = fmaf(-shared[call.at.delta + t], dot, value[r]);
        sums[r] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < slices.count(call); n++) {
        int at = own + n * WARP_FEATURES;
        struct slice &slice = slices.open(call, owner, n);
        add_to_slice(slice, shared + call.at.k + at, value);
        if (APART)
            add_to_slice(slice, shared + call.at.write + at, erased);
        weigh_slice(slice, shared + call.at.q + at, sums);
        slices.close(call, owner, n);
    }
    write_sums(sums,
               shared + call.at.sums + (t * call.wide + owner.warp) * call.height + owner.row);
}

#endif
