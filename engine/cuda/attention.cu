/* Softmax attention: ops_attention (engine/ops.h), with the meaning that engine/cpu/ gives it.
 *
 * The order of a query's sums follows from its position alone:
 *   tile    64 keys: score_j = q.k_j, one running sum over the features; p_j = exp(score_j - m), m
 *           the greatest of the tile; l = sum of p by halves of neighbours; o = sum of p_j v_j, one
 *           running sum over the keys that the query sees
 *   split   4 tiles, or twice, four times, ... as many for far positions: tiles folded in order
 *   query   splits folded in order, from the first that it sees; then o / l
 * where folding (m', l', o') into (m, l, o) gives M = max(m, m') and
 * (M, l exp(m - M) + l' exp(m' - M), o exp(m - M) + o' exp(m' - M)).
 *
 * Spans of a few tokens: one block per query, group of heads of one kv head, and stripe of splits;
 * a warp meets a tile, whose numbers go from memory to registers once for all heads of the group.
 * Where there are several stripes, a second kernel folds the splits. Longer spans: one block per
 * 64 queries at absolute positions [64 i, 64 i + 64) and head, K and V through shared memory for
 * all of them. Both give the same bits.
 *
 * A query of one head does 2 (m2 + dv) operations a key and takes one exponential; the keys' bytes
 * are read once per query and group of heads (few tokens), or once per head and 64 queries, from
 * which 64 of them are met for 2 (m2 + dv) * 64 operations a key.
 *
 * Of a multiprocessor with 64 Ki registers (ptxas 13.0, sm_90): blocks of one query take 103 to 168
 * registers, 3 blocks = 12 warps (f32 pages, 2 heads: 215, 2 blocks); blocks of 64 queries 128 to
 * 168 where dv <= 64 (2 blocks = 16 warps; rings 1), up to 254 beyond (1 block = 8 warps). Shared
 * memory of the latter: 12 KiB of parts (24 of f32), 17 of weights, 4 (m2 / 4 + 1) of queries. */
#include "engine/cuda/common.cuh"

#include <float.h>

namespace
{

enum {
    SPLIT_TILES = 4,    /* of a split, at least */
    MOST_SPLITS = 64,   /* of a query */
    WARPS = 4,          /* of a block that meets one query */
    QUERIES = OPS_TILE, /* of a block that meets several */
    THREADS = 256,      /* of such a block: 16 x 16, each 4 queries x 4 keys or columns */
    PART = 32,          /* features, or keys, of a part of K, or V, in shared memory */
    STAGES = 3,         /* parts in flight */
    PITCH = OPS_TILE + 4,
    MOST_KEY_DIM = 512, /* of such blocks */
    MOST_COLUMNS = 256,
    FEW_TOKENS = 8,  /* spans of fewer are met query by query */
    BLOCKS_EACH = 4, /* wanted for each multiprocessor */
    MOST_SHARED = 96 << 10
};

/* ---- places ---- */

/* The first position that a query sees. */
__device__ int64_t first_seen(const ops_attention &a, int64_t position)
{
    if (a.window == WINDOW_FULL)
        return 0;
    int64_t low = a.window == WINDOW_BLOCK ? position / a.window_size * a.window_size
                                           : position - a.window_size + 1;
    return low > 0 ? low : 0;
}

/* Tiles of a split, for a query at this position. A window lies in no more than two splits more
 * than it fills. */
__host__ __device__ int split_tiles(const ops_attention &a, int64_t position)
{
    int64_t tiles = position / OPS_TILE + 1;
    if (a.window != WINDOW_FULL && tiles > a.window_size / OPS_TILE + 2)
        tiles = a.window_size / OPS_TILE + 2;
    int length = SPLIT_TILES;
    while (tiles > (int64_t)length * (MOST_SPLITS - 2))
        length *= 2;
    return length;
}

__device__ int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The keys of one text and kv head. */
struct keys {
    char *const *pages; /* full windows: the page of a tile, and where the head is in it */
    size_t in_page;
    char *ring; /* of W keys, in f32 */
    size_t tile_bytes;
    int64_t position, end; /* of the span */
    const float *k, *v;    /* the head's part of the span's rows */
    int kv_head;
};

__device__ keys keys_of(const ops_attention &a, const device_span &span, int kv_head)
{
    keys all;
    all.tile_bytes = ops_tile_bytes(a.key_dim, a.value_dim, a.kv);
    size_t tiles = a.window == WINDOW_FULL ? 1 : (size_t)(a.window_size + OPS_TILE - 1) / OPS_TILE;
    all.pages = span.pages;
    all.in_page = a.offset + (size_t)kv_head * all.tile_bytes;
    all.ring = span.slot + a.offset + (size_t)kv_head * tiles * all.tile_bytes;
    all.position = span.position;
    all.end = span.position + span.num_rows;
    all.k = a.k.data + span.first_row * a.k.stride + (int64_t)kv_head * a.key_dim;
    all.v = a.v.data + span.first_row * a.v.stride + (int64_t)kv_head * a.value_dim;
    all.kv_head = kv_head;
    return all;
}

/* A key that lies in a ring, or still in the rows of the step. */
struct ring_key {
    const float *k; /* feature f at k[f * stride] */
    int64_t stride;
    const float *v; /* [value_dim] */
};

__device__ ring_key find_key(const ops_attention &a, const keys &all, int64_t s)
{
    if (s >= all.position)
        return {all.k + (s - all.position) * a.k.stride, 1,
                all.v + (s - all.position) * a.v.stride};
    int slot = (int)(s % a.window_size), lane = slot % OPS_TILE;
    const float *tile = (const float *)(all.ring + (size_t)(slot / OPS_TILE) * all.tile_bytes);
    return {tile + lane, OPS_TILE,
            tile + (int64_t)a.key_dim * OPS_TILE + lane * (int64_t)ops_value_stride(a.value_dim)};
}

/* ---- numbers of K and V ---- */

template <kv_format KV> struct number;
template <> struct number<KV_F32> {
    typedef float type;
};
template <> struct number<KV_F16> {
    typedef uint16_t type;
};
template <> struct number<KV_BF16> {
    typedef uint16_t type;
};

template <kv_format KV> __device__ float widen(uint32_t bits)
{
    if (KV == KV_F16)
        return f32_of_f16((uint16_t)bits);
    return f32_of_bf16((uint16_t)bits);
}

template <kv_format KV> __device__ typename number<KV>::type narrow(float x)
{
    if constexpr (KV == KV_F32)
        return x;
    else if constexpr (KV == KV_F16)
        return f16_of_f32(x);
    else
        return bf16_of_f32(x);
}

/* Two, or four, numbers beside each other. */
template <kv_format KV> __device__ float2 load_2(const char *at)
{
    if constexpr (KV == KV_F32)
        return *(const float2 *)at;
    uint32_t both = *(const uint32_t *)at;
    return make_float2(widen<KV>(both & 0xffff), widen<KV>(both >> 16));
}

template <kv_format KV> __device__ float4 load_4(const char *at)
{
    if constexpr (KV == KV_F32)
        return *(const float4 *)at;
    uint2 all = *(const uint2 *)at;
    return make_float4(widen<KV>(all.x & 0xffff), widen<KV>(all.x >> 16), widen<KV>(all.y & 0xffff),
                       widen<KV>(all.y >> 16));
}

/* ---- weights and folding ---- */

/* The score of a key at this distance. */
__device__ float finish_score(const ops_attention &a, const formula_bias *bias, float dot,
                              int64_t distance)
{
    float score = dot * a.scale;
    if (bias == nullptr)
        return score;
    float weight, add;
    formula_position_bias(a.bias, bias, (float)distance, &weight, &add);
    return score * weight + add;
}

/* What a key weighs, where `most` is the greatest score of its tile; a key that is not seen has the
 * score -infinity. */
__device__ float weigh(const ops_attention &a, float score, float most)
{
    return a.activation == SOFTMAX_ACT_RELU ? formula_relu(score) : formula_exp(score - most);
}

/* The least finite number, as a score of -infinity may be the greatest there is. */
__device__ float no_maximum(const ops_attention &a)
{
    return a.activation == SOFTMAX_ACT_RELU ? 0.0f : -FLT_MAX;
}

__device__ float greater(float a, float b)
{
    return b > a ? b : a;
}

/* How a part with maximum m is folded into what has maximum `most`, which it raises. */
struct fold {
    float old_factor, new_factor;
    __device__ float operator()(float sum, float part) const
    {
        return fmaf(part, new_factor, sum * old_factor);
    }
};

__device__ fold fold_maxima(float *most, float part)
{
    float both = greater(*most, part);
    fold result = {formula_exp(*most - both), formula_exp(part - both)};
    *most = both;
    return result;
}

/* ---- appending ---- */

/* Puts element e of a key (its features, then its values and their padding) into lane `lane`. */
template <kv_format KV>
__device__ void put_element(const ops_attention &a, char *tile, int lane, const float *k,
                            const float *v, int e)
{
    typedef typename number<KV>::type type;
    int stride = (int)ops_value_stride(a.value_dim), column = e - a.key_dim;
    type *numbers = (type *)tile;
    if (column < 0)
        numbers[(int64_t)e * OPS_TILE + lane] = narrow<KV>(k[e]);
    else
        numbers[((int64_t)a.key_dim * OPS_TILE) + (int64_t)lane * stride + column] =
            column < a.value_dim ? narrow<KV>(v[column]) : (type)0;
}

__device__ char *place_key(const ops_attention &a, const keys &all, int64_t s, int *lane)
{
    if (a.window == WINDOW_FULL) {
        *lane = (int)(s % OPS_TILE);
        return all.pages[s / OPS_TILE] + all.in_page;
    }
    int slot = (int)(s % a.window_size);
    *lane = slot % OPS_TILE;
    return all.ring + (size_t)(slot / OPS_TILE) * all.tile_bytes;
}

/* Keys and values of 32 rows of spans of several tokens to their places; grid: [rows / 32, kv
 * heads]. Lanes are rows for K, whose neighbours lie side by side, and columns for V. */
template <kv_format KV>
__global__ void __launch_bounds__(THREADS)
    append_kernel(const ops_attention a, const device_batch batch)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, kv_head = (int)blockIdx.y;
    int stride = (int)ops_value_stride(a.value_dim);
    for (int pass = 0; pass < 2; pass++)
        for (int i = pass == 0 ? 0 : warp; i < 32; i += pass == 0 ? 32 : THREADS / 32) {
            int row = (int)blockIdx.x * 32 + (pass == 0 ? lane : i);
            if (row >= batch.num_rows)
                continue;
            const device_span &span = batch.spans[batch.row_span[row]];
            int64_t s = span.position + row - span.first_row;
            keys all = keys_of(a, span, kv_head);
            if (span.slot == nullptr || span.num_rows == 1 ||
                (a.window != WINDOW_FULL && s < all.end - a.window_size))
                continue;
            int place;
            char *tile = place_key(a, all, s, &place);
            const float *k = all.k + (s - all.position) * a.k.stride;
            const float *v = all.v + (s - all.position) * a.v.stride;
            for (int e = pass == 0 ? warp : a.key_dim + lane;
                 e < (pass == 0 ? a.key_dim : a.key_dim + stride);
                 e += pass == 0 ? THREADS / 32 : 32)
                put_element<KV>(a, tile, place, k, v, e);
        }
}

/* ---- one query ---- */

/* The queries that are met one by one, numbered: rows of the step, or row i of span n as n * few +
 * i where spans of FEW_TOKENS and more are met otherwise. Splits of several stripes meet in parts
 * [number][H][splits][part_floats]: a maximum, a sum and values each. */
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
    return (int)ops_value_stride(value_dim) + 16; /* whole lines: nobody else writes there */
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

/* Arrays of a block that meets one query, in shared memory. */
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

/* q.k of two keys for all heads, one running sum each. */
template <kv_format KV, int HEADS>
__device__ void page_scores(int key_dim, const float *q, const char *k, float (*scores)[2])
{
    enum { DEEP = KV == KV_F32 ? 4 : 8 }; /* loads in flight: of as many bytes */
    const int64_t line = OPS_TILE * (int64_t)sizeof(typename number<KV>::type);
    int f = 0;
    for (; f + DEEP <= key_dim; f += DEEP, k += DEEP * line) {
        float2 pair[DEEP];
#pragma unroll
        for (int i = 0; i < DEEP; i++)
            pair[i] = load_2<KV>(k + i * line);
#pragma unroll
        for (int i = 0; i < DEEP; i++)
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                scores[h][0] = fmaf(q[(f + i) * HEADS + h], pair[i].x, scores[h][0]);
                scores[h][1] = fmaf(q[(f + i) * HEADS + h], pair[i].y, scores[h][1]);
            }
    }
#pragma unroll 1
    for (; f < key_dim; f++, k += line) {
        float2 pair = load_2<KV>(k);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            scores[h][0] = fmaf(q[f * HEADS + h], pair.x, scores[h][0]);
            scores[h][1] = fmaf(q[f * HEADS + h], pair.y, scores[h][1]);
        }
    }
}

template <int HEADS>
__device__ void ring_scores(const ops_attention &a, const keys &all, const float *q, int64_t s,
                            int64_t low, int64_t end, float (*scores)[2])
{
    for (int i = 0; i < 2; i++) {
        if (s + i < low || s + i >= end)
            continue;
        ring_key key = find_key(a, all, s + i);
#pragma unroll 1
        for (int f = 0; f < a.key_dim; f++)
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                scores[h][i] = fmaf(q[f * HEADS + h], key.k[f * key.stride], scores[h][i]);
    }
}

/* sums [HEADS][2] += weights of keys [low, high) of a tile * columns c and c + 1 of their values.
 */
template <kv_format KV, int HEADS>
__device__ void page_values(const float *weights, const char *v, int stride, int low, int high,
                            float (*sums)[2])
{
    enum { DEEP = KV == KV_F32 ? 4 : 8 }; /* loads in flight: of as many bytes */
    const int64_t line = stride * (int64_t)sizeof(typename number<KV>::type);
    int j = low;
    v += j * line;
    for (; j + DEEP <= high; j += DEEP, v += DEEP * line) {
        float2 pair[DEEP];
#pragma unroll
        for (int i = 0; i < DEEP; i++)
            pair[i] = load_2<KV>(v + i * line);
#pragma unroll
        for (int i = 0; i < DEEP; i++)
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                sums[h][0] = fmaf(weights[(j + i) * HEADS + h], pair[i].x, sums[h][0]);
                sums[h][1] = fmaf(weights[(j + i) * HEADS + h], pair[i].y, sums[h][1]);
            }
    }
#pragma unroll 1
    for (; j < high; j++, v += line) {
        float2 pair = load_2<KV>(v);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            sums[h][0] = fmaf(weights[j * HEADS + h], pair.x, sums[h][0]);
            sums[h][1] = fmaf(weights[j * HEADS + h], pair.y, sums[h][1]);
        }
    }
}

template <int HEADS>
__device__ void ring_values(const ops_attention &a, const keys &all, const float *weights,
                            int64_t base, int low, int high, int column, float (*sums)[2])
{
#pragma unroll 1
    for (int j = low; j < high; j++) {
        const float *v = find_key(a, all, base + j).v;
        float x = column < a.value_dim ? v[column] : 0.0f;
        float y = column + 1 < a.value_dim ? v[column + 1] : 0.0f;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            sums[h][0] = fmaf(weights[j * HEADS + h], x, sums[h][0]);
            sums[h][1] = fmaf(weights[j * HEADS + h], y, sums[h][1]);
        }
    }
}

/* A warp meets one tile with the query at `position` of all heads: maxima, sums and values. */
template <kv_format KV, bool RING, int HEADS>
__device__ void meet_tile(const ops_attention &a, const keys &all, int64_t position, int64_t tile,
                          int head, int heads, const query_memory<HEADS> &m)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int stride = (int)ops_value_stride(a.value_dim);
    int64_t base = tile * OPS_TILE, seen = first_seen(a, position);
    int low = seen > base ? (int)(seen - base) : 0;
    int high = position - base < OPS_TILE ? (int)(position - base) + 1 : (int)OPS_TILE;
    float scores[HEADS][2] = {};
    const char *k = RING ? nullptr : all.pages[tile] + all.in_page;
    const int64_t bytes = sizeof(typename number<KV>::type);
    if constexpr (RING)
        ring_scores<HEADS>(a, all, m.q, base + 2 * lane, seen, position + 1, scores);
    else
        page_scores<KV, HEADS>(a.key_dim, m.q, k + 2 * lane * bytes, scores);
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
            int64_t distance = position - base - j;
            float score =
                finish_score(a, bias, weights[j * HEADS + h], distance > 0 ? distance : 0);
            both[i] = j >= low && j < high ? score : -INFINITY;
            most = a.activation == SOFTMAX_ACT_RELU ? most : greater(most, both[i]);
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
            ring_values<HEADS>(a, all, weights, base, low, high, c, sums);
        else
            page_values<KV, HEADS>(weights, k + ((int64_t)a.key_dim * OPS_TILE + c) * bytes, stride,
                                   low, high, sums);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            *(float2 *)&m.values[(warp * HEADS + h) * stride + c] =
                make_float2(sums[h][0], sums[h][1]);
    }
}

/* Folds n parts in order into what has `running` (maxima, then sums) and `into`: part i of head h
 * has maxima[i * HEADS + h], its sum likewise, and its values at values + (i * HEADS + h) * stride.
 * Of the whole block. */
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

/* What the blocks of one query know of it. */
struct query {
    int row, number; /* of the step, and of the parts */
    int kv_head, head, heads;
    bool first_heads; /* of the kv head */
    int64_t position;
};

/* The text's only new key, where no append_kernel puts it; nobody reads a ring's place there. */
template <kv_format KV, bool RING>
__device__ void put_only_key(const ops_attention &a, const keys &all, const query &query,
                             bool last_split, bool first_stripe)
{
    if (all.end - all.position > 1 || !(RING ? first_stripe && query.first_heads : last_split))
        return;
    int lane, stride = (int)ops_value_stride(a.value_dim);
    char *tile = place_key(a, all, query.position, &lane);
    for (int e = (int)threadIdx.x; e < a.key_dim + stride; e += WARPS * 32)
        put_element<KV>(a, tile, lane, all.k, all.v, e);
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

/* `heads` <= HEADS heads from `head` on meet splits stripe, stripe + stripes, ... of the query. */
template <kv_format KV, bool RING, int HEADS>
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
    put_only_key<KV, RING>(a, all, query, (range.splits - 1) % stripes == stripe, stripe == 0);
    __syncthreads();
    for (int split = stripe; split < range.splits; split += stripes) {
        int64_t from = (range.first + split) * range.tiles_each;
        int64_t to = smaller(from + range.tiles_each, range.end_tile);
        from = from < range.low_tile ? range.low_tile : from;
        fold_start<HEADS>(a, m.of_split, m.split, stride);
        for (int64_t tile = from; tile < to; tile += WARPS) {
            int n = (int)smaller(to - tile, WARPS);
            if (tid / 32 < n)
                meet_tile<KV, RING, HEADS>(a, all, query.position, tile + tid / 32, query.head,
                                           query.heads, m);
            fold_parts<HEADS>(m, m.of_split, m.split, n, stride, m.maxima, m.sums, m.values);
        }
        if (stripes > 1)
            store_part<HEADS>(a, striping, query, split, m);
        else
            fold_parts<HEADS>(m, m.of_query, m.total, 1, stride, m.of_split, m.of_split + HEADS,
                              m.split);
    }
}

/* One query's heads of a group. Grid: [numbers, kv heads * groups of heads, stripes]. */
template <kv_format KV, bool RING, int HEADS>
__global__ void __launch_bounds__(WARPS * 32, HEADS == 2 ? 2 : 3)
    query_kernel(const ops_attention a, const device_batch batch, const striping striping)
{
    SHARED_MEMORY(float, memory);
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
    keys all = keys_of(a, span, query.kv_head);
    query_memory<HEADS> m = lay_out<HEADS>(memory, stride);
    meet_splits<KV, RING, HEADS>(a, all, striping, query, m);
    for (int e = (int)threadIdx.x; striping.stripes == 1 && e < query.heads * a.value_dim;
         e += WARPS * 32) {
        int h = e / a.value_dim, column = e % a.value_dim;
        float divisor = a.activation == SOFTMAX_ACT_RELU ? 1.0f : m.of_query[HEADS + h];
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
    float divisor = 0.0f;
    for (int i = 0; i < splits; i++)
        divisor = folds[i](divisor, sums[i]);
    for (int column = tid; column < a.value_dim; column += WARPS * 32) {
        float total = 0.0f;
#pragma unroll 4
        for (int i = 0; i < splits; i++)
            total = folds[i](total, parts[(int64_t)i * floats + 2 + column]);
        a.h.data[row * a.h.stride + (int64_t)head * a.value_dim + column] =
            total / (a.activation == SOFTMAX_ACT_RELU ? 1.0f : divisor);
    }
}

/* ---- many queries ---- */

/* Queries of one text at positions of one tile; row i of the block is at first + i. */
struct query_group {
    device_span span;
    int row, n;
    int64_t first;
};

/* Finds the group of that number among those of all spans, in order. */
__device__ bool find_group(const device_batch &batch, int number, query_group *group)
{
    int lane = (int)threadIdx.x % 32;
    for (int from = 0; from < batch.num_spans; from += 32) {
        int count = 0;
        if (from + lane < batch.num_spans) {
            const device_span &span = batch.spans[from + lane];
            if (span.slot != nullptr && span.num_rows >= FEW_TOKENS)
                count = (int)((span.position + span.num_rows - 1) / OPS_TILE -
                              span.position / OPS_TILE) +
                        1;
        }
        int end = count;
        for (int other = 1; other < 32; other *= 2) {
            int before = __shfl_up_sync(FULL_WARP, end, (unsigned)other);
            end += lane >= other ? before : 0;
        }
        unsigned behind = __ballot_sync(FULL_WARP, number < end);
        if (behind != 0) {
            int at = __ffs((int)behind) - 1;
            int in_span = number - __shfl_sync(FULL_WARP, end - count, at);
            group->span = batch.spans[from + at];
            int64_t position = group->span.position;
            int64_t base = (position / OPS_TILE + in_span) * OPS_TILE;
            group->first = base < position ? position : base;
            group->row = group->span.first_row + (int)(group->first - position);
            group->n =
                (int)(smaller(position + group->span.num_rows, base + OPS_TILE) - group->first);
            return true;
        }
        number -= __shfl_sync(FULL_WARP, end, 31);
    }
    return false;
}

/* A tile comes in parts of PART lines of 64 numbers: features of K, then keys of V, for every 64
 * columns two. */
template <kv_format KV>
__device__ void load_page_part(const ops_attention &a, const keys &all, int tile, int part,
                               char *to)
{
    const int line = OPS_TILE * (int)sizeof(typename number<KV>::type), tid = (int)threadIdx.x;
    const char *from = all.pages[tile] + all.in_page;
    int key_parts = (a.key_dim + PART - 1) / PART;
    if (part < key_parts) {
        int count = (int)smaller(a.key_dim - part * PART, PART);
        from += (int64_t)part * PART * line;
        for (int at = tid * 16; at < count * line; at += THREADS * 16)
            copy_async_16(to + at, from + at);
        return;
    }
    int stride = (int)ops_value_stride(a.value_dim) * (line / OPS_TILE);
    int column = (part - key_parts) / 2 * line, key = (part - key_parts) % 2 * PART;
    from += (int64_t)a.key_dim * line + (int64_t)key * stride + column;
    for (int at = tid * 16; at < PART * line; at += THREADS * 16)
        if (column + at % line < stride)
            copy_async_16(to + at, from + (int64_t)(at / line) * stride + at % line);
}

/* The same of keys in a ring and in the step's rows; keys outside [low, end) are zero. */
__device__ void load_ring_part(const ops_attention &a, const keys &all, int tile, int part,
                               int64_t low, int64_t end, float *to)
{
    int key_parts = (a.key_dim + PART - 1) / PART, lane = (int)threadIdx.x % OPS_TILE;
    int64_t base = (int64_t)tile * OPS_TILE;
    if (part < key_parts) {
        int64_t s = base + lane;
        bool there = s >= low && s < end;
        ring_key key = find_key(a, all, there ? s : end - 1);
        for (int f = (int)threadIdx.x / OPS_TILE; f < PART; f += THREADS / OPS_TILE)
            to[f * OPS_TILE + lane] =
                there && part * PART + f < a.key_dim ? key.k[(part * PART + f) * key.stride] : 0.0f;
        return;
    }
    int column = (part - key_parts) / 2 * OPS_TILE + lane;
    for (int j = (int)threadIdx.x / OPS_TILE; j < PART; j += THREADS / OPS_TILE) {
        int64_t s = base + (part - key_parts) % 2 * PART + j;
        bool there = s >= low && s < end && column < a.value_dim;
        to[j * OPS_TILE + lane] = there ? find_key(a, all, s).v[column] : 0.0f;
    }
}

/* The parts of all tiles of a block, in order, some of them on their way. */
template <kv_format KV, bool RING> struct part_stream {
    char *stages; /* [STAGES] */
    int tile, end_tile;
    int part, parts_each; /* the next to ask for */
    int ask, take;        /* stages */
    int64_t low, end;     /* of keys, for a ring */

    enum { BYTES = PART * OPS_TILE * (int)sizeof(typename number<KV>::type) };

    __device__ void request(const ops_attention &a, const keys &all)
    {
        if (tile < end_tile) {
            if constexpr (RING)
                load_ring_part(a, all, tile, part, low, end, (float *)(stages + ask * BYTES));
            else
                load_page_part<KV>(a, all, tile, part, stages + ask * BYTES);
            tile += part + 1 == parts_each;
            part = part + 1 == parts_each ? 0 : part + 1;
        }
        copy_async_commit();
        ask = ask + 1 == STAGES ? 0 : ask + 1;
    }

    /* The next part, when all threads are here and it is. */
    __device__ const char *next(const ops_attention &a, const keys &all)
    {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        request(a, all);
        const char *here = stages + take * BYTES;
        take = take + 1 == STAGES ? 0 : take + 1;
        return here;
    }
};

/* sums [4][4] += x, 4 rows of `pitch` apart, times `lines` lines of 4 numbers. */
template <kv_format KV>
__device__ void multiply(const float *x, int pitch, const char *lines, int count, float (*sums)[4])
{
    const int line = OPS_TILE * (int)sizeof(typename number<KV>::type);
    int k = 0;
#pragma unroll 1
    for (; k + 4 <= count; k += 4) {
        float4 inputs[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            inputs[i] = *(const float4 *)&x[i * pitch + k];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 y = load_4<KV>(lines + (k + j) * line);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float input = j == 0   ? inputs[i].x
                              : j == 1 ? inputs[i].y
                              : j == 2 ? inputs[i].z
                                       : inputs[i].w;
                sums[i][0] = fmaf(input, y.x, sums[i][0]);
                sums[i][1] = fmaf(input, y.y, sums[i][1]);
                sums[i][2] = fmaf(input, y.z, sums[i][2]);
                sums[i][3] = fmaf(input, y.w, sums[i][3]);
            }
        }
    }
#pragma unroll 1
    for (; k < count; k++) {
        float4 y = load_4<KV>(lines + k * line);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[i][0] = fmaf(x[i * pitch + k], y.x, sums[i][0]);
            sums[i][1] = fmaf(x[i * pitch + k], y.y, sums[i][1]);
            sums[i][2] = fmaf(x[i * pitch + k], y.z, sums[i][2]);
            sums[i][3] = fmaf(x[i * pitch + k], y.w, sums[i][3]);
        }
    }
}

/* Which lanes of a tile a query sees. */
struct lanes {
    int low, high;
};

/* Softmax of one query of a block, in shared memory; the 16 threads that share the query agree, and
 * the first of them writes. */
struct query_state {
    float most, sum;             /* of the split */
    float query_most, query_sum; /* of the splits before it */
    fold with_tile;              /* of the last tile into the split */
    lanes seen;                  /* of that tile */
    int split_seen, query_seen;
};

__device__ void start_split(const ops_attention &a, query_state *state)
{
    state->most = no_maximum(a);
    state->sum = 0.0f;
    state->split_seen = 0;
}

/* multiply, where row i has nothing but lines [low, high) of the tile; these begin with `from`. */
template <kv_format KV>
__device__ void multiply_seen(const float *x, int pitch, const char *lines, int from,
                              const query_state *states, float (*sums)[4])
{
    lanes seen[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        seen[i] = states[i].seen;
    const int line = OPS_TILE * (int)sizeof(typename number<KV>::type);
#pragma unroll 1
    for (int k = 0; k < PART; k++) {
        float4 y = load_4<KV>(lines + k * line);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float input = x[i * pitch + k];
            if (from + k >= seen[i].low && from + k < seen[i].high) {
                sums[i][0] = fmaf(input, y.x, sums[i][0]);
                sums[i][1] = fmaf(input, y.y, sums[i][1]);
                sums[i][2] = fmaf(input, y.z, sums[i][2]);
                sums[i][3] = fmaf(input, y.w, sums[i][3]);
            }
        }
    }
}

/* weight and bias of distances: entry i is that of query row - key lane = i - 63. */
struct bias_table {
    float weights[2 * OPS_TILE], biases[2 * OPS_TILE];
};

__device__ void fill_biases(const ops_attention &a, int head, int64_t distance, bias_table *table)
{
    int i = (int)threadIdx.x;
    if (a.biases == nullptr || i >= 2 * OPS_TILE)
        return;
    distance += i - (OPS_TILE - 1);
    formula_position_bias(a.bias, &a.biases[head], (float)(distance > 0 ? distance : 0),
                          &table->weights[i], &table->biases[i]);
}

/* scores [4] of row `row`, q.k on entry, of lanes [lane, lane + 4): become weights, folded into the
 * split where the query sees any. */
__device__ void weigh_row(const ops_attention &a, float *scores, const bias_table *table, int row,
                          int lane, lanes seen, query_state *state)
{
    float most = no_maximum(a), sum;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float score = scores[j] * a.scale;
        if (a.biases != nullptr) {
            int i = row - (lane + j) + OPS_TILE - 1;
            score = score * table->weights[i] + table->biases[i];
        }
        scores[j] = lane + j >= seen.low && lane + j < seen.high ? score : -INFINITY;
        most = a.activation == SOFTMAX_ACT_RELU ? most : greater(most, scores[j]);
    }
#pragma unroll
    for (int other = 1; other < 16; other *= 2)
        most = greater(most, __shfl_xor_sync(FULL_WARP, most, other));
#pragma unroll
    for (int j = 0; j < 4; j++)
        scores[j] = weigh(a, scores[j], most);
    sum = (scores[0] + scores[1]) + (scores[2] + scores[3]);
#pragma unroll
    for (int other = 1; other < 16; other *= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, other);
    if (lane != 0)
        return;
    state->seen = seen;
    if (seen.low < seen.high) {
        float both = state->most;
        state->with_tile = fold_maxima(&both, most);
        state->most = both;
        state->sum = state->with_tile(state->sum, sum);
        state->split_seen = 1;
    }
}

/* Folds a split of one query into what lies in h so far; `last`: and divides it. */
template <int COLUMN_PARTS>
__device__ void fold_split(const ops_attention &a, float *h, int column, bool last,
                           query_state *state, float (*values)[4][4], int i)
{
    float query_most = state->query_most, query_sum = state->query_sum;
    bool seen = state->split_seen != 0, first = state->query_seen == 0;
    if (seen) {
        fold fold = fold_maxima(&query_most, state->most);
        query_sum = fold(query_sum, state->sum);
        float divisor = last && a.activation != SOFTMAX_ACT_RELU ? query_sum : 1.0f;
#pragma unroll
        for (int c = 0; c < COLUMN_PARTS; c++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int at = c * OPS_TILE + column + j;
                if (h != nullptr && at < a.value_dim)
                    h[at] = fold(first ? 0.0f : h[at], values[c][i][j]) / divisor;
            }
    }
#pragma unroll
    for (int c = 0; c < COLUMN_PARTS; c++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            values[c][i][j] = 0.0f;
    __syncwarp();
    if (seen && column == 0) {
        state->query_most = query_most;
        state->query_sum = query_sum;
        state->query_seen = 1;
        start_split(a, state);
    }
    __syncwarp();
}

/* Floats between two queries in shared memory. */
__host__ __device__ inline int query_pitch(int key_dim)
{
    return (key_dim + 3) / 4 * 4 + 4;
}

template <kv_format KV> size_t group_bytes(int key_dim)
{
    return (size_t)STAGES * PART * OPS_TILE * sizeof(typename number<KV>::type) +
           sizeof(float) * QUERIES * (size_t)(PITCH + query_pitch(key_dim)) + sizeof(bias_table) +
           sizeof(query_state) * QUERIES;
}

/* Up to 64 queries of one head. Grid: [at least the number of groups, H]. */
template <kv_format KV, bool RING, int COLUMN_PARTS>
__global__ void __launch_bounds__(THREADS, RING || COLUMN_PARTS > 1 ? 1 : 2)
    group_kernel(const ops_attention a, const device_batch batch)
{
    SHARED_MEMORY(char, memory);
    query_group group;
    if (!find_group(batch, (int)(gridDim.x - 1 - blockIdx.x), &group)) /* the last have most keys */
        return;
    int tid = (int)threadIdx.x, lane = tid % 16 * 4, row = tid / 16 * 4, head = (int)blockIdx.y;
    keys all = keys_of(a, group.span, head / (a.num_heads / a.num_kv_heads));
    int64_t last = group.first + group.n - 1;
    int key_parts = (a.key_dim + PART - 1) / PART, pitch = query_pitch(a.key_dim);
    int length = split_tiles(a, group.first);
    part_stream<KV, RING> stream;
    stream.stages = memory;
    stream.low = first_seen(a, group.first);
    stream.end = last + 1;
    stream.tile = (int)(stream.low / OPS_TILE);
    stream.end_tile = (int)(last / OPS_TILE) + 1;
    stream.part = stream.ask = stream.take = 0;
    stream.parts_each = key_parts + 2 * COLUMN_PARTS;
    float *weights = (float *)(memory + STAGES * part_stream<KV, RING>::BYTES); /* [64][PITCH] */
    float *q = weights + QUERIES * PITCH;                                       /* [64][pitch] */
    bias_table *table = (bias_table *)(q + QUERIES * pitch);
    query_state *states = (query_state *)(table + 1);

    for (int e = tid; e < QUERIES * a.key_dim; e += THREADS) {
        int i = e / a.key_dim, f = e % a.key_dim;
        q[i * pitch + f] =
            i < group.n ? a.q.data[(group.row + i) * a.q.stride + (int64_t)head * a.key_dim + f]
                        : 0.0f;
    }
    float values[COLUMN_PARTS][4][4] = {};
    if (tid < QUERIES) {
        start_split(a, &states[tid]);
        states[tid].query_most = no_maximum(a);
        states[tid].query_sum = 0.0f;
        states[tid].query_seen = 0;
    }
    int end_tile = stream.end_tile, tile = stream.tile;
    for (int i = 0; i < STAGES - 1; i++)
        stream.request(a, all);
    for (; tile < end_tile; tile++) {
        int64_t base = (int64_t)tile * OPS_TILE;
        bool whole = base + OPS_TILE <= group.first + 1 && first_seen(a, last) <= base;
        float scores[4][4] = {};
        fill_biases(a, head, group.first - base, table);
        for (int part = 0; part < key_parts; part++)
            multiply<KV>(q + row * pitch + part * PART, pitch,
                         stream.next(a, all) + lane * (int)sizeof(typename number<KV>::type),
                         (int)smaller(a.key_dim - part * PART, PART), scores);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t position = smaller(group.first + row + i, last);
            int64_t low = first_seen(a, position) - base;
            lanes seen = {low < 0 ? 0 : (int)smaller(low, OPS_TILE),
                          (int)smaller(position - base + 1, OPS_TILE)};
            weigh_row(a, scores[i], table, row + i, lane, seen, &states[row + i]);
            *(float4 *)&weights[(row + i) * PITCH + lane] =
                make_float4(scores[i][0], scores[i][1], scores[i][2], scores[i][3]);
        }
#pragma unroll
        for (int c = 0; c < COLUMN_PARTS; c++) {
            float sums[4][4] = {};
            for (int from = 0; from < OPS_TILE; from += PART) {
                const char *part =
                    stream.next(a, all) + lane * (int)sizeof(typename number<KV>::type);
                const float *x = weights + row * PITCH + from;
                if (whole)
                    multiply<KV>(x, PITCH, part, PART, sums);
                else
                    multiply_seen<KV>(x, PITCH, part, from, states + row, sums);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const query_state &state = states[row + i];
                if (state.seen.low < state.seen.high)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        values[c][i][j] = state.with_tile(values[c][i][j], sums[i][j]);
            }
        }
        if ((tile + 1) % length != 0 && tile + 1 < end_tile)
            continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *h = row + i < group.n ? a.h.data + (group.row + row + i) * a.h.stride +
                                               (int64_t)head * a.value_dim
                                         : nullptr;
            fold_split<COLUMN_PARTS>(a, h, lane, tile + 1 == end_tile, &states[row + i], values, i);
        }
    }
    copy_async_wait<0>();
}

/* ---- launches ---- */

template <kv_format KV, bool RING, int HEADS>
void launch_queries(struct backend *backend, const ops_attention &a, striping &striping)
{
    int stride = (int)ops_value_stride(a.value_dim);
    size_t bytes = query_bytes<HEADS>(a.key_dim, stride);
    int group = a.num_heads / a.num_kv_heads;
    if constexpr (HEADS > 1)
        if (group <= HEADS / 2 || bytes > MOST_SHARED)
            return launch_queries<KV, RING, HEADS / 2>(backend, a, striping);
    int blocks = striping.numbers * a.num_kv_heads * ((group + HEADS - 1) / HEADS);
    int wanted = BLOCKS_EACH * backend->multiprocessors;
    striping.stripes = blocks < wanted ? wanted / blocks : 1;
    striping.stripes = striping.stripes < striping.splits ? striping.stripes : striping.splits;
    if (striping.stripes > 1) {
        size_t floats = (size_t)striping.numbers * (size_t)a.num_heads * (size_t)striping.splits *
                        (size_t)part_floats(a.value_dim);
        striping.parts = (float *)device_scratch(backend, floats * sizeof(float));
        if (striping.parts == nullptr)
            return;
    }
    launch(backend, query_kernel<KV, RING, HEADS>,
           dim3((unsigned)striping.numbers, (unsigned)(blocks / striping.numbers),
                (unsigned)striping.stripes),
           WARPS * 32, bytes, a, backend->batch, striping);
    if (striping.stripes > 1)
        launch(backend, fold_kernel, dim3((unsigned)striping.numbers, (unsigned)a.num_heads),
               WARPS * 32, 0, a, backend->batch, striping);
}

/* The most splits of any position in the step. */
int most_splits(const ops_attention &a, int64_t end)
{
    int64_t tiles = (end + OPS_TILE - 1) / OPS_TILE, in_window = a.window_size / OPS_TILE + 2;
    if (a.window != WINDOW_FULL && tiles > in_window)
        tiles = in_window;
    int64_t splits = (tiles + SPLIT_TILES - 1) / SPLIT_TILES + (a.window != WINDOW_FULL);
    return splits < MOST_SPLITS ? (int)splits : (int)MOST_SPLITS;
}

template <kv_format KV, bool RING>
void launch_groups(struct backend *backend, const ops_attention &a)
{
    const device_batch &batch = backend->batch;
    int most_spans = batch.num_rows / FEW_TOKENS;
    most_spans = most_spans < batch.num_spans ? most_spans : batch.num_spans;
    dim3 grid((unsigned)(batch.num_rows / OPS_TILE + 2 * most_spans), (unsigned)a.num_heads);
    size_t bytes = group_bytes<KV>(a.key_dim);
    if (a.value_dim <= OPS_TILE)
        launch(backend, group_kernel<KV, RING, 1>, grid, THREADS, bytes, a, batch);
    else if (a.value_dim <= 2 * OPS_TILE)
        launch(backend, group_kernel<KV, RING, 2>, grid, THREADS, bytes, a, batch);
    else
        launch(backend, group_kernel<KV, RING, MOST_COLUMNS / OPS_TILE>, grid, THREADS, bytes, a,
               batch);
}

template <kv_format KV, bool RING> void run(struct backend *backend, const ops_attention &a)
{
    const device_batch &batch = backend->batch;
    bool few = batch.max_span_rows < FEW_TOKENS;
    bool groups = !few && a.key_dim <= MOST_KEY_DIM && a.value_dim <= MOST_COLUMNS;
    dim3 rows((unsigned)(batch.num_rows + 31) / 32, (unsigned)a.num_kv_heads);
    if (!RING && batch.max_span_rows > 1)
        launch(backend, append_kernel<KV>, rows, THREADS, 0, a, batch);
    if (groups)
        launch_groups<KV, RING>(backend, a);
    if (!groups || batch.num_spans > 1) {
        striping striping = {};
        striping.by_row = !few && !groups;
        striping.few = few ? batch.max_span_rows : FEW_TOKENS - 1;
        striping.numbers = striping.by_row ? batch.num_rows : batch.num_spans * striping.few;
        striping.splits = most_splits(a, batch.max_end);
        launch_queries<KV, RING, 8>(backend, a, striping);
    }
    if (RING && batch.max_span_rows > 1) /* the step's queries need what this overwrites */
        launch(backend, append_kernel<KV>, rows, THREADS, 0, a, batch);
}

} // namespace

extern "C" void cuda_attention(struct backend *backend, const struct ops_attention *a)
{
    if (a->window != WINDOW_FULL)
        run<KV_F32, true>(backend, *a);
    else if (a->kv == KV_F32)
        run<KV_F32, false>(backend, *a);
    else if (a->kv == KV_F16)
        run<KV_F16, false>(backend, *a);
    else
        run<KV_BF16, false>(backend, *a);
}
