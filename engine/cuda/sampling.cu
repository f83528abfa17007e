/* Drawing tokens where the logits are, so that a few bytes per text come back instead of a row of
 * the vocabulary: what engine/sampler.h describes, in its order. Weights, their sums and the place
 * of the draw are the host's bits; only where top_p cuts may the last place of a sum of doubles
 * decide otherwise. The token depends on the row and its sampler alone.
 *
 * One block a text, for which its row of logits is read some times.
 *
 * Greedy reads it once where nothing is changed and four times else, a draw without cuts six times;
 * top_k and top_p each some 35 times what is left, as a bisection over the bits of a logit finds
 * where they cut. Sums of weights are the host's (engine/logits.c): 64 running sums by index, then
 * a tree. */
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
    LANES = 64,   /* running sums, as in engine/logits.c */
    CHUNK = 2048, /* weights summed together */
    BLOCK = SAMPLING_BLOCK
};

struct best {
    float logit;
    int32_t id;
};

struct block_memory {
    double chunk[CHUNK];
    double doubles[32];
    best bests[32];
    int ints[32];
    int place;
};

/* ---- of a whole block; every thread gets the result ---- */

__device__ best better(best a, best b)
{
    return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}

__device__ best block_best(block_memory *m, best mine)
{
    for (int other = 16; other > 0; other /= 2)
        mine = better(mine, {__shfl_xor_sync(FULL_WARP, mine.logit, other),
                             __shfl_xor_sync(FULL_WARP, mine.id, other)});
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        m->bests[threadIdx.x / 32] = mine;
    __syncthreads();
    best all = m->bests[0];
    for (int i = 1; i < THREADS / 32; i++)
        all = better(all, m->bests[i]);
    return all;
}

__device__ double block_total(block_memory *m, double mine)
{
    for (int other = 16; other > 0; other /= 2)
        mine += __shfl_xor_sync(FULL_WARP, mine, other);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        m->doubles[threadIdx.x / 32] = mine;
    __syncthreads();
    double all = 0;
    for (int i = 0; i < THREADS / 32; i++)
        all += m->doubles[i];
    return all;
}

/* The best of logits [count] that comes after `last` in falling order, the smallest id first. */
__device__ best best_after(block_memory *m, const float *logits, int32_t count, best last)
{
    best mine = {-INFINITY, INT32_MAX};
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += THREADS)
        if (logits[i] < last.logit || (logits[i] == last.logit && i > last.id))
            mine = better(mine, {logits[i], i});
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
        m->ints[threadIdx.x / 32] = missing;
    best all = block_best(m, mine);
    *has_nan = false;
    for (int i = 0; i < THREADS / 32; i++)
        *has_nan = *has_nan || m->ints[i] != 0;
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

/* The sum of weight(i), in the host's order. */
template <typename Weight>
__device__ double ordered_sum(block_memory *m, int32_t count, Weight weight)
{
    int tid = (int)threadIdx.x;
    double lane = 0;
    for (int32_t first = 0; first < count; first += CHUNK) {
        int32_t n = count - first < CHUNK ? count - first : (int32_t)CHUNK;
        __syncthreads();
        for (int32_t i = tid; i < n; i += THREADS)
            m->chunk[i] = weight(first + i);
        __syncthreads();
        for (int32_t i = tid; tid < LANES && i < n; i += LANES)
            lane += m->chunk[i];
    }
    __syncthreads();
    if (tid < LANES)
        m->chunk[tid] = lane;
    for (int width = LANES / 2; width > 0; width /= 2) {
        __syncthreads();
        if (tid < width)
            m->chunk[tid] += m->chunk[tid + width];
    }
    __syncthreads();
    return m->chunk[0];
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
    float *logits, *weights;
    int32_t *ids;
    int32_t count;
};

/* What those weigh whose key is at least `key`: 1 each where there are no weights. */
__device__ double weight_from(block_memory *m, const candidates &c, uint32_t key, bool weighted)
{
    double mine = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < c.count; i += THREADS)
        if (order_key(c.logits[i]) >= key)
            mine += weighted ? (double)c.weights[i] : 1.0;
    return block_total(m, mine);
}

/* Of the threads with `counts`, how many come before this one; *all: how many there are. */
__device__ int rank_of(block_memory *m, bool counts, int *all)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    unsigned votes = __ballot_sync(FULL_WARP, counts);
    __syncthreads();
    if (lane == 0)
        m->ints[warp] = __popc(votes);
    __syncthreads();
    int rank = __popc(votes & ((1u << lane) - 1));
    *all = 0;
    for (int w = 0; w < THREADS / 32; w++) {
        rank += w < warp ? m->ints[w] : 0;
        *all += m->ints[w];
    }
    return rank;
}

/* Keeps those whose key is larger, and of those with that key the first `ties`. */
__device__ void keep(block_memory *m, candidates *c, uint32_t key, int32_t ties)
{
    int32_t kept = 0;
    for (int32_t first = 0; first < c->count; first += THREADS) {
        int32_t i = first + (int32_t)threadIdx.x, all_ties, all_kept;
        bool there = i < c->count;
        float logit = there ? c->logits[i] : 0.0f, weight = there ? c->weights[i] : 0.0f;
        int32_t id = there ? c->ids[i] : 0;
        uint32_t its = order_key(logit);
        int32_t tie = rank_of(m, there && its == key, &all_ties);
        bool stays = there && (its > key || (its == key && tie < ties));
        int32_t rank = rank_of(m, stays, &all_kept);
        if (stays) { /* at or before this chunk, which has been read */
            c->logits[kept + rank] = logit;
            c->weights[kept + rank] = weight;
            c->ids[kept + rank] = id;
        }
        kept += all_kept;
        ties -= all_ties < ties ? all_ties : ties;
    }
    __syncthreads();
    c->count = kept;
}

/* Keeps the fewest of the best that weigh `wanted`; at least one. */
__device__ void cut(block_memory *m, candidates *c, double wanted, bool weighted)
{
    bool has_nan;
    uint32_t key = 0, largest = order_key(block_first(m, c->logits, c->count, &has_nan).logit);
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1)
        if ((key | bit) <= largest && weight_from(m, *c, key | bit, weighted) >= wanted)
            key |= bit;
    double above = weight_from(m, *c, key + 1, weighted), each = 1; /* no float has the last key */
    if (weighted) {
        best tie = {-INFINITY, INT32_MAX};
        for (int32_t i = (int32_t)threadIdx.x; i < c->count; i += THREADS)
            if (order_key(c->logits[i]) == key)
                tie = better(tie, {0.0f, i});
        int32_t at = block_best(m, tie).id;
        each = at < c->count ? (double)c->weights[at] : 0;
    }
    double ties = each > 0 ? ceil((wanted - above) / each) : (double)INT32_MAX;
    keep(m, c, key, ties < 1 ? 1 : ties < (double)INT32_MAX ? (int32_t)ties : INT32_MAX);
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
    for (int32_t i = (int32_t)threadIdx.x; i < c.count; i += THREADS)
        c.weights[i] = (float)weight_of(c.logits[i], max, factor);
    __syncthreads();
    return ordered_sum(m, c.count, [&](int32_t i) { return (double)c.weights[i]; });
}

/* The sum of a BLOCK of weights from `first` on, as the host's logits_sum, in lane 0 of a warp. */
__device__ double sum_of_block(const candidates &c, int32_t first)
{
    int32_t lane = (int32_t)threadIdx.x % 32;
    int32_t n = c.count - first < BLOCK ? c.count - first : (int32_t)BLOCK;
    double low = 0, high = 0;
    for (int32_t i = lane; i < n; i += LANES)
        low += (double)c.weights[first + i];
    for (int32_t i = lane + 32; i < n; i += LANES)
        high += (double)c.weights[first + i];
    low += high;
    for (int width = 16; width > 0; width /= 2)
        low += __shfl_down_sync(FULL_WARP, low, (unsigned)width);
    return low;
}

/* The place where the sum of the weights, in order, passes the target, as the host's place_at. */
__device__ int32_t find_place(const candidates &c, double target, const double *sums)
{
    double sum = 0;
    for (int32_t first = 0; first < c.count; first += BLOCK) {
        double block = sums[first / BLOCK], within = sum;
        int32_t end = c.count - first < BLOCK ? c.count : first + BLOCK;
        for (int32_t i = first; sum + block > target && i < end; i++) {
            within += (double)c.weights[i];
            if (within > target && c.weights[i] > 0)
                return i;
        }
        sum += block;
    }
    int32_t last = c.count - 1; /* rounding kept the sum from passing the target */
    while (c.weights[last] == 0)
        last--;
    return last;
}

__device__ int32_t place_at(block_memory *m, const candidates &c, double target, double *sums)
{
    int32_t warp = (int32_t)threadIdx.x / 32;
    __syncthreads();
    for (int32_t first = warp * BLOCK; first < c.count; first += THREADS / 32 * BLOCK) {
        double sum = sum_of_block(c, first);
        if (threadIdx.x % 32 == 0)
            sums[first / BLOCK] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        m->place = find_place(c, target, sums);
    __syncthreads();
    return m->place;
}

__device__ int32_t draw_weighted(block_memory *m, const sampling_text &t, candidates c, float max,
                                 double *sums)
{
    for (int32_t i = (int32_t)threadIdx.x; i < c.count; i += THREADS)
        c.ids[i] = i;
    __syncthreads();
    if (t.top_k > 0 && t.top_k < c.count)
        cut(m, &c, t.top_k, false);
    double total = weigh(m, c, max, t.temperature);
    if (t.top_p < 1)
        cut(m, &c, (double)t.top_p * total, true);
    for (int32_t i = (int32_t)threadIdx.x; t.min_p > 0 && i < c.count; i += THREADS)
        c.weights[i] = c.weights[i] < t.min_p ? 0 : c.weights[i];
    __syncthreads();
    if (t.top_p < 1 || t.min_p > 0)
        total = ordered_sum(m, c.count, [&](int32_t i) { return (double)c.weights[i]; });
    return c.ids[place_at(m, c, t.uniform * total, sums)];
}

/* What a log-probability needs of the untouched logits. */
__device__ void describe(block_memory *m, const sampling_text &t, const float *logits,
                         int32_t vocab_size, sampling_drawn *result)
{
    float max = result->max;
    double sum =
        ordered_sum(m, vocab_size, [&](int32_t i) { return weight_of(logits[i], max, 1.0); });
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
    candidates c = {scratch.work + at, scratch.weights + at, scratch.ids + at, vocab_size};
    bool has_nan;
    best first = block_first(m, logits, vocab_size, &has_nan);
    const float raw_max = first.logit;
    int32_t id = -1, nan_id = -1;
    if (has_nan) {
        nan_id = first_nan(m, logits, vocab_size);
    } else {
        if (!t.greedy || t.num_bias + t.num_seen + t.num_banned > 0) {
            for (int32_t i = (int32_t)threadIdx.x; i < vocab_size; i += THREADS)
                c.logits[i] = logits[i];
            __syncthreads();
            adjust(t, lists, vocab_size, c.logits);
            first = best_after(m, c.logits, vocab_size, {INFINITY, -1});
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
