/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of drawing a token that take a whole block (sampling.cu): reductions, passes over a
 * row, and the sum of weights. That sum is the host's (engine/ops/logits.c): 64 running sums by
 * index, then a tree.
 *
 * One block can hide the latency of loads only if many are under way. So loops read a batch before
 * they use or write any of it. */
#ifndef ENGINE_CUDA_SAMPLING_BLOCK_CUH
#define ENGINE_CUDA_SAMPLING_BLOCK_CUH

#include "engine/cuda/common.cuh"
#include "engine/cuda/sampling_arrays.cuh"

namespace
{

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    BATCH = 8,                 /* loads of a thread under way */
    CUT_BATCH = 4,             /* where registers are few */
    LANES = 64,                /* running sums, as in engine/ops/logits.c */
    FILLERS = THREADS - LANES, /* threads that make weights for them */
    EACH = 2,                  /* weights a filler makes at a time */
    CHUNK = EACH * FILLERS,    /* a multiple of LANES */
    TESTS = 3,                 /* keys a pass */
    TOTALS = TESTS + 1,
    FEW = 4, /* candidates that a thread keeps by itself */
    BLOCK = SAMPLING_BLOCK
};

struct best {
    float logit;
    int32_t id;
};

struct block_memory {
    union {
        double chunks[2][CHUNK]; /* one is filled while the other is summed */
        struct {
            float logits[FEW * THREADS], weights[FEW * THREADS];
        } few;
    };
    double sums[WARPS][TOTALS], totals[TOTALS];
    best bests[WARPS];
    uint32_t counts[WARPS];
    double total;
    int place;
};

/* ---- a whole warp or block calls these; every thread gets the result ---- */

__device__ best better(best a, best b)
{
    return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}

__device__ best warp_best(best mine)
{
    for (int other = 16; other > 0; other /= 2)
        mine = better(mine, {__shfl_xor_sync(FULL_WARP, mine.logit, other),
                             __shfl_xor_sync(FULL_WARP, mine.id, other)});
    return mine;
}

__device__ best block_best(block_memory *m, best mine)
{
    mine = warp_best(mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        m->bests[threadIdx.x / 32] = mine;
    __syncthreads();
    return warp_best(m->bests[threadIdx.x % 32]);
}

/* totals[j]: the sum of all lanes' mine[j]. While a lane has several sums it gives half of them
 * away, so that few are added twice. Lanes that differ in bits 3 and 4 then have different sums. */
__device__ void block_totals(block_memory *m, const double mine[TOTALS], double totals[TOTALS])
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
    double a = upper ? mine[2] : mine[0], b = upper ? mine[3] : mine[1];
    a += __shfl_xor_sync(FULL_WARP, upper ? mine[0] : mine[2], 16);
    b += __shfl_xor_sync(FULL_WARP, upper ? mine[1] : mine[3], 16);
    double one = odd ? b : a;
    one += __shfl_xor_sync(FULL_WARP, odd ? a : b, 8);
    for (int other = 4; other > 0; other /= 2)
        one += __shfl_xor_sync(FULL_WARP, one, other);
    if (lane % 8 == 0)
        m->sums[warp][lane / 8] = one;
    __syncthreads();
    if (threadIdx.x < TOTALS) {
        double all = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            all += m->sums[w][threadIdx.x];
        m->totals[threadIdx.x] = all;
    }
    __syncthreads();
    for (int j = 0; j < TOTALS; j++)
        totals[j] = m->totals[j];
}

/* The sum of the counts of the warps before this one. *all: the sum of all. Two counts of up to
 * 2^15 may be packed into one. */
__device__ uint32_t count_before(block_memory *m, uint32_t count, uint32_t *all)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    __syncthreads();
    if (lane == 0)
        m->counts[warp] = count;
    __syncthreads();
    uint32_t sum = m->counts[lane];
    for (int by = 1; by < 32; by *= 2) {
        uint32_t before = __shfl_up_sync(FULL_WARP, sum, (unsigned)by);
        sum += lane >= by ? before : 0;
    }
    *all = __shfl_sync(FULL_WARP, sum, 31);
    return __shfl_sync(FULL_WARP, sum, warp) - count;
}

/* ---- passes over a row ---- */

/* Calls take(i, values[i]) for each of this thread's i below count, in rising order. */
template <typename Take> __device__ void for_each(const float *values, int32_t count, Take take)
{
    for (int32_t first = (int32_t)threadIdx.x; first < count; first += BATCH * THREADS) {
        float x[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            x[k] = first + k * THREADS < count ? values[first + k * THREADS] : 0.0f;
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (first + k * THREADS < count)
                take(first + k * THREADS, x[k]);
    }
}

/* The best of logits [count] after `last`, in falling order and with the smallest id first. */
__device__ best best_after(block_memory *m, const float *logits, int32_t count, best last)
{
    best mine = {-INFINITY, INT32_MAX};
    for_each(logits, count, [&](int32_t i, float logit) {
        if (logit < last.logit || (logit == last.logit && i > last.id))
            mine = better(mine, {logit, i});
    });
    return block_best(m, mine);
}

/* The best of logits [count], the smallest id first, in one pass; *has_nan: whether one is NaN. */
__device__ best block_first(block_memory *m, const float *logits, int32_t count, bool *has_nan)
{
    best mine = {-INFINITY, INT32_MAX};
    bool missing = false;
    auto take = [&](float logit, int32_t id) {
        missing = missing || logit != logit;
        mine = better(mine, {logit, id});
    };
    int32_t fours = reinterpret_cast<uintptr_t>(logits) % 16 == 0 ? count / 4 : 0;
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x; i < fours; i += THREADS) {
        float4 x = reinterpret_cast<const float4 *>(logits)[i];
        take(x.x, 4 * i);
        take(x.y, 4 * i + 1);
        take(x.z, 4 * i + 2);
        take(x.w, 4 * i + 3);
    }
    for (int32_t i = 4 * fours + (int32_t)threadIdx.x; i < count; i += THREADS)
        take(logits[i], i);
    missing = __any_sync(FULL_WARP, missing) != 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        m->counts[threadIdx.x / 32] = missing;
    best all = block_best(m, mine);
    *has_nan = __any_sync(FULL_WARP, m->counts[threadIdx.x % 32] != 0) != 0;
    return all;
}

/* The first of logits [count] that is NaN. */
__device__ int32_t first_nan(block_memory *m, const float *logits, int32_t count)
{
    best mine = {-INFINITY, INT32_MAX};
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += THREADS)
        if (logits[i] != logits[i])
            mine = better(mine, {0.0f, i});
    return block_best(m, mine).id;
}

/* The sum of 64 sums, two per lane, by the host's tree; in lane 0. */
__device__ double fold(double low, double high)
{
    low += high;
    for (int width = 16; width > 0; width /= 2)
        low += __shfl_down_sync(FULL_WARP, low, (unsigned)width);
    return low;
}

/* The values of which a filler makes weights, from `first` on. */
__device__ void read_ahead(const float *values, int32_t first, int32_t count, float ahead[EACH])
{
    int32_t i = first + (int32_t)threadIdx.x - LANES;
#pragma unroll
    for (int e = 0; e < EACH; e++, i += FILLERS)
        ahead[e] = (int)threadIdx.x >= LANES && i < count ? values[i] : 0.0f;
}

/* The sum of weight(i, values[i]), in the host's order. The first threads add one chunk while the
 * others make the next one and read the one after. weight may change values[i]. */
template <typename Weight>
__device__ double ordered_sum(block_memory *m, const float *values, int32_t count, Weight weight)
{
    int tid = (int)threadIdx.x;
    double lane = 0;
    float ahead[EACH];
    int turn = 0;
    read_ahead(values, 0, count, ahead);
    __syncthreads();
    for (int32_t first = 0; first < count + CHUNK; first += CHUNK, turn = 1 - turn) {
        float now[EACH];
        memcpy(now, ahead, sizeof now);
        read_ahead(values, first + CHUNK, count, ahead);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int32_t i = tid - LANES + e * FILLERS;
            if (tid >= LANES && first + i < count)
                m->chunks[turn][i] = weight(first + i, now[e]);
        }
        int32_t behind = first - CHUNK, n = count - behind < CHUNK ? count - behind : (int)CHUNK;
        if (tid < LANES && behind >= 0) {
#pragma unroll 10
            for (int32_t i = tid; i < n; i += LANES)
                lane += m->chunks[1 - turn][i];
        }
        __syncthreads();
    }
    if (tid < LANES)
        m->chunks[0][tid] = lane;
    __syncthreads();
    if (tid < 32) {
        double sum = fold(m->chunks[0][tid], m->chunks[0][tid + 32]);
        if (tid == 0)
            m->total = sum;
    }
    __syncthreads();
    return m->total;
}

} // namespace

#endif
