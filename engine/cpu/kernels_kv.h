/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of 64 keys: appends to K and V (ops.h has their layout), and multiplies them with queries
 * and with the weights of values.
 *
 * Both are k-major panels, so scores and the weighted sum of values are matrix products: one
 * running sum per output, over the rows of a panel in order. Numbers of two bytes become f32 in
 * registers for one row of x (decoding), and in scratch, once for all rows, for several.
 * kernels_attention.h says what that costs. AMX multiplies them otherwise: kernels_tiles_kv.h. */
#ifndef ENGINE_CPU_KERNELS_KV_H
#define ENGINE_CPU_KERNELS_KV_H

#include "engine/cpu/ahead.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels_tile.h"

#include <string.h>

/* Bytes from what a single row of x reads of a tile to what it asks for: `turned` where the others
 * reach past the tile's end, and go on in the next one. */
struct reach {
    int64_t ahead, turned;
};

/* A matrix of a tile: row r begins at data + r * stride (in numbers). If the other members are
 * zero, nothing is read after it, and all rows of x share it. */
struct panel {
    const char *data;
    int64_t stride;
    int64_t next; /* bytes from a place in this tile to the same one in the tile read next */
    int64_t left; /* bytes from data to the tile's end */
    struct reach near, far; /* far: of the first of two steps */
    int64_t apart;          /* bytes to the matrix of the next row of x */
};

struct head_tile {
    char *k, *v; /* [key_dim][OPS_TILE]; [OPS_TILE][value stride], or the tile's end */
};

static struct head_tile tile_at(const struct ops_attention *a, char *k)
{
    struct head_tile tile = {k, k + (size_t)a->key_dim * OPS_TILE * ops_kv_bytes(a->kv)};
    return tile;
}

static struct head_tile tile_of(const struct ops_attention *a, char *page, int kv_head)
{
    size_t bytes = ops_tile_bytes(a->key_dim, ops_stored_values(a), a->kv);
    return tile_at(a, page + a->offset + (size_t)kv_head * bytes);
}

/* ---- appending ---- */

/* Converts [n] f32 to [n] numbers of the format. */
INLINE void narrow(const enum kv_format kv, const float *from, char *to, int64_t n)
{
    uint16_t *out = (uint16_t *)(void *)to;
    if (kv == KV_F32)
        memcpy(to, from, (size_t)n * sizeof(float));
    else if (kv == KV_F16)
        for (int64_t j = 0; j < n; j++)
            out[j] = f32_to_f16(from[j]);
    else
        for (int64_t j = 0; j < n; j++)
            out[j] = f32_to_bf16(from[j]);
}

/* Puts n <= QUERY_GROUP keys and values, those of rows [row, row + n), into lanes [lane, lane + n).
 */
INLINE void put_keys_as(const enum kv_format kv, const struct ops_attention *a, struct head_tile to,
                        int lane, int row, int n, int kv_head)
{
    enum { PART = 64 };
    const size_t bytes = ops_kv_bytes(kv);
    const size_t stride = ops_value_stride(a->value_dim) * bytes;
    const float *k = a->k.data + row * a->k.stride + (int64_t)kv_head * a->key_dim;
    char numbers[QUERY_GROUP][PART * sizeof(float)];
    for (int first = 0; first < a->key_dim; first += PART) {
        int count = a->key_dim - first < PART ? a->key_dim - first : PART;
        for (int i = 0; i < n; i++)
            narrow(kv, k + i * a->k.stride + first, numbers[i], count);
        for (int j = 0; j < count; j++) {
            char *line = to.k + ((size_t)(first + j) * OPS_TILE + (size_t)lane) * bytes;
            for (int i = 0; i < n; i++)
                memcpy(line + (size_t)i * bytes, numbers[i] + (size_t)j * bytes, bytes);
        }
    }
    for (int i = 0; i < n && !a->values_in_keys; i++) {
        const float *v = a->v.data + (row + i) * a->v.stride + (int64_t)kv_head * a->value_dim;
        char *values = to.v + (size_t)(lane + i) * stride;
        narrow(kv, v, values, a->value_dim);
        memset(values + (size_t)a->value_dim * bytes, 0, stride - (size_t)a->value_dim * bytes);
    }
}

static void put_keys(const struct ops_attention *a, struct head_tile to, int lane, int row, int n,
                     int kv_head)
{
    if (a->kv == KV_F16)
        put_keys_as(KV_F16, a, to, lane, row, n, kv_head);
    else if (a->kv == KV_BF16)
        put_keys_as(KV_BF16, a, to, lane, row, n, kv_head);
    else
        put_keys_as(KV_F32, a, to, lane, row, n, kv_head);
}

static void kernel_append(const struct ops_attention *a, const struct batch_span *span, int kv_head)
{
    for (int t = 0; t < span->num_rows;) {
        int64_t position = span->position + t;
        int n = QUERY_GROUP - (int)(position % QUERY_GROUP);
        n = n < span->num_rows - t ? n : span->num_rows - t;
        struct head_tile to = tile_of(a, span->pages[position / OPS_TILE], kv_head);
        put_keys(a, to, (int)(position % OPS_TILE), span->first_row + t, n, kv_head);
        t += n;
    }
}

/* ---- values that are in keys ---- */

/* V of a tile's first n keys, [n][value stride], from its K. */
INLINE void turn_values_as(const size_t bytes, const char *k, int64_t n, int value_dim, char *v)
{
    enum { WIDTH = 16 };
    const size_t stride = ops_value_stride(value_dim) * bytes, line = OPS_TILE * bytes;
    for (int first = 0; first < value_dim; first += WIDTH) {
        const int count = value_dim - first < WIDTH ? value_dim - first : WIDTH;
        for (int64_t s = 0; s < n; s++) {
            const char *from = k + (size_t)first * line + (size_t)s * bytes;
            char *to = v + (size_t)s * stride + (size_t)first * bytes;
            for (int j = 0; j < count; j++)
                memcpy(to + (size_t)j * bytes, from + (size_t)j * line, bytes);
            memset(to + (size_t)count * bytes, 0, (size_t)(WIDTH - count) * bytes);
        }
    }
}

static void turn_values(const struct ops_attention *a, const char *k, int64_t n, char *v)
{
    if (a->kv == KV_F32)
        turn_values_as(sizeof(float), k, n, a->value_dim, v);
    else
        turn_values_as(sizeof(uint16_t), k, n, a->value_dim, v);
}

/* ---- products with a tile ---- */

INLINE vec load_numbers(const enum kv_format kv, const char *at)
{
    if (kv == KV_F32)
        return vec_load((const float *)(const void *)at);
    const uint16_t *halves = (const uint16_t *)(const void *)at;
    return kv == KV_F16 ? vec_load_f16(halves) : vec_load_bf16(halves);
}

enum {
    ROW_VECTORS = LANES < 16 ? 8 : 4
}; /* vectors of a tile's row that one row of x multiplies at a time */

/* sum [nv] += x * the nv vectors at `at`. */
INLINE void add_columns(const enum kv_format kv, const int nv, float x, const char *at, vec *sum)
{
#pragma GCC unroll 8
    for (int i = 0; i < nv; i++)
        sum[i] = vec_fma(vec_set(x), load_numbers(kv, at + i * LANES * (int64_t)ops_kv_bytes(kv)),
                         sum[i]);
}

/* How many of the n rows of w, of `bytes` each, prefetch within the tile. */
INLINE int64_t rows_within(struct panel w, struct reach reach, int64_t bytes, int64_t n)
{
    int64_t rows = (w.left - reach.ahead) / bytes;
    return rows < 0 ? 0 : rows < n ? rows : n;
}

/* out [m, nv * LANES] (+)= x [m, n] * w [n, nv * LANES], with a w for each row of x. Prefetches
 * what comes next. */
INLINE void row_columns(const enum kv_format kv, const int m, const int nv, const float *x,
                        int64_t x_stride, int64_t n, struct panel w, float *out, int64_t out_stride,
                        bool add)
{
    const int64_t bytes = (int64_t)ops_kv_bytes(kv), row = w.stride * bytes;
    vec sum[TILES_TOGETHER][ROW_VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++)
            sum[r][i] = add ? vec_load(out + r * out_stride + i * LANES) : vec_set(0.0f);
    const int64_t ends[] = {rows_within(w, w.far, row, n), rows_within(w, w.near, row, n), n};
    for (int64_t part = 0, k = 0; part < 3; part++) {
        const int64_t near = part < 2 ? w.near.ahead : w.near.turned;
        const int64_t far = part < 1 ? w.far.ahead : w.far.turned;
        for (int64_t at = k * row; k < ends[part]; k++, at += row) {
#pragma GCC unroll 6
            for (int r = 0; r < m; r++) {
                const char *tile = w.data + r * w.apart;
                add_columns(kv, nv, x[r * x_stride + k], tile + at, sum[r]);
#pragma GCC unroll 4
                for (int line = 0; line < nv * LANES * bytes; line += LINE)
                    ask_once(tile + at + near + line, far - near);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++)
            vec_store(out + r * out_stride + i * LANES, sum[r][i]);
}

/* The same for any multiple of 16 columns. Each output is one running sum over n, in order, here
 * and for rows that share w. */
INLINE void row_panels(const enum kv_format kv, const int m, const float *x, int64_t x_stride,
                       int64_t n, struct panel w, int64_t columns, float *out, int64_t out_stride,
                       bool add)
{
    int64_t c = 0;
#define COLUMNS(vectors)                                                          \
    for (; c + (vectors)*LANES <= columns; c += (vectors)*LANES) {                \
        row_columns(kv, m, vectors, x, x_stride, n, w, out + c, out_stride, add); \
        w.data += (vectors)*LANES * (int64_t)ops_kv_bytes(kv);                    \
    }
    if (ROW_VECTORS == 8)
        COLUMNS(ROW_VECTORS)
    COLUMNS(4)
    COLUMNS(2)
    COLUMNS(1)
#undef COLUMNS
}

/* The same for 1 to TILES_TOGETHER rows. */
static void apart_product(enum kv_format kv, int m, const float *x, int64_t x_stride, int64_t n,
                          struct panel w, int64_t columns, float *out, int64_t out_stride, bool add)
{
#define FORMAT_CASE(format)                                                               \
    case format:                                                                          \
        FOR_ROWS(m, 1, TILES_TOGETHER,                                                    \
                 row_panels(format, M, x, x_stride, n, w, columns, out, out_stride, add)) \
        break;
    switch (kv) {
        FORMAT_CASE(KV_F32)
        FORMAT_CASE(KV_F16)
        FORMAT_CASE(KV_BF16)
    default:
        break;
    }
#undef FORMAT_CASE
}

static void row_product(enum kv_format kv, const float *x, int64_t n, struct panel w,
                        int64_t columns, float *out, bool add)
{
    apart_product(kv, 1, x, 0, n, w, columns, out, 0, add);
}

/* wide [n, columns] = w, at most OPS_TILE of each. Prefetches as much of the next tile. */
INLINE void widen_as(const enum kv_format kv, struct panel w, int64_t n, int64_t columns,
                     float (*wide)[OPS_TILE])
{
    const int64_t bytes = (int64_t)ops_kv_bytes(kv);
    for (int64_t k = 0; k < n; k++) {
        const char *at = w.data + k * w.stride * bytes;
        for (int64_t j = 0; j < columns; j += LANES)
            vec_store(&wide[k][j], load_numbers(kv, at + j * bytes));
        for (int64_t line = 0; line < columns * bytes; line += 64)
            __builtin_prefetch(at + w.next + line, 0, 2);
    }
}

/* out [rows, columns] (+)= x [rows, n] * w [n, columns] for rows that share w. w becomes f32 once
 * for all of them. */
static void rows_product(enum kv_format kv, int rows, const float *x, int64_t x_stride, int64_t n,
                         struct panel w, int64_t columns, float *out, int64_t out_stride, bool add)
{
    if (kv == KV_F32) {
        for (int64_t at = 0; at < n * w.stride * (int64_t)sizeof(float); at += 64)
            __builtin_prefetch(w.data + w.next + at, 0, 2);
        tile_matrix(rows, x, x_stride, n, (const float *)(const void *)w.data, w.stride, columns,
                    out, out_stride, add);
        return;
    }
    _Alignas(64) float wide[OPS_TILE][OPS_TILE];
    const char *data = w.data;
    for (int64_t first = 0; first < n; first += OPS_TILE)
        for (int64_t c = 0; c < columns; c += OPS_TILE) {
            int64_t count = n - first < OPS_TILE ? n - first : OPS_TILE;
            int64_t width = columns - c < OPS_TILE ? columns - c : OPS_TILE;
            w.data = data + (first * w.stride + c) * (int64_t)ops_kv_bytes(kv);
            if (kv == KV_F16)
                widen_as(KV_F16, w, count, width, wide);
            else
                widen_as(KV_BF16, w, count, width, wide);
            tile_matrix(rows, x + first, x_stride, count, wide[0], OPS_TILE, width, out + c,
                        out_stride, add || first > 0);
        }
}

#endif
