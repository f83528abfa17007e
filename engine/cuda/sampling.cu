/* SPDX-License-Identifier: Apache-2.0 */
/* Draws tokens on the device, as engine/ops/sampler.h describes, in its order. So a few bytes per
 * text come back instead of a row of the vocabulary. Weights, their sums and the place of the draw
 * have the host's bits; only where top_p cuts, the last place of a sum of doubles may decide
 * otherwise. A token depends on its row and its sampler alone.
 *
 * One block per text reads its row of logits several times. Where nothing changes the logits,
 * greedy reads it once, and a draw without cuts reads it twice and its weights once. top_k and
 * top_p search for their cut with three keys per pass, until each thread has few candidates left
 * and keeps these by itself. Sums of weights are the host's (engine/ops/logits.c): 64 running sums
 * by index, then a tree. */
#include "engine/cuda/sampling.cuh"

#include "engine/cuda/sampling_cut.cuh"

extern "C" {
#include "lib/base/exponential.h"
#include "lib/base/nearness.h"
}

namespace
{

/* The lists of all texts, at one address. */
struct sampling_lists {
    const logit_bias *biases;
    const seen_token *seen;
    const int32_t *ids; /* banned ones, ends, allowed and wanted ones */
    const uint32_t *masks;
};

/* ---- what may come ---- */

/* The logits of what may come, as the host's copy_logits. */
__device__ void copy_logits(const sampling_text &t, const sampling_lists &lists, int32_t vocab_size,
                            const float *logits, float *work)
{
    const bool all = t.num_allowed == 0, masked = t.masked;
    const uint32_t *mask = lists.masks + t.mask;
    auto lets_through = [=](int32_t i) { return !masked || (mask[i / 32] >> i % 32 & 1) != 0; };
    for_each(logits, vocab_size,
             [&](int32_t i, float logit) { work[i] = all && lets_through(i) ? logit : -INFINITY; });
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < t.num_allowed; i += THREADS) {
        int32_t id = lists.ids[t.allowed + i];
        if (lets_through(id))
            store_same(&work[id], logits[id]); /* it may be listed twice */
    }
    __syncthreads();
}

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
        logit = logit > 0 ? logit / t.settings.repetition_penalty
                          : logit * t.settings.repetition_penalty;
        logit -= t.settings.frequency_penalty * (float)seen.count;
        if (seen.count > 0)
            logit -= t.settings.presence_penalty;
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

/* Gives each lane of a warp `sum` plus the values of the lanes up to it, added one by one. */
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

/* The place in a BLOCK of weights from `first` on; the weights before it sum to `sum`. -1: not
 * there. */
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

/* The place where the sum of the weights, in order, passes the target, like the host's place_at.
 * One warp calls it. */
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

/* The heaviest of the candidates. */
__device__ float heaviest_of(block_memory *m, const candidates &c)
{
    best mine = {0.0f, INT32_MAX};
    for_each(c.weights, c.count, [&](int32_t i, float weight) {
        mine = better(mine, {weight, i});
    });
    return block_best(m, mine).logit;
}

/* As the host's keep_typical. */
__device__ double keep_typical(block_memory *m, const sampling_text &t, candidates *c, double total)
{
    const candidates all = *c;
    double sum = ordered_sum(m, all.logits, all.count, [&](int32_t i, float logit) {
        float weight = all.weights[i];
        return weight > 0 ? (double)weight * (double)logit : 0.0;
    });
    const double expected = sum / total;
    cut(m, c, {0, t.settings.temperature, (double)t.settings.typical_p * total, true, true},
        [=](float logit) { return order_key(nearness(logit, expected)); });
    return ordered_sum(m, c->weights, c->count,
                       [](int32_t, float weight) { return (double)weight; });
}

__device__ int32_t draw_weighted(block_memory *m, const sampling_text &t, candidates c, float max,
                                 double *sums)
{
    auto by_logit = [](float logit) { return order_key(logit); };
    if (t.settings.top_k > 0 && t.settings.top_k < c.count)
        cut(m, &c, {max, 1, (double)t.settings.top_k, false, false}, by_logit);
    double total = weigh(m, c, max, t.settings.temperature);
    float heaviest = 1;
    if (is_typical(t.settings.typical_p) && !isinf(max)) {
        total = keep_typical(m, t, &c, total);
        heaviest = heaviest_of(m, c);
    }
    if (t.settings.top_p < 1)
        cut(m, &c, {max, t.settings.temperature, (double)t.settings.top_p * total, true, false},
            by_logit);
    const float min_p = t.settings.min_p * heaviest;
    if (t.settings.top_p < 1 || min_p > 0)
        total = ordered_sum(m, c.weights, c.count, [&](int32_t i, float weight) {
            if (weight < min_p)
                c.weights[i] = weight = 0;
            return (double)weight;
        });
    int32_t place = place_at(m, c, t.uniform * total, sums);
    return c.ids == NULL ? place : c.ids[place];
}

/* What a log-probability needs of the untouched logits. */
__device__ void describe(block_memory *m, const sampling_text &t, const sampling_lists &lists,
                         const float *logits, int32_t vocab_size, sampling_drawn *result)
{
    float max = result->max;
    double sum = ordered_sum(m, logits, vocab_size,
                             [&](int32_t, float logit) { return weight_of(logit, max, 1.0); });
    if (threadIdx.x == 0) {
        result->logit = logits[result->id];
        result->sum = sum;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < t.num_wanted; i += THREADS) {
        int32_t id = lists.ids[t.wanted + i];
        result->top[i] = {id, logits[id]};
    }
    if (t.num_wanted > 0)
        return;
    best last = {INFINITY, -1};
    for (int i = 0; i < t.num_top && i < vocab_size; i++) {
        last = best_after(m, logits, vocab_size, last);
        if (threadIdx.x == 0)
            result->top[i] = {last.id, last.logit};
    }
}

enum { WORDS = sizeof(sampling_drawn) / sizeof(uint32_t) };
static_assert((int)WORDS <= (int)THREADS, "a word a thread");

/* A word a thread: the host's memory is far away, and gets a result in a few long writes. The
 * tokens at the end that nobody asks for stay as they are. */
__device__ void tell(const uint32_t words[WORDS], int num_top, sampling_drawn *drawn,
                     sampling_drawn *told)
{
    const size_t bytes = offsetof(sampling_drawn, top) + (size_t)num_top * sizeof(token_logit);
    if (threadIdx.x >= bytes / sizeof(uint32_t))
        return;
    reinterpret_cast<uint32_t *>(drawn)[threadIdx.x] = words[threadIdx.x];
    if (told != NULL)
        reinterpret_cast<uint32_t *>(told)[threadIdx.x] = words[threadIdx.x];
}

/* One text a block. */
__global__ void __launch_bounds__(THREADS, 1)
    sample_kernel(const float *all_logits, int32_t vocab_size, const sampling_text *asked,
                  const sampling_scratch scratch, sampling_drawn *all_drawn,
                  sampling_drawn *all_told)
{
    __shared__ block_memory memory;
    __shared__ union {
        sampling_drawn drawn;
        uint32_t words[WORDS];
    } out;
    sampling_drawn &result = out.drawn;
    grid_wait();
    block_memory *m = &memory;
    const sampling_lists lists = {
        reinterpret_cast<const logit_bias *>(asked), reinterpret_cast<const seen_token *>(asked),
        reinterpret_cast<const int32_t *>(asked), reinterpret_cast<const uint32_t *>(asked)};
    const sampling_text &t = asked[blockIdx.x];
    int64_t at = (int64_t)blockIdx.x * vocab_size;
    const float *logits = all_logits + at;
    candidates c = {logits,     scratch.weights + at, NULL,
                    vocab_size, scratch.work + at,    scratch.ids + at};
    bool has_nan;
    /* the logits do not wait for these, nor does what follows */
    const bool absent = t.absent,
               changes = t.num_bias + t.num_seen + t.num_banned + t.num_allowed > 0 || t.masked;
    best first = block_first(m, logits, vocab_size, &has_nan);
    if (absent)
        return;
    const float raw_max = first.logit;
    int32_t id = -1, nan_id = -1;
    if (has_nan) {
        nan_id = first_nan(m, logits, vocab_size);
    } else {
        if (changes) {
            bool ignored;
            copy_logits(t, lists, vocab_size, logits, c.room_logits);
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
        describe(m, t, lists, logits, vocab_size, &result);
    __syncthreads();
    tell(out.words, t.num_top, all_drawn + blockIdx.x,
         all_told == NULL ? NULL : all_told + blockIdx.x);
}

} // namespace

void sampling_launch(struct backend *backend, const float *logits, int32_t vocab_size, int count,
                     const sampling_text *asked, const sampling_scratch &scratch,
                     sampling_drawn *drawn, sampling_drawn *told)
{
    launch(backend, sample_kernel, dim3((unsigned)count), THREADS, 0, logits, vocab_size, asked,
           scratch, drawn, told);
}
