/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a text's candidates by top_k and top_p: keeps the fewest of the best whose weights reach a
 * sum. It searches for the key of the last one, with three keys per pass, until each thread has few
 * candidates left and keeps these by itself. */
#ifndef ENGINE_CUDA_SAMPLING_CUT_CUH
#define ENGINE_CUDA_SAMPLING_CUT_CUH

#include "engine/cuda/sampling_block.cuh"

#include <float.h>

namespace
{

/* The key of a float: integers in the same order. -0 equals 0. */
__device__ uint32_t order_key(float logit)
{
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* Candidates in arrays, in rising order of their ids. */
struct candidates {
    const float *logits;
    float *weights;
    const int32_t *ids; /* NULL: 0, 1, 2... */
    int32_t count;
    float *room_logits; /* for those that are kept */
    int32_t *room_ids;
};

/* Keeps the candidates with a larger key, and the first `ties` of those with this key; also their
 * weights, if there are any. One number has two counts: larger keys, and ties in the lower 16 bits.
 * key_of(logit): the candidate's key. */
template <typename Key>
__device__ void keep(block_memory *m, candidates *c, uint32_t key, int32_t ties, bool weighted,
                     Key key_of)
{
    int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32, kept = 0;
    unsigned before = (1u << lane) - 1;
    for (int32_t chunk = 0; chunk < c->count; chunk += CUT_BATCH * THREADS) {
        int32_t first = chunk + warp * CUT_BATCH * 32 + lane;
        float logits[CUT_BATCH], weights[CUT_BATCH];
        int32_t ids[CUT_BATCH];
        uint32_t rank = 0, all;
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) /* NaN stands for none, since no logit is NaN */
            logits[k] = first + 32 * k < c->count ? c->logits[first + 32 * k] : NAN;
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) {
            int32_t i = first + 32 * k;
            bool may_stay = logits[k] == logits[k] && key_of(logits[k]) >= key;
            weights[k] = may_stay && weighted ? c->weights[i] : 0.0f;
            ids[k] = may_stay && c->ids != NULL ? c->ids[i] : i;
            bool larger = may_stay && key_of(logits[k]) > key;
            rank += (uint32_t)__popc(__ballot_sync(FULL_WARP, larger)) << 16;
            rank += (uint32_t)__popc(__ballot_sync(FULL_WARP, may_stay && !larger));
        }
        rank = count_before(m, rank, &all); /* the chunk has been read */
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) {
            bool may_stay = logits[k] == logits[k] && key_of(logits[k]) >= key;
            bool larger = may_stay && key_of(logits[k]) > key;
            unsigned larger_ones = __ballot_sync(FULL_WARP, larger);
            unsigned equal_ones = __ballot_sync(FULL_WARP, may_stay && !larger);
            uint32_t mine = rank + ((uint32_t)__popc(larger_ones & before) << 16) +
                            (uint32_t)__popc(equal_ones & before);
            int32_t tie = (int32_t)(mine & 0xffff);
            if (larger || (may_stay && tie < ties)) {
                int32_t to = kept + (int32_t)(mine >> 16) + (tie < ties ? tie : ties);
                c->room_logits[to] = logits[k];
                c->room_ids[to] = ids[k];
                if (weighted)
                    c->weights[to] = weights[k];
            }
            rank += ((uint32_t)__popc(larger_ones) << 16) + (uint32_t)__popc(equal_ones);
        }
        int32_t all_ties = (int32_t)(all & 0xffff) < ties ? (int32_t)(all & 0xffff) : ties;
        kept += (int32_t)(all >> 16) + all_ties;
        ties -= all_ties;
    }
    __syncthreads();
    c->logits = c->room_logits;
    c->ids = c->room_ids;
    c->count = kept;
}

/* What a thread looks at while the block searches for a cut: every THREADS-th, from its own number
 * on. */
struct view {
    const float *logits, *weights; /* NULL: each weighs 1 */
    int32_t count;
};

/* sums[j]: the weight of the candidates with a key of at least tests[j], which rise. After these
 * sums: how many have a key from low to high; the tests are in this range or above. A thread that
 * looks at candidates keeps its first FEW from tests[0] on, and the function returns how many there
 * are. The sums have the same order in both views, so that they never rise with the key. */
template <typename Key>
__device__ int32_t weigh_from(block_memory *m, const view &v, uint32_t low, uint32_t high,
                              const uint32_t tests[TESTS], double sums[TOTALS], Key key_of)
{
    int32_t tid = (int32_t)threadIdx.x, found = 0;
    bool aside = v.logits == m->few.logits;
    int32_t inside = 0;
    double mine[TOTALS] = {0};
    for (int32_t first = tid; first < v.count; first += CUT_BATCH * THREADS) {
        float x[CUT_BATCH], w[CUT_BATCH];
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++)
            x[k] = first + k * THREADS < v.count ? v.logits[first + k * THREADS] : NAN;
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) {
            bool counts = x[k] == x[k] && key_of(x[k]) >= tests[0];
            w[k] = !counts ? 0.0f : v.weights != NULL ? v.weights[first + k * THREADS] : 1.0f;
        }
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) {
            uint32_t key = key_of(x[k]);
            inside += x[k] == x[k] && key >= low && key <= high;
            if (!(x[k] == x[k]) || key < tests[0])
                continue;
            for (int j = 0; j < TESTS; j++)
                mine[j] += key >= tests[j] ? (double)w[k] : 0;
            if (!aside && found < FEW) {
                m->few.logits[found * THREADS + tid] = x[k];
                m->few.weights[found * THREADS + tid] = w[k];
            }
            found++;
        }
    }
    mine[TESTS] = (double)inside;
    block_totals(m, mine, sums);
    return found;
}

/* The key of the only candidate whose key is from low to high. */
template <typename Key>
__device__ uint32_t key_between(block_memory *m, const view &v, uint32_t low, uint32_t high,
                                Key key_of)
{
    best mine = {-INFINITY, INT32_MAX};
    for_each(v.logits, v.count, [&](int32_t i, float logit) {
        if (key_of(logit) >= low && key_of(logit) <= high)
            mine = better(mine, {logit, i});
    });
    return key_of(block_best(m, mine).logit);
}

/* Where to cut. The first keys that are tested are a few times `scale` below the largest. */
struct cut_at {
    float max; /* no candidate's key is that of a larger number */
    float scale;
    double wanted;
    bool weighted; /* else each weighs 1 */
    bool all_ties; /* which may weigh different amounts, and all stay */
};

/* Keeps the fewest of the best candidates whose weights reach `wanted`; at least one. The key of
 * the last one is the largest key from which on candidates weigh enough; which keys are tested
 * changes only the time. */
template <typename Key>
__device__ void cut(block_memory *m, candidates *c, const cut_at &at, Key key_of)
{
    const double wanted = at.wanted;
    const bool weighted = at.weighted;
    view v = {c->logits, weighted ? c->weights : NULL, c->count};
    uint32_t low = 0, high = order_key(at.max), tests[TESTS];
    for (int j = 0; j < TESTS; j++)
        tests[j] = order_key(at.max - fminf(at.scale * (float)(12 >> j), FLT_MAX));
    double above = 0; /* the weight of those above `high` */
    while (low < high) {
        double sums[TOTALS];
        int32_t found = weigh_from(m, v, low, high, tests, sums, key_of);
        if (low > 0 && sums[TESTS] == 1) {
            high = key_between(m, v, low, high, key_of);
            break;
        }
        for (int j = 0; j < TESTS; j++) {
            if (tests[j] <= low || tests[j] > high)
                continue;
            if (sums[j] >= wanted) {
                low = tests[j];
            } else {
                high = tests[j] - 1;
                above = sums[j];
            }
        }
        if (low >= tests[0] && found <= FEW && v.logits != m->few.logits)
            v = {m->few.logits, m->few.weights, (int32_t)threadIdx.x + found * THREADS};
        uint32_t step = (high - low + TESTS) / (TESTS + 1);
        for (int j = 0; j < TESTS; j++)
            tests[j] = low + (uint32_t)(j + 1) * step;
    }
    double each = 1;
    if (weighted) { /* all of them weigh the same */
        best tie = {-INFINITY, INT32_MAX};
        for (int32_t i = (int32_t)threadIdx.x; i < v.count; i += THREADS)
            if (key_of(v.logits[i]) == high)
                tie = better(tie, {v.weights[i], 0});
        each = (double)block_best(m, tie).logit;
    }
    double ties = each > 0 ? ceil((wanted - above) / each) : (double)INT32_MAX;
    if (at.all_ties || !(ties < (double)INT32_MAX))
        ties = (double)INT32_MAX;
    keep(m, c, high, ties < 1 ? 1 : (int32_t)ties, weighted, key_of);
}

} // namespace

#endif
