/* SPDX-License-Identifier: Apache-2.0 */
/* Long-short windows: the sums of a segment in hand, the vectors of finished ones in the pages, and
 * the queries that meet these before the keys of their window.
 *
 * A warp answers one query of one head, tile by tile, in order:
 *   tile    64 vectors from vector 0 on, then 64 keys at absolute positions: score_j = q.k_j, one
 *           running sum over the features; M = max(m, scores); l = l exp(m - M) + sum of
 *           exp(score_j - M), by lanes; o = o exp(m - M), then + exp(score_j - M) v_j in order
 * Its position alone decides this order. A segment's sums are made by one thread per number, token
 * by token. The kernels do what the sizes ask for and nothing against latency: no stripes, no
 * copies ahead. */
#ifndef ENGINE_CUDA_ATTENTION_SEGMENTS_CUH
#define ENGINE_CUDA_ATTENTION_SEGMENTS_CUH

#include "engine/cuda/attention_keys.cuh"

namespace
{

enum { SUM_THREADS = 128 };

/* ---- the segment in hand ---- */

/* A number of a vector: its place in the sums behind maximum and sum, where the step has its
 * tokens' numbers, and where a row that ends a segment gets it. */
struct summed {
    float *sum;
    const float *x;
    int64_t x_stride;
    float *out;
};

__device__ summed summed_number(const ops_segments &a, const device_span &span, float *state,
                                int head, int vector, int column)
{
    int i = column - a.key_dim;
    int64_t in_vectors = (int64_t)vector * a.num_heads + head;
    float *vectors = a.vectors.data + span.first_row * a.vectors.stride;
    if (i < 0)
        return {state + 2 + column,
                a.k.data + span.first_row * a.k.stride + (int64_t)head * a.key_dim + column,
                a.k.stride, vectors + in_vectors * a.key_dim + column};
    return {state + 2 + column,
            a.v.data + span.first_row * a.v.stride + (int64_t)head * a.value_dim + i, a.v.stride,
            vectors + (int64_t)a.rank * a.num_heads * a.key_dim + in_vectors * a.value_dim + i};
}

/* Takes the span's tokens into one number of the sums, with the maximum and sum of its vector. */
__device__ void sum_number(const ops_segments &a, const device_span &span, const float *scores,
                           const summed &number, float *most, float *sum)
{
    float made = *number.sum;
    for (int t = 0; t < span.num_rows; t++) {
        int64_t position = span.position + t;
        float score = scores[t * a.scores.stride], x = number.x[t * number.x_stride];
        bool first = position % a.length == 0;
        float both = first || score > *most ? score : *most;
        float old = first ? 0.0f : formula_exp(*most - both), fresh = formula_exp(score - both);
        made = first ? x : made * old + x * fresh;
        *sum = first ? 1.0f : *sum * old + fresh;
        *most = both;
        if ((position + 1) % a.length == 0)
            number.out[t * a.vectors.stride] = made / *sum;
    }
    *number.sum = made;
}

/* Grid: [spans, heads]. Threads take numbers of the head's sums. Shared: [r] maxima and sums. */
__global__ void __launch_bounds__(SUM_THREADS)
    segments_kernel(const ops_segments a, const device_batch batch)
{
    SHARED_MEMORY(float, before);
    grid_wait();
    device_span span = batch.spans[blockIdx.x];
    int head = (int)blockIdx.y, numbers = a.key_dim + a.value_dim, each = 2 + numbers;
    if (span.slot == nullptr)
        return;
    float *sums = (float *)(span.slot + a.sums_offset + (size_t)head * ops_segment_sums_bytes(&a));
    for (int i = (int)threadIdx.x; i < 2 * a.rank; i += SUM_THREADS)
        before[i] = sums[i / 2 * each + i % 2];
    __syncthreads(); /* who has a vector's first number writes its maximum and sum */
    for (int e = (int)threadIdx.x; e < a.rank * numbers; e += SUM_THREADS) {
        int vector = e / numbers, column = e % numbers;
        float *state = sums + vector * each;
        float most = before[2 * vector], sum = before[2 * vector + 1];
        sum_number(a, span,
                   a.scores.data + span.first_row * a.scores.stride + head * a.rank + vector,
                   summed_number(a, span, state, head, vector, column), &most, &sum);
        if (column == 0) {
            state[0] = most;
            state[1] = sum;
        }
    }
}

/* ---- the vectors in the pages ---- */

__device__ float read_number(kv_format kv, const char *base, int64_t i)
{
    if (kv == KV_F32)
        return ((const float *)base)[i];
    uint16_t bits = ((const uint16_t *)base)[i];
    return kv == KV_F16 ? f32_of_f16(bits) : f32_of_bf16(bits);
}

__device__ void write_number(kv_format kv, char *base, int64_t i, float x)
{
    if (kv == KV_F32)
        ((float *)base)[i] = x;
    else
        ((uint16_t *)base)[i] = kv == KV_F16 ? f16_of_f32(x) : bf16_of_f32(x);
}

/* Vector number `at` of a text and head: feature f is number k + f * places of the head's part of
 * its page, column c of its value number v + c. */
struct page_vector {
    char *base;
    int64_t k, v;
    int places;
};

__device__ page_vector find_vector(const ops_segments &a, char *const *pages, int head, int64_t at)
{
    int places = ops_segment_page(&a), place = (int)(at % places);
    return {pages[at / places] + a.page_offset + (size_t)head * ops_segment_bytes(&a), place,
            (int64_t)a.key_dim * places + (int64_t)place * (int64_t)ops_value_stride(a.value_dim),
            places};
}

/* Appends the vectors of a row that ends a segment. Grid: [rows, heads]. */
__global__ void __launch_bounds__(SUM_THREADS)
    put_segments_kernel(const ops_segments a, const device_batch batch)
{
    grid_wait();
    int row = (int)blockIdx.x, head = (int)blockIdx.y;
    const device_span &span = batch.spans[batch.row_span[row]];
    int64_t position = span.position + row - span.first_row;
    if (span.slot == nullptr || (position + 1) % a.length != 0)
        return;
    int stride = (int)ops_value_stride(a.value_dim), numbers = a.key_dim + stride;
    const float *vectors = a.vectors.data + row * a.vectors.stride;
    for (int e = (int)threadIdx.x; e < a.rank * numbers; e += SUM_THREADS) {
        int vector = e / numbers, column = e % numbers - a.key_dim;
        int64_t in_row = (int64_t)vector * a.num_heads + head;
        page_vector to =
            find_vector(a, span.pages, head, ops_segments_before(&a, position) + vector);
        const float *v = vectors + (int64_t)a.rank * a.num_heads * a.key_dim;
        if (column < 0)
            write_number(a.kv, to.base, to.k + (int64_t)(e % numbers) * to.places,
                         vectors[in_row * a.key_dim + e % numbers]);
        else
            write_number(a.kv, to.base, to.v + column,
                         column < a.value_dim ? v[in_row * a.value_dim + column] : 0.0f);
    }
}

/* ---- queries ---- */

/* One query of one head, of a warp. */
struct long_short_query {
    const float *q; /* [d] */
    float *weights; /* [64], shared */
    float *values;  /* [stride], shared: the sum so far */
    float most, sum;
};

/* Meets keys [low, high) of a tile: dot(j) is q.k, value(j, column) a number of v. */
template <typename Dot, typename Value>
__device__ void meet_keys(const ops_attention &a, long_short_query *query, int low, int high,
                          const Dot &dot, const Value &value)
{
    int lane = (int)threadIdx.x % 32, stride = (int)ops_value_stride(a.value_dim);
    float scores[2], most = query->most;
    for (int i = 0; i < 2; i++) {
        int j = lane + 32 * i;
        scores[i] = j >= low && j < high ? scale_score(a, dot(j)) : -INFINITY;
        most = greater(most, scores[i]);
    }
    for (int other = 1; other < 32; other *= 2)
        most = greater(most, __shfl_xor_sync(FULL_WARP, most, other));
    float old = formula_exp(query->most - most);
    for (int i = 0; i < 2; i++)
        query->weights[lane + 32 * i] = scores[i] = formula_exp(scores[i] - most);
    query->sum = query->sum * old + warp_sum(scores[0] + scores[1]);
    query->most = most;
    __syncwarp();
    for (int c = lane; c < stride; c += 32) {
        float sum = query->values[c] * old;
        for (int j = low; j < high; j++)
            sum = fmaf(query->weights[j], value(j, c), sum);
        query->values[c] = sum;
    }
    __syncwarp();
}

/* The vectors of the segments before the query's own. */
__device__ void meet_vectors(const ops_attention &a, const ops_segments &segments,
                             const device_span &span, int kv_head, int64_t position,
                             long_short_query *query)
{
    int64_t end = ops_segments_before(&segments, position);
    for (int64_t base = 0; base < end; base += OPS_TILE) {
        auto dot = [&](int j) {
            page_vector vector = find_vector(segments, span.pages, kv_head, base + j);
            float sum = 0.0f;
            for (int f = 0; f < a.key_dim; f++)
                sum = fmaf(
                    query->q[f],
                    read_number(segments.kv, vector.base, vector.k + (int64_t)f * vector.places),
                    sum);
            return sum;
        };
        auto value = [&](int j, int column) {
            page_vector vector = find_vector(segments, span.pages, kv_head, base + j);
            return read_number(segments.kv, vector.base, vector.v + column);
        };
        meet_keys(a, query, 0, (int)smaller(end - base, OPS_TILE), dot, value);
    }
}

/* The keys of the window, in the ring and in the step's rows. */
__device__ void meet_window(const ops_attention &a, const keys &all, int64_t position,
                            long_short_query *query)
{
    int64_t first = first_seen(a, position);
    for (int64_t base = first / OPS_TILE * OPS_TILE; base <= position; base += OPS_TILE) {
        auto dot = [&](int j) {
            ring_key key = find_key(a, all, base + j);
            float sum = 0.0f;
            for (int f = 0; f < a.key_dim; f++)
                sum = fmaf(query->q[f], key.k[f * key.stride], sum);
            return sum;
        };
        auto value = [&](int j, int column) {
            return column < a.value_dim ? find_key(a, all, base + j).v[column] : 0.0f;
        };
        meet_keys(a, query, first > base ? (int)(first - base) : 0,
                  (int)smaller(position + 1 - base, OPS_TILE), dot, value);
    }
}

/* A text's only new key, which no append_kernel appends: nobody reads its place in the ring. */
__device__ void put_window_key(const ops_attention &a, const keys &all)
{
    int lane, numbers = a.key_dim + (int)ops_value_stride(a.value_dim);
    char *tile = place_key(a, all, all.position, &lane);
    for (int e = (int)threadIdx.x % 32; e < numbers; e += 32)
        put_element<KV_F32, false>(a, tile, lane, all.k, all.v, e);
}

/* Grid: [rows, heads / WARPS]. Shared: the weights and values of WARPS queries. */
__global__ void __launch_bounds__(WARPS * 32)
    long_short_kernel(const ops_attention a, const ops_segments segments, const device_batch batch)
{
    SHARED_MEMORY(float, memory);
    grid_wait();
    int row = (int)blockIdx.x, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int head = (int)blockIdx.y * WARPS + warp, each = a.num_heads / a.num_kv_heads;
    int stride = (int)ops_value_stride(a.value_dim);
    const device_span span = batch.spans[batch.row_span[row]];
    if (span.slot == nullptr || head >= a.num_heads)
        return;
    keys all = keys_of<false>(a, span, head / each);
    int64_t position = span.position + row - span.first_row;
    long_short_query query = {a.q.data + row * a.q.stride + (int64_t)head * a.key_dim,
                              memory + warp * (OPS_TILE + stride),
                              memory + warp * (OPS_TILE + stride) + OPS_TILE, -FLT_MAX, 0.0f};
    for (int c = lane; c < stride; c += 32)
        query.values[c] = 0.0f;
    meet_vectors(a, segments, span, head / each, position, &query);
    meet_window(a, all, position, &query);
    float *h = a.h.data + row * a.h.stride + (int64_t)head * a.value_dim;
    for (int c = lane; c < a.value_dim; c += 32)
        h[c] = query.values[c] / query.sum;
    if (span.num_rows == 1 && head % each == 0)
        put_window_key(a, all);
}

} // namespace

#endif
