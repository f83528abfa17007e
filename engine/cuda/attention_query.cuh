/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of spans of a few tokens: a block answers one query for some heads of a kv head, a warp
 * takes a tile of keys. attention.cu says in which order sums run. */
#ifndef ENGINE_CUDA_ATTENTION_QUERY_CUH
#define ENGINE_CUDA_ATTENTION_QUERY_CUH

#include "engine/cuda/attention_keys.cuh"

namespace
{

/* The queries that are answered one by one have numbers. The number is the row of the step or, when
 * spans of FEW_TOKENS and more are answered in groups, n * few + i for row i of span n. Splits of
 * several stripes are folded in parts [number][H][splits][part_floats]: a maximum, a sum and values
 * each. */
struct striping {
    bool by_row;
    int few, numbers;
    int stripes, splits;
    float *parts;
};

__device__ bool find_query(const device_batch &batch, const striping &striping, int number,
                           device_span *span, int *row)
{
    *span = batch.spans[striping.by_row ? batch.row_span[number] : number / striping.few];
    *row = striping.by_row ? number : span->first_row + number % striping.few;
    return span->slot != nullptr && (striping.by_row || (span->num_rows < FEW_TOKENS &&
                                                         number % striping.few < span->num_rows));
}

__host__ __device__ inline int part_floats(int value_dim)
{
    return (int)ops_value_stride(value_dim) +
           16; /* whole cache lines, in which no other block writes */
}

/* The splits that a query sees. */
struct split_range {
    int64_t first;
    int splits, tiles_each;
    int64_t low_tile, end_tile;
};

__device__ split_range splits_of(const ops_attention &a, int64_t position)
{
    split_range range;
    range.tiles_each = split_tiles(a, position);
    range.low_tile = first_seen(a, position) / OPS_TILE;
    range.end_tile = position / OPS_TILE + 1;
    range.first = range.low_tile / range.tiles_each;
    range.splits = (int)((range.end_tile - 1) / range.tiles_each - range.first) + 1;
    return range;
}

/* The arrays in shared memory of a block that answers one query. */
template <int HEADS> struct query_memory {
    fold *folds;                /* [WARPS][HEADS] */
    float *q;                   /* [m2][HEADS] */
    float *weights;             /* [WARPS][64][HEADS] */
    float *values;              /* [WARPS][HEADS][stride] of a tile each */
    float *split;               /* [HEADS][stride] */
    float *total;               /* [HEADS][stride] */
    float *maxima, *sums;       /* [WARPS][HEADS] of a tile each */
    float *of_split, *of_query; /* [2][HEADS] maxima and sums so far */
};

template <int HEADS> size_t query_bytes(int key_dim, int stride)
{
    size_t floats =
        (size_t)key_dim + WARPS * OPS_TILE + (WARPS + 2) * (size_t)stride + 4 * WARPS + 4;
    return HEADS * floats * sizeof(float);
}

template <int HEADS> __device__ query_memory<HEADS> lay_out(float *memory, int stride)
{
    query_memory<HEADS> m;
    m.values = memory; /* the rest may lie anywhere, these by twos */
    m.split = m.values + WARPS * HEADS * stride;
    m.total = m.split + HEADS * stride;
    m.weights = m.total + HEADS * stride;
    m.folds = (fold *)(m.weights + WARPS * OPS_TILE * HEADS);
    m.maxima = m.weights + (WARPS * OPS_TILE + 2 * WARPS) * HEADS;
    m.sums = m.maxima + WARPS * HEADS;
    m.of_split = m.sums + WARPS * HEADS;
    m.of_query = m.of_split + 2 * HEADS;
    m.q = m.of_query + 2 * HEADS;
    return m;
}

/* sums [HEADS][2] += weights [j][HEADS] times the two numbers load(j), for DEEP j from `from` on,
 * in order. WHOLE: all of them are < end. */
template <int HEADS, int DEEP, bool WHOLE, typename Load>
__device__ void add_round(const float *weights, const Load &load, int from, int end,
                          float (*sums)[2])
{
    float2 pair[DEEP];
#pragma unroll
    for (int i = 0; i < DEEP; i++)
        pair[i] = load(WHOLE || from + i < end ? from + i : end - 1);
#pragma unroll
    for (int i = 0; i < DEEP; i++)
        if (WHOLE || from + i < end)
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                sums[h][0] = fmaf(weights[(from + i) * HEADS + h], pair[i].x, sums[h][0]);
                sums[h][1] = fmaf(weights[(from + i) * HEADS + h], pair[i].y, sums[h][1]);
            }
}

/* The same for j in [low, high), DEEP loads in flight: q.k of two keys, or two columns of the
 * weighed values. */
template <int HEADS, int DEEP, typename Load>
__device__ void add_lines(const float *weights, const Load &load, int low, int high,
                          float (*sums)[2])
{
    enum { REST_DEEP = DEEP < 8 ? DEEP : 8 };
    int j = low;
#pragma unroll 1
    for (; j + DEEP <= high; j += DEEP)
        add_round<HEADS, DEEP, true>(weights, load, j, high, sums);
#pragma unroll 1
    for (; j < high; j += REST_DEEP)
        add_round<HEADS, REST_DEEP, false>(weights, load, j, high, sums);
}

/* The lines of a page, `stride` numbers each. All warps of a multiprocessor together have 64 KiB in
 * flight, or 48 KiB with eight heads. */
template <kv_format KV, int HEADS>
__device__ void add_page(const float *weights, const char *lines, int stride, int low, int high,
                         float (*sums)[2])
{
    enum { DEEP = KV == KV_F32 ? 16 : 32 };
    const int64_t line = stride * (int64_t)sizeof(typename number<KV>::type);
    auto load = [=](int j) { return load_2<KV>(lines + j * line); };
    add_lines<HEADS, DEEP>(weights, load, low, high, sums);
}

/* What a query sees of a tile: keys [low, high), key j at position base + j. In a ring, key j is at
 * `slot` + j, less W where that is past the end. */
struct seen_keys {
    int64_t base;
    int low, high, slot;
};

template <bool RING>
__device__ seen_keys see(const ops_attention &a, int64_t position, int64_t tile)
{
    seen_keys seen = {tile * OPS_TILE, 0, (int)OPS_TILE, 0};
    int64_t first = first_seen(a, position);
    if (first > seen.base)
        seen.low = (int)(first - seen.base);
    if (position - seen.base < OPS_TILE)
        seen.high = (int)(position - seen.base) + 1;
    if (RING)
        seen.slot = (int)((seen.base + seen.low) % a.window_size) - seen.low;
    return seen;
}

__device__ ring_key find_seen(const ops_attention &a, const keys &all, const seen_keys &seen, int j)
{
    int slot = seen.slot + j;
    return find_key(a, all, seen.base + j, slot < a.window_size ? slot : slot - a.window_size);
}

template <int HEADS>
__device__ void ring_scores(const ops_attention &a, const keys &all, const seen_keys &seen,
                            const float *q, float (*scores)[2])
{
    ring_key key[2];
#pragma unroll
    for (int i = 0; i < 2; i++) { /* another key where this one is not seen */
        int j = 2 * ((int)threadIdx.x % 32) + i;
        j = j < seen.low ? seen.low : j;
        key[i] = find_seen(a, all, seen, j < seen.high ? j : seen.high - 1);
    }
    auto load = [=](int f) {
        return make_float2(key[0].k[f * key[0].stride], key[1].k[f * key[1].stride]);
    };
    add_lines<HEADS, RING_DEEP>(q, load, 0, a.key_dim, scores);
}

template <int HEADS>
__device__ void ring_values(const ops_attention &a, const keys &all, const seen_keys &seen,
                            const float *weights, int column, float (*sums)[2])
{
    auto load = [&](int j) {
        const float *v = find_seen(a, all, seen, j).v;
        return make_float2(column < a.value_dim ? v[column] : 0.0f,
                           column + 1 < a.value_dim ? v[column + 1] : 0.0f);
    };
    add_lines<HEADS, RING_DEEP>(weights, load, seen.low, seen.high, sums);
}

/* Values in keys: columns `column` and the next one lie in the lines of k. */
template <kv_format KV, int HEADS>
__device__ void add_values_in_keys(const ops_attention &a, const float *weights, const char *k,
                                   const seen_keys &seen, int column, float (*sums)[2])
{
    const int64_t bytes = sizeof(typename number<KV>::type), line = OPS_TILE * bytes;
    const int left = a.value_dim - column; /* the rest of V would be padding */
    k += column * line;
    auto load = [=](int j) {
        return make_float2(left > 0 ? load_1<KV>(k + j * bytes) : 0.0f,
                           left > 1 ? load_1<KV>(k + line + j * bytes) : 0.0f);
    };
    add_lines<HEADS, RING_DEEP>(weights, load, seen.low, seen.high, sums);
}

/* A warp computes one tile for the query at `position` of all heads: maxima, sums and values. */
template <kv_format KV, bool RING, int HEADS, bool IN_KEYS>
__device__ void meet_tile(const ops_attention &a, const keys &all, int64_t position, int64_t tile,
                          int head, int heads, const query_memory<HEADS> &m)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int stride = (int)ops_value_stride(a.value_dim);
    const seen_keys seen = see<RING>(a, position, tile);
    float scores[HEADS][2] = {};
    const char *k = RING ? nullptr : all.pages[tile] + all.in_page;
    const int64_t bytes = sizeof(typename number<KV>::type);
    if constexpr (RING)
        ring_scores<HEADS>(a, all, seen, m.q, scores);
    else
        add_page<KV, HEADS>(m.q, k + 2 * lane * bytes, OPS_TILE, 0, a.key_dim, scores);
    float *weights = m.weights + warp * OPS_TILE * HEADS;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        weights[2 * lane * HEADS + h] = scores[h][0];
        weights[(2 * lane + 1) * HEADS + h] = scores[h][1];
    }
#pragma unroll 1
    for (int h = 0; h < heads; h++) {
        const formula_bias *bias = a.biases == nullptr ? nullptr : &a.biases[head + h];
        float most = no_maximum(a), both[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int j = 2 * lane + i;
            int64_t distance = position - seen.base - j;
            float score =
                finish_score(a, bias, weights[j * HEADS + h], distance > 0 ? distance : 0);
            both[i] = j >= seen.low && j < seen.high ? score : -INFINITY;
            most = a.activation != SOFTMAX_ACT_SOFTMAX ? most : greater(most, both[i]);
        }
        for (int other = 1; other < 32; other *= 2)
            most = greater(most, __shfl_xor_sync(FULL_WARP, most, other));
#pragma unroll
        for (int i = 0; i < 2; i++)
            weights[(2 * lane + i) * HEADS + h] = both[i] = weigh(a, both[i], most);
        float sum = both[0] + both[1];
        for (int other = 1; other < 32; other *= 2)
            sum += __shfl_xor_sync(FULL_WARP, sum, other);
        if (lane == 0) {
            m.maxima[warp * HEADS + h] = most;
            m.sums[warp * HEADS + h] = sum;
        }
    }
    __syncwarp();
    for (int c = 2 * lane; c < stride; c += 64) {
        float sums[HEADS][2] = {};
        if constexpr (RING)
            ring_values<HEADS>(a, all, seen, weights, c, sums);
        else if constexpr (IN_KEYS)
            add_values_in_keys<KV, HEADS>(a, weights, k, seen, c, sums);
        else
            add_page<KV, HEADS>(weights, k + ((int64_t)a.key_dim * OPS_TILE + c) * bytes, stride,
                                seen.low, seen.high, sums);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            *(float2 *)&m.values[(warp * HEADS + h) * stride + c] =
                make_float2(sums[h][0], sums[h][1]);
    }
}

/* Folds n parts in order into `running` (maxima, then sums) and `into` (values). Part i of head h
 * has maxima[i * HEADS + h], its sum likewise, and its values at values + (i * HEADS + h) * stride.
 * The whole block calls it. */
template <int HEADS>
__device__ void fold_parts(const query_memory<HEADS> &m, float *running, float *into, int n,
                           int stride, const float *maxima, const float *sums, const float *values)
{
    __syncthreads();
    if (threadIdx.x < n * HEADS) {
        int i = (int)threadIdx.x;
        float most = running[i % HEADS];
        for (int before = i % HEADS; before < i; before += HEADS)
            most = greater(most, maxima[before]);
        m.folds[i] = fold_maxima(&most, maxima[i]);
    }
    __syncthreads();
    if (threadIdx.x < HEADS)
        for (int i = (int)threadIdx.x; i < n * HEADS; i += HEADS) {
            running[threadIdx.x] = greater(running[threadIdx.x], maxima[i]);
            running[HEADS + threadIdx.x] = m.folds[i](running[HEADS + threadIdx.x], sums[i]);
        }
    for (int e = (int)threadIdx.x; e < HEADS * stride; e += WARPS * 32) {
        float sum = into[e];
        for (int i = 0; i < n; i++)
            sum = m.folds[i * HEADS + e / stride](sum, values[i * HEADS * stride + e]);
        into[e] = sum;
    }
    __syncthreads();
}

/* Nothing folded yet. */
template <int HEADS>
__device__ void fold_start(const ops_attention &a, float *running, float *into, int stride)
{
    for (int e = (int)threadIdx.x; e < HEADS * stride; e += WARPS * 32)
        into[e] = 0.0f;
    if (threadIdx.x < 2 * HEADS)
        running[threadIdx.x] = threadIdx.x < HEADS ? no_maximum(a) : 0.0f;
}

/* What the blocks of one query know about it. */
struct query {
    int row, number; /* of the step, and of the parts */
    int kv_head, head, heads;
    bool first_heads; /* of the kv head */
    int64_t position;
};

/* Appends the text's only new key, when no append_kernel does. No block reads its place in a ring
 * meanwhile. Each group of heads writes it into the page, since its block will read it there. */
template <kv_format KV, bool RING, bool IN_KEYS>
__device__ void put_only_key(const ops_attention &a, const keys &all, const query &query,
                             bool last_split, bool first_stripe)
{
    if (all.end - all.position > 1 || !(RING ? first_stripe && query.first_heads : last_split))
        return;
    int lane, stride = IN_KEYS ? 0 : (int)ops_value_stride(a.value_dim);
    char *tile = place_key(a, all, query.position, &lane);
    for (int e = (int)threadIdx.x; e < a.key_dim + stride; e += WARPS * 32)
        put_element<KV, !RING>(a, tile, lane, all.k, all.v, e);
}

template <int HEADS>
__device__ void store_part(const ops_attention &a, const striping &striping, const query &query,
                           int split, const query_memory<HEADS> &m)
{
    int stride = (int)ops_value_stride(a.value_dim), floats = part_floats(a.value_dim);
    float *parts = striping.parts +
                   ((int64_t)query.number * a.num_heads + query.head) * striping.splits * floats;
    for (int e = (int)threadIdx.x; e < query.heads * (stride + 2); e += WARPS * 32) {
        int h = e / (stride + 2), i = e % (stride + 2);
        float *part = parts + ((int64_t)h * striping.splits + split) * floats;
        part[i] = i < 2 ? m.of_split[i * HEADS + h] : m.split[h * stride + i - 2];
    }
    __syncthreads();
}

/* Answers the query for `heads` <= HEADS heads from `head` on, over splits stripe, stripe +
 * stripes,
 * ... */
template <kv_format KV, bool RING, int HEADS, bool IN_KEYS>
__device__ void meet_splits(const ops_attention &a, const keys &all, const striping &striping,
                            const query &query, const query_memory<HEADS> &m)
{
    int stride = (int)ops_value_stride(a.value_dim), tid = (int)threadIdx.x;
    split_range range = splits_of(a, query.position);
    int stripes = striping.stripes, stripe = (int)blockIdx.z;
    for (int e = tid; e < a.key_dim * HEADS; e += WARPS * 32) {
        const float *q = a.q.data + query.row * a.q.stride + (int64_t)query.head * a.key_dim;
        int h = e % HEADS;
        m.q[e] = h < query.heads ? q[(int64_t)h * a.key_dim + e / HEADS] : 0.0f;
    }
    fold_start<HEADS>(a, m.of_query, m.total, stride);
    put_only_key<KV, RING, IN_KEYS>(a, all, query, (range.splits - 1) % stripes == stripe,
                                    stripe == 0);
    __syncthreads();
    for (int split = stripe; split < range.splits; split += stripes) {
        int64_t from = (range.first + split) * range.tiles_each;
        int64_t to = smaller(from + range.tiles_each, range.end_tile);
        from = from < range.low_tile ? range.low_tile : from;
        fold_start<HEADS>(a, m.of_split, m.split, stride);
        for (int64_t tile = from; tile < to; tile += WARPS) {
            int n = (int)smaller(to - tile, WARPS);
            if (tid / 32 < n)
                meet_tile<KV, RING, HEADS, IN_KEYS>(a, all, query.position, tile + tid / 32,
                                                    query.head, query.heads, m);
            fold_parts<HEADS>(m, m.of_split, m.split, n, stride, m.maxima, m.sums, m.values);
        }
        if (stripes > 1)
            store_part<HEADS>(a, striping, query, split, m);
        else
            fold_parts<HEADS>(m, m.of_query, m.total, 1, stride, m.of_split, m.of_split + HEADS,
                              m.split);
    }
}

/* The number of blocks that a multiprocessor should hold, by registers: eight heads have many sums.
 */
template <bool RING, int HEADS> constexpr int blocks_each = RING || HEADS <= 4 ? 4 : 3;

/* Answers one query for a group of heads. Grid: [numbers, kv heads * groups of heads, stripes]. */
template <kv_format KV, bool RING, int HEADS, bool IN_KEYS>
__global__ void __launch_bounds__(WARPS * 32, blocks_each<RING, HEADS>)
    query_kernel(const ops_attention a, const device_batch batch, const striping striping)
{
    SHARED_MEMORY(float, memory);
    grid_wait();
    device_span span;
    query query;
    query.number = (int)blockIdx.x;
    if (!find_query(batch, striping, query.number, &span, &query.row))
        return;
    int group = a.num_heads / a.num_kv_heads, groups = (group + HEADS - 1) / HEADS;
    int in_group = (int)blockIdx.y % groups * HEADS, stride = (int)ops_value_stride(a.value_dim);
    query.kv_head = (int)blockIdx.y / groups;
    query.head = query.kv_head * group + in_group;
    query.heads = (int)smaller(group - in_group, HEADS);
    query.first_heads = in_group == 0;
    query.position = span.position + query.row - span.first_row;
    keys all = keys_of<IN_KEYS>(a, span, query.kv_head);
    query_memory<HEADS> m = lay_out<HEADS>(memory, stride);
    meet_splits<KV, RING, HEADS, IN_KEYS>(a, all, striping, query, m);
    for (int e = (int)threadIdx.x; striping.stripes == 1 && e < query.heads * a.value_dim;
         e += WARPS * 32) {
        int h = e / a.value_dim, column = e % a.value_dim;
        float divisor = value_divisor(a, query.head + h, m.of_query[HEADS + h], m.of_query[h]);
        a.h.data[query.row * a.h.stride + (int64_t)query.head * a.value_dim + e] =
            m.total[h * stride + column] / divisor;
    }
}

/* Folds the splits of one query and head. Grid: [numbers, H]. */
__global__ void __launch_bounds__(WARPS * 32)
    fold_kernel(const ops_attention a, const device_batch batch, const striping striping)
{
    __shared__ fold folds[MOST_SPLITS];
    __shared__ float maxima[MOST_SPLITS], sums[MOST_SPLITS];
    grid_wait();
    int number = (int)blockIdx.x, head = (int)blockIdx.y, tid = (int)threadIdx.x, row;
    device_span span;
    if (!find_query(batch, striping, number, &span, &row))
        return;
    int splits = splits_of(a, span.position + row - span.first_row).splits;
    int floats = part_floats(a.value_dim);
    const float *parts =
        striping.parts + ((int64_t)number * a.num_heads + head) * striping.splits * floats;
    if (tid < splits) {
        maxima[tid] = parts[(int64_t)tid * floats];
        sums[tid] = parts[(int64_t)tid * floats + 1];
    }
    __syncthreads();
    if (tid < splits) {
        float most = no_maximum(a);
        for (int i = 0; i < tid; i++)
            most = greater(most, maxima[i]);
        folds[tid] = fold_maxima(&most, maxima[tid]);
    }
    __syncthreads();
    float divisor = 0.0f, most = no_maximum(a);
    for (int i = 0; i < splits; i++) {
        divisor = folds[i](divisor, sums[i]);
        most = greater(most, maxima[i]);
    }
    divisor = value_divisor(a, head, divisor, most);
    for (int column = tid; column < a.value_dim; column += WARPS * 32) {
        float total = 0.0f;
        for (int from = 0; from < splits; from += FOLD_DEEP) {
            float part[FOLD_DEEP];
#pragma unroll
            for (int i = 0; i < FOLD_DEEP; i++)
                part[i] = parts[smaller(from + i, splits - 1) * floats + 2 + column];
#pragma unroll
            for (int i = 0; i < FOLD_DEEP; i++)
                total = from + i < splits ? folds[from + i](total, part[i]) : total;
        }
        a.h.data[row * a.h.stride + (int64_t)head * a.value_dim + column] = total / divisor;
    }
}

} // namespace

#endif
