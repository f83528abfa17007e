/* Drawing tokens where the logits are, so that a few bytes per text come back instead of a row of
 * the vocabulary: what engine/sampler.h describes, in its order. Weights, their sums and the place
 * of the draw are the host's bits; only where top_p cuts may the last place of a sum of doubles
 * decide otherwise. The token depends on the row and its sampler alone.
 *
 * One block a text, for which its row of logits is read some times: where nothing is changed by
 * greedy once, by a draw without cuts twice and its weights once. top_k and top_p look for where
 * they cut with three keys a pass, until each thread has few candidates left and keeps those by
 * itself. Sums of weights are the host's (engine/logits.c): 64 running sums by index, then a tree.
 *
 * Many loads have to be under way at once, as one block cannot hide them otherwise: loops read a
 * batch before they use or write any of it. */
#include "engine/cuda/sampling.cuh"

#include "engine/cuda/common.cuh"

extern "C" {
#include "engine/base/exponential.h"
}

#include <float.h>

namespace
{

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    BATCH = 8,                 /* loads of a thread under way */
    CUT_BATCH = 4,             /* where registers are few */
    LANES = 64,                /* running sums, as in engine/logits.c */
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

/* ---- of a whole warp or block; every thread gets the result ---- */

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

/* totals[j]: the sum of mine[j]. A lane hands on half of its sums while it has some, so that few
 * are added twice: lanes that differ in bits 3 and 4 have different ones then. */
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

/* The sum of the warps' counts before this one's; *all: of all. Two counts of up to 2^15 may be
 * packed into one. */
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

/* take(i, values[i]) of each of this thread's i below count, in rising order. */
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

/* The best of logits [count] that comes after `last` in falling order, the smallest id first. */
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

/* Of 64 sums, two a lane, as the host's tree; in lane 0. */
__device__ double fold(double low, double high)
{
    low += high;
    for (int width = 16; width > 0; width /= 2)
        low += __shfl_down_sync(FULL_WARP, low, (unsigned)width);
    return low;
}

/* What a filler makes weights of, from `first` on. */
__device__ void read_ahead(const float *values, int32_t first, int32_t count, float ahead[EACH])
{
    int32_t i = first + (int32_t)threadIdx.x - LANES;
#pragma unroll
    for (int e = 0; e < EACH; e++, i += FILLERS)
        ahead[e] = (int)threadIdx.x >= LANES && i < count ? values[i] : 0.0f;
}

/* The sum of weight(i, values[i]), in the host's order. The first threads add a chunk while the
 * others make the next one and read what comes after. weight may change values[i]. */
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

/* ---- what may come ---- */

/* logit_bias, penalties and bans, as the host's adjust. */
__device__ void adjust(const sampling_text &t, const sampling_lists &lists, int32_t vocab_size,
                       float *work)
{
    const logit_bias *biases = lists.biases + t.bias;
    for (int32_t i = (int32_t)threadIdx.x; i < t.num_bias; i += THREADS) {
        bool first = true; /* of that id, whose biases are added in order */
        for (int32_t j = 0; j < i; j++)
            first = first && biases[j].id != biases[i].id;
        for (int32_t j = i; first && j < t.num_bias; j++)
            if (biases[j].id == biases[i].id)
                work[biases[i].id] += biases[j].bias;
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < t.num_seen; i += THREADS) {
        seen_token seen = lists.seen[t.seen + i];
        float logit = work[seen.id];
        logit = logit > 0 ? logit / t.repetition : logit * t.repetition;
        logit -= t.frequency * (float)seen.count;
        if (seen.count > 0)
            logit -= t.presence;
        work[seen.id] = logit;
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < t.num_banned; i += THREADS) {
        int32_t id = lists.ids[t.banned + i];
        if (id >= 0 && id < vocab_size)
            store_same(&work[id], -INFINITY); /* it may be banned twice */
    }
    __syncthreads();
}

/* An integer in the order of the floats; -0 is 0. */
__device__ uint32_t order_key(float logit)
{
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* Candidates side by side, in rising order of their ids. */
struct candidates {
    const float *logits;
    float *weights;
    const int32_t *ids; /* NULL: 0, 1, 2... */
    int32_t count;
    float *room_logits; /* for those that are kept */
    int32_t *room_ids;
};

/* Keeps those whose key is larger, and of those with that key the first `ties`; their weights if
 * there are some. Two counts at a time: of larger keys, and of ties in the lower 16 bits. */
__device__ void keep(block_memory *m, candidates *c, uint32_t key, int32_t ties, bool weighted)
{
    int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32, kept = 0;
    unsigned before = (1u << lane) - 1;
    for (int32_t chunk = 0; chunk < c->count; chunk += CUT_BATCH * THREADS) {
        int32_t first = chunk + warp * CUT_BATCH * 32 + lane;
        float logits[CUT_BATCH], weights[CUT_BATCH];
        int32_t ids[CUT_BATCH];
        uint32_t rank = 0, all;
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) /* NaN, which none is: not there */
            logits[k] = first + 32 * k < c->count ? c->logits[first + 32 * k] : NAN;
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) {
            int32_t i = first + 32 * k;
            bool may_stay = logits[k] == logits[k] && order_key(logits[k]) >= key;
            weights[k] = may_stay && weighted ? c->weights[i] : 0.0f;
            ids[k] = may_stay && c->ids != NULL ? c->ids[i] : i;
            bool larger = may_stay && order_key(logits[k]) > key;
            rank += (uint32_t)__popc(__ballot_sync(FULL_WARP, larger)) << 16;
            rank += (uint32_t)__popc(__ballot_sync(FULL_WARP, may_stay && !larger));
        }
        rank = count_before(m, rank, &all); /* the chunk has been read */
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) {
            bool may_stay = logits[k] == logits[k] && order_key(logits[k]) >= key;
            bool larger = may_stay && order_key(logits[k]) > key;
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

/* What each thread looks at where a cut is looked for: every THREADS-th, from its own number on. */
struct view {
    const float *logits, *weights; /* NULL: each weighs 1 */
    int32_t count;
};

/* sums[j]: what those weigh whose key is at least tests[j], which rise, and behind them: how many
 * have a key from low to high, which the tests are in or above. A thread that looks at
 * candidates puts aside its first FEW from tests[0] on; returns how many there are. The sums have
 * the same order in either view, so that they never rise with the key. */
__device__ int32_t weigh_from(block_memory *m, const view &v, uint32_t low, uint32_t high,
                              const uint32_t tests[TESTS], double sums[TOTALS])
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
            bool counts = x[k] == x[k] && order_key(x[k]) >= tests[0];
            w[k] = !counts ? 0.0f : v.weights != NULL ? v.weights[first + k * THREADS] : 1.0f;
        }
#pragma unroll
        for (int k = 0; k < CUT_BATCH; k++) {
            uint32_t key = order_key(x[k]);
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

/* The key of the one candidate that has one from low to high. */
__device__ uint32_t key_between(block_memory *m, const view &v, uint32_t low, uint32_t high)
{
    best mine = {-INFINITY, INT32_MAX};
    for_each(v.logits, v.count, [&](int32_t i, float logit) {
        if (order_key(logit) >= low && order_key(logit) <= high)
            mine = better(mine, {logit, i});
    });
    return order_key(block_best(m, mine).logit);
}

/* Keeps the fewest of the best, whose largest is max, that weigh `wanted`; at least one. The key of
 * the last one is the largest from which on candidates weigh so much: what is tested for it decides
 * about time alone. First come keys a few times `scale` below the largest. */
__device__ void cut(block_memory *m, candidates *c, float max, float scale, double wanted,
                    bool weighted)
{
    view v = {c->logits, weighted ? c->weights : NULL, c->count};
    uint32_t low = 0, high = order_key(max), tests[TESTS];
    for (int j = 0; j < TESTS; j++)
        tests[j] = order_key(max - fminf(scale * (float)(12 >> j), FLT_MAX));
    double above = 0; /* what those weigh that are above `high` */
    while (low < high) {
        double sums[TOTALS];
        int32_t found = weigh_from(m, v, low, high, tests, sums);
        if (low > 0 && sums[TESTS] == 1) {
            high = key_between(m, v, low, high);
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
            if (order_key(v.logits[i]) == high)
                tie = better(tie, {v.weights[i], 0});
        each = (double)block_best(m, tie).logit;
    }
    double ties = each > 0 ? ceil((wanted - above) / each) : (double)INT32_MAX;
    keep(m, c, high, ties < 1 ? 1 : ties < (double)INT32_MAX ? (int32_t)ties : INT32_MAX, weighted);
}

/* e^((logit - max) / temperature), where the largest logit may be infinite. */
__device__ double weight_of(float logit, float max, double factor)
{
    if (isinf(max))
        return logit == max ? 1.0 : 0.0;
    return exp_below_zero(((double)logit - (double)max) * factor);
}

/* Weights, rounded; returns their sum. */
__device__ double weigh(block_memory *m, const candidates &c, float max, float temperature)
{
    double factor = 1.0 / (double)temperature;
    return ordered_sum(m, c.logits, c.count, [&](int32_t i, float logit) {
        float weight = (float)weight_of(logit, max, factor);
        c.weights[i] = weight;
        return (double)weight;
    });
}

/* The sum of a BLOCK of weights from `first` on, as the host's logits_sum, in lane 0 of a warp. */
__device__ double sum_of_block(const candidates &c, int32_t first)
{
    int32_t i = first + (int32_t)threadIdx.x % 32;
    float weights[BLOCK / 32];
    double low = 0, high = 0;
#pragma unroll
    for (int k = 0; k < BLOCK / 32; k++)
        weights[k] = i + 32 * k < c.count ? c.weights[i + 32 * k] : 0.0f;
#pragma unroll
    for (int k = 0; k < BLOCK / 32; k += 2) {
        low += (double)weights[k];
        high += (double)weights[k + 1];
    }
    return fold(low, high);
}

/* In each lane of a warp: `sum`, and the values of the lanes up to it added one by one. */
__device__ double running_sum(double sum, double value)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll 8
    for (int other = 0; other < 32; other++) {
        double its = __shfl_sync(FULL_WARP, value, other);
        sum += other <= lane ? its : 0;
    }
    return sum;
}

/* Within a BLOCK of weights from `first` on, before which they sum to `sum`; -1: not there. */
__device__ int32_t find_in_block(const candidates &c, int32_t first, double sum, double target)
{
    int32_t i = first + (int32_t)threadIdx.x % 32;
    for (int k = 0; k < BLOCK / 32; k++, i += 32) {
        float weight = i < c.count ? c.weights[i] : 0.0f;
        double within = running_sum(sum, (double)weight);
        unsigned there = __ballot_sync(FULL_WARP, within > target && weight > 0);
        if (there != 0)
            return first + 32 * k + __ffs((int)there) - 1;
        sum = __shfl_sync(FULL_WARP, within, 31);
    }
    return -1;
}

/* The place where the sum of the weights, in order, passes the target, as the host's place_at; by
 * one warp. */
__device__ int32_t find_place(const candidates &c, double target, const double *sums)
{
    int32_t lane = (int32_t)threadIdx.x % 32, blocks = (c.count + BLOCK - 1) / BLOCK;
    double sum = 0;
    for (int32_t first = 0; first < blocks; first += 32) {
        double after = running_sum(sum, first + lane < blocks ? sums[first + lane] : 0);
        double before = __shfl_up_sync(FULL_WARP, after, 1);
        before = lane == 0 ? sum : before;
        unsigned passing = __ballot_sync(FULL_WARP, after > target && first + lane < blocks);
        for (; passing != 0; passing &= passing - 1) {
            int block = __ffs((int)passing) - 1;
            int32_t place = find_in_block(c, (first + block) * BLOCK,
                                          __shfl_sync(FULL_WARP, before, block), target);
            if (place >= 0)
                return place;
        }
        sum = __shfl_sync(FULL_WARP, after, 31);
    }
    int32_t last = c.count - 1; /* rounding kept the sum from passing the target */
    while (c.weights[last] == 0)
        last--;
    return last;
}

__device__ int32_t place_at(block_memory *m, const candidates &c, double target, double *sums)
{
    int32_t warp = (int32_t)threadIdx.x / 32;
    for (int32_t first = warp * BLOCK; first < c.count; first += WARPS * BLOCK) {
        double sum = sum_of_block(c, first);
        if (threadIdx.x % 32 == 0)
            sums[first / BLOCK] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        int32_t place = find_place(c, target, sums);
        if (threadIdx.x == 0)
            m->place = place;
    }
    __syncthreads();
    return m->place;
}

__device__ int32_t draw_weighted(block_memory *m, const sampling_text &t, candidates c, float max,
                                 double *sums)
{
    if (t.top_k > 0 && t.top_k < c.count)
        cut(m, &c, max, 1, t.top_k, false);
    double total = weigh(m, c, max, t.temperature);
    if (t.top_p < 1)
        cut(m, &c, max, t.temperature, (double)t.top_p * total, true);
    const float min_p = t.min_p;
    if (t.top_p < 1 || min_p > 0)
        total = ordered_sum(m, c.weights, c.count, [&](int32_t i, float weight) {
            if (weight < min_p)
                c.weights[i] = weight = 0;
            return (double)weight;
        });
    int32_t place = place_at(m, c, t.uniform * total, sums);
    return c.ids == NULL ? place : c.ids[place];
}

/* What a log-probability needs of the untouched logits. */
__device__ void describe(block_memory *m, const sampling_text &t, const float *logits,
                         int32_t vocab_size, sampling_drawn *result)
{
    float max = result->max;
    double sum = ordered_sum(m, logits, vocab_size,
                             [&](int32_t, float logit) { return weight_of(logit, max, 1.0); });
    if (threadIdx.x == 0) {
        result->logit = logits[result->id];
        result->sum = sum;
    }
    best last = {INFINITY, -1};
    for (int i = 0; i < t.num_top && i < vocab_size; i++) {
        last = best_after(m, logits, vocab_size, last);
        if (threadIdx.x == 0) {
            result->top[i] = last.id;
            result->top_logits[i] = last.logit;
        }
    }
}

/* One text a block. */
__global__ void __launch_bounds__(THREADS, 1)
    sample_kernel(const float *all_logits, int32_t vocab_size, const sampling_lists lists,
                  const sampling_scratch scratch, sampling_drawn *all_drawn)
{
    __shared__ block_memory memory;
    __shared__ sampling_drawn result;
    grid_wait();
    block_memory *m = &memory;
    const sampling_text &t = lists.texts[blockIdx.x];
    int64_t at = (int64_t)blockIdx.x * vocab_size;
    const float *logits = all_logits + at;
    candidates c = {logits,     scratch.weights + at, NULL,
                    vocab_size, scratch.work + at,    scratch.ids + at};
    bool has_nan;
    best first = block_first(m, logits, vocab_size, &has_nan);
    const float raw_max = first.logit;
    int32_t id = -1, nan_id = -1;
    if (has_nan) {
        nan_id = first_nan(m, logits, vocab_size);
    } else {
        if (t.num_bias + t.num_seen + t.num_banned > 0) {
            bool ignored;
            for_each(logits, vocab_size, [&](int32_t i, float logit) { c.room_logits[i] = logit; });
            __syncthreads();
            adjust(t, lists, vocab_size, c.room_logits);
            c.logits = c.room_logits;
            first = block_first(m, c.logits, vocab_size, &ignored);
        }
        if (first.logit > -INFINITY)
            id = t.greedy
                     ? first.id
                     : draw_weighted(m, t, c, first.logit,
                                     scratch.sums + (int64_t)blockIdx.x * (vocab_size / BLOCK + 1));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        result.id = id;
        result.nan_id = nan_id;
        result.next = id;
        result.max = raw_max;
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < t.num_ends; i += THREADS)
        if (lists.ids[t.end + i] == id)
            store_same(&result.next, (int32_t)-1);
    __syncthreads();
    if (t.wants_sum && id >= 0)
        describe(m, t, logits, vocab_size, &result);
    if (threadIdx.x == 0)
        all_drawn[blockIdx.x] = result;
}

} // namespace

void sampling_launch(struct backend *backend, const float *logits, int32_t vocab_size, int count,
                     const sampling_lists &lists, const sampling_scratch &scratch,
                     sampling_drawn *drawn)
{
    launch(backend, sample_kernel, dim3((unsigned)count), THREADS, 0, logits, vocab_size, lists,
           scratch, drawn);
}
