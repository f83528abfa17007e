/* SPDX-License-Identifier: Apache-2.0 */
/* K and V in f16 or bf16 (kernels_kv.h) as pairs of bf16: in the order of tiles, and multiplied
 * with one row of x, which waits for memory and needs no tile.
 *
 * x is the sum of `parts` numbers in bf16 (kernels_tiles.h), the last of them rounded unless there
 * are three. A number in f16 is two of bf16. Per output, over blocks of 32 rows, and in a block
 * from the lowest part of w to the highest, for each of them from the lowest part of x: acc += a
 * tile's sum of 16 pairs. Rows past the last count as zero. */
#ifndef ENGINE_CPU_KERNELS_TILES_KV_H
#define ENGINE_CPU_KERNELS_TILES_KV_H

#include "engine/cpu/kernels_attention.h"
#include "engine/cpu/kernels_tiles.h"

enum { KV_BLOCK = 32 };

/* Whether tiles multiply keys and values: not where six products would take the place of one. */
static inline bool tiles_attend(enum kv_format kv, int parts)
{
    return kv == KV_BF16 || (kv == KV_F16 && parts < MOST_PARTS);
}

/* The numbers in bf16 that one of a format is. */
INLINE int kv_parts(const enum kv_format kv)
{
    return weight_parts(kv == KV_F16 ? WEIGHTS_F16 : WEIGHTS_BF16);
}

/* Makes a call with KV, a format of two bytes, and PARTS as constants. */
#define KV_PARTS_CASE(format, count, call)    \
    if (kv == (format) && parts == (count)) { \
        const enum kv_format KV = (format);   \
        const int PARTS = (count);            \
        call;                                 \
    }
#define FOR_KV_PARTS(call)           \
    assert(tiles_attend(kv, parts)); \
    KV_PARTS_CASE(KV_F16, 1, call)   \
    KV_PARTS_CASE(KV_F16, 2, call)   \
    KV_PARTS_CASE(KV_BF16, 1, call)  \
    KV_PARTS_CASE(KV_BF16, 2, call)  \
    KV_PARTS_CASE(KV_BF16, MOST_PARTS, call)

/* Of x [rows, n], as part_rows has it, out [rows, ceil(n / 32) * 16 * parts]. */
static void split_rows(int parts, const float *x, int64_t x_stride, int rows, int64_t n, float *out)
{
    const int64_t words = (n + KV_BLOCK - 1) / KV_BLOCK * TILE_PAIRS;
    if (parts == 1)
        part_rows(1, x, x_stride, rows, words, 0, n, out);
    else if (parts == 2)
        part_rows(2, x, x_stride, rows, words * 2, 0, n, out);
    else
        part_rows(MOST_PARTS, x, x_stride, rows, words * MOST_PARTS, 0, n, out);
}

/* ---- as tiles ---- */

/* pairs [kv_parts]: 16 numbers each of two rows, the highest part first. */
INLINE void pair_numbers(const enum kv_format kv, const char *first, const char *second,
                         __m512i pairs[MOST_WEIGHT_PARTS])
{
    if (kv == KV_F16) {
        pair_f16((const uint16_t *)(const void *)first, (const uint16_t *)(const void *)second,
                 pairs);
    } else {
        const __m256i one = _mm256_loadu_si256((const __m256i *)(const void *)first);
        const __m256i two = _mm256_loadu_si256((const __m256i *)(const void *)second);
        pairs[0] = _mm512_or_si512(_mm512_cvtepu16_epi32(one),
                                   _mm512_slli_epi32(_mm512_cvtepu16_epi32(two), 16));
    }
}

/* A row that is not there. */
static const char no_row[OPS_TILE * sizeof(uint16_t)];

/* out [kv_parts], the rest first, as they are added up: at most 32 of n rows of w and 64 of their
 * columns; what is past the last is zero. Prefetches as much of the next tile. */
INLINE void pair_block_kv(const enum kv_format kv, struct panel w, int64_t n, int64_t columns,
                          pair_tiles out[MOST_WEIGHT_PARTS])
{
    enum { WIDTH = PANEL_PAIR * PANEL };
    const int64_t row = w.stride * 2, bytes = (columns < WIDTH ? columns : WIDTH) * 2;
    for (int pair = 0; pair < TILE_PAIRS; pair++, w.data += 2 * row) {
        const char *first = 2 * pair < n ? w.data : no_row;
        const char *second = 2 * pair + 1 < n ? w.data + row : no_row;
        for (int64_t c = 0; c < WIDTH; c += 16) {
            __m512i pairs[MOST_WEIGHT_PARTS] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
            if (c < columns)
                pair_numbers(kv, first + c * 2, second + c * 2, pairs);
            for (int i = 0; i < kv_parts(kv); i++)
                _mm512_store_si512(out[kv_parts(kv) - 1 - i][c / PANEL][c % PANEL / 16][pair],
                                   pairs[i]);
        }
        for (int64_t at = 0; at < bytes; at += LINE) {
            __builtin_prefetch(w.data + w.next + at, 0, 2);
            __builtin_prefetch(w.data + row + w.next + at, 0, 2);
        }
    }
}

/* ---- one row ---- */

/* Asks for what follows `at`, of a row that `left` bytes to the tile's end follow. */
INLINE void ask_row(struct panel w, const char *at, int64_t left, int64_t bytes)
{
    const int64_t near = left >= w.near.ahead ? w.near.ahead : w.near.turned;
    const int64_t far = left >= w.far.ahead ? w.far.ahead : w.far.turned;
    for (int64_t line = 0; line < bytes; line += LINE)
        ask_once(at + near + line, far - near);
}

/* out [nv * 16] (+)= a block of x * n rows of w. */
INLINE void block_columns(const enum kv_format kv, const int parts, const int nv,
                          const part_numbers x, int64_t n, struct panel w, float *out, bool add)
{
    enum { SUMS = MOST_WEIGHT_PARTS * MOST_PARTS };
    const int w_parts = kv_parts(kv);
    const int64_t row = w.stride * 2;
    vec even[SUMS][4], odd[SUMS][4];
#pragma GCC unroll 24
    for (int i = 0; i < w_parts * parts * nv; i++)
        even[i / nv][i % nv] = odd[i / nv][i % nv] = vec_set(0.0f);
    for (int pair = 0; pair < TILE_PAIRS; pair++, w.data += 2 * row, w.left -= 2 * row) {
        const char *first = 2 * pair < n ? w.data : no_row;
        const char *second = 2 * pair + 1 < n ? w.data + row : no_row;
        ask_row(w, w.data, w.left - row, nv * 32);
        ask_row(w, w.data + row, w.left - 2 * row, nv * 32);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            __m512i pairs[MOST_WEIGHT_PARTS];
            pair_numbers(kv, first + v * 32, second + v * 32, pairs);
#pragma GCC unroll 2
            for (int w_part = 0; w_part < w_parts; w_part++) {
                const vec low = (vec)_mm512_slli_epi32(pairs[w_part], 16);
                const vec high =
                    (vec)_mm512_and_si512(pairs[w_part], _mm512_set1_epi32((int)0xffff0000));
#pragma GCC unroll 3
                for (int part = 0; part < parts; part++) {
                    const int i = w_part * parts + part;
                    even[i][v] = vec_fma(vec_set(x[part][0][pair]), low, even[i][v]);
                    odd[i][v] = vec_fma(vec_set(x[part][1][pair]), high, odd[i][v]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        vec sum = add ? vec_load(out + v * LANES) : vec_set(0.0f);
#pragma GCC unroll 6
        for (int i = w_parts * parts - 1; i >= 0; i--)
            sum += even[i][v] + odd[i][v];
        vec_store(out + v * LANES, sum);
    }
}

/* Like row_panels (kernels_kv.h), in the order of tiles. */
INLINE void row_pairs_as(const enum kv_format kv, const int parts, int m, const float *x,
                         int64_t x_stride, int64_t n, struct panel w, int64_t columns, float *out,
                         int64_t out_stride, bool add)
{
    const int wide = kv_parts(kv) * parts <= MOST_PARTS ? 4 : 2; /* whose sums fit in registers */
    _Alignas(LINE) float pairs[MOST_PARTS * TILE_PAIRS];
    _Alignas(LINE) part_numbers numbers;
    const int64_t block = KV_BLOCK * w.stride * 2;
    for (int64_t k = 0; k < n; k += KV_BLOCK, w.data += block, w.left -= block)
        for (int r = 0; r < m; r++) {
            const int64_t count = n - k < KV_BLOCK ? n - k : KV_BLOCK;
            float *to = out + r * out_stride;
            struct panel tile = w;
            int64_t c = 0;
            tile.data += r * w.apart;
            part_block(parts, 1, 0, x + r * x_stride + k, count, pairs);
            load_parts(parts, pairs, numbers);
            for (; c + wide * LANES <= columns; c += wide * LANES, tile.data += wide * 32)
                block_columns(kv, parts, wide, numbers, count, tile, to + c, add || k > 0);
            for (; c < columns; c += LANES, tile.data += 32)
                block_columns(kv, parts, 1, numbers, count, tile, to + c, add || k > 0);
        }
}

static void row_pairs(enum kv_format kv, int parts, int m, const float *x, int64_t x_stride,
                      int64_t n, struct panel w, int64_t columns, float *out, int64_t out_stride,
                      bool add)
{
    FOR_KV_PARTS(row_pairs_as(KV, PARTS, m, x, x_stride, n, w, columns, out, out_stride, add))
}

#endif
