/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a text, for attention.cu and its parts: where they lie (pages, rings, rows of the
 * step), their formats, how a query's weights are computed and its parts folded, and how a step's
 * keys are appended. */
#ifndef ENGINE_CUDA_ATTENTION_KEYS_CUH
#define ENGINE_CUDA_ATTENTION_KEYS_CUH

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
    MOST_COLUMNS = 256, /* of values, for such blocks */
    RING_DEEP = 16,     /* pairs of numbers of a ring that a thread waits for at a time */
    FOLD_DEEP = 16,     /* numbers of parts likewise */
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

/* The number of tiles in a split, for a query at this position. A window touches at most two splits
 * more than it fills. */
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

/* IN_KEYS, here and below: values are in keys, and the tiles of pages have none. */
template <bool IN_KEYS>
__device__ keys keys_of(const ops_attention &a, const device_span &span, int kv_head)
{
    keys all;
    all.tile_bytes = ops_tile_bytes(a.key_dim, IN_KEYS ? 0 : a.value_dim, a.kv);
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

/* A key in a ring, or still in the rows of the step. */
struct ring_key {
    const float *k; /* feature f at k[f * stride] */
    int64_t stride;
    const float *v; /* [value_dim] */
};

/* `slot`: s % W. */
__device__ ring_key find_key(const ops_attention &a, const keys &all, int64_t s, int slot)
{
    if (s >= all.position)
        return {all.k + (s - all.position) * a.k.stride, 1,
                all.v + (s - all.position) * a.v.stride};
    int lane = slot % OPS_TILE;
    const float *tile = (const float *)(all.ring + (size_t)(slot / OPS_TILE) * all.tile_bytes);
    return {tile + lane, OPS_TILE,
            tile + (int64_t)a.key_dim * OPS_TILE + lane * (int64_t)ops_value_stride(a.value_dim)};
}

__device__ ring_key find_key(const ops_attention &a, const keys &all, int64_t s)
{
    return find_key(a, all, s, (int)(s % a.window_size));
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

/* One number. */
template <kv_format KV> __device__ float load_1(const char *at)
{
    if constexpr (KV == KV_F32)
        return *(const float *)at;
    else
        return widen<KV>(*(const uint16_t *)at);
}

/* Two, or four, adjacent numbers. */
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

/* q.k, scaled and capped. */
__device__ float scale_score(const ops_attention &a, float dot)
{
    float score = dot * a.scale;
    return a.softcap == 0.0f ? score : formula_softcap(score, a.softcap);
}

/* The score of a key at this distance. */
__device__ float finish_score(const ops_attention &a, const formula_bias *bias, float dot,
                              int64_t distance)
{
    float score = scale_score(a, dot);
    if (bias == nullptr)
        return score;
    float weight, add;
    formula_position_bias(a.bias, bias, (float)distance, &weight, &add);
    return score * weight + add;
}

/* The weight of a key, when `most` is the greatest score of its tile. A key that is not seen has
 * the score -infinity. */
__device__ float weigh(const ops_attention &a, float score, float most)
{
    return a.activation != SOFTMAX_ACT_SOFTMAX ? formula_relu_weight(a.activation, score)
                                               : formula_exp(score - most);
}

/* The least finite number, since the greatest score may be -infinity. */
__device__ float no_maximum(const ops_attention &a)
{
    return a.activation != SOFTMAX_ACT_SOFTMAX ? 0.0f : -FLT_MAX;
}

/* What the values of a head are divided by, of the sum and the greatest score. */
__device__ float value_divisor(const ops_attention &a, int head, float sum, float most)
{
    if (a.activation != SOFTMAX_ACT_SOFTMAX)
        return 1.0f;
    return a.sinks == nullptr ? sum : formula_with_sink(sum, a.sinks[head], most);
}

__device__ float greater(float a, float b)
{
    return b > a ? b : a;
}

/* The factors to fold a part with maximum m into a sum with maximum `most`, which it may raise. */
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

/* Puts element e of a key (its features, then its values and their padding) into lane `lane`. SAME:
 * other blocks may write the same number too. */
template <kv_format KV, bool SAME>
__device__ void put_element(const ops_attention &a, char *tile, int lane, const float *k,
                            const float *v, int e)
{
    typedef typename number<KV>::type type;
    int stride = (int)ops_value_stride(a.value_dim), column = e - a.key_dim;
    type *to = (type *)tile +
               (column < 0 ? (int64_t)e * OPS_TILE + lane
                           : ((int64_t)a.key_dim * OPS_TILE) + (int64_t)lane * stride + column);
    type value = column < 0             ? narrow<KV>(k[e])
                 : column < a.value_dim ? narrow<KV>(v[column])
                                        : (type)0;
    if (SAME)
        store_same(to, value);
    else
        *to = value;
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

/* Appends keys and values of 32 rows of spans with several tokens. Grid: [rows / 32, kv heads].
 * Lanes are rows for K, whose neighbouring rows are adjacent in memory, and columns for V. */
template <kv_format KV, bool IN_KEYS>
__global__ void __launch_bounds__(THREADS)
    append_kernel(const ops_attention a, const device_batch batch)
{
    grid_wait();
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, kv_head = (int)blockIdx.y;
    int stride = IN_KEYS ? 0 : (int)ops_value_stride(a.value_dim);
    for (int pass = 0; pass < 2; pass++)
        for (int i = pass == 0 ? 0 : warp; i < 32; i += pass == 0 ? 32 : THREADS / 32) {
            int row = (int)blockIdx.x * 32 + (pass == 0 ? lane : i);
            if (row >= batch.num_rows)
                continue;
            const device_span &span = batch.spans[batch.row_span[row]];
            int64_t s = span.position + row - span.first_row;
            keys all = keys_of<IN_KEYS>(a, span, kv_head);
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
                put_element<KV, false>(a, tile, place, k, v, e);
        }
}

} // namespace

#endif
