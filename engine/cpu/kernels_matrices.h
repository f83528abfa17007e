/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of rows on Arm's CPUs that multiply matrices: two rows of x times two outputs at once, over
 * eight inputs of a byte (SMMLA) or over four of bf16 (BFMMLA).
 *
 * The first is exact. The second is BFDOT over its first two inputs and then over the others, so
 * that tiles have the bits of one row (kernels_bf16.h). */
#ifndef ENGINE_CPU_KERNELS_MATRICES_H
#define ENGINE_CPU_KERNELS_MATRICES_H

#include "engine/cpu/kernels_bf16.h"

/* Two dwords each of two neighbouring rows of x, those of the first row first. single: there is no
 * second row, which then is zero. */
INLINE int32x4_t two_rows(const void *first, const void *second, const bool single)
{
    int32x2_t a = {0}, b = {0};
    memcpy(&a, first, single ? 4 : 8);
    memcpy(&b, second, single ? 4 : 8);
    return vcombine_s32(vzip1_s32(a, b), vzip2_s32(a, b));
}

/* Sums of two rows and four outputs, where each vector has two outputs of both rows: rows [2]
 * becomes pairs [2], or the other way round. */
INLINE void turn_sums(const vec from[2], vec to[2])
{
    to[0] = vcombine_f32(vget_low_f32(from[0]), vget_low_f32(from[1]));
    to[1] = vcombine_f32(vget_high_f32(from[0]), vget_high_f32(from[1]));
}

/* ---- bytes ---- */

/* Adds what the wide fours of rows i and i + 1, of which there may be one, give to two pairs of
 * outputs of both. */
INLINE void add_wide(const enum weight_format format, const int m, int i, const int32_t *x,
                     const unsigned char *w, int column, int32x4_t *low, int32x4_t *high)
{
    const int32x4_t rows[2] = {dot_wide(format, m, x + i, w, column),
                               i + 1 < m ? dot_wide(format, m, x + i + 1, w, column)
                                         : vdupq_n_s32(0)};
    *low = vaddq_s32(*low, vcombine_s32(vget_low_s32(rows[0]), vget_low_s32(rows[1])));
    *high = vaddq_s32(*high, vcombine_s32(vget_high_s32(rows[0]), vget_high_s32(rows[1])));
}

/* values [m][2]: what a block adds to DOT_COLUMNS outputs of m rows. */
INLINE void dot_values(const enum weight_format format, const int digits, const int m,
                       const int32_t *x, const unsigned char *w, int column,
                       vec values[FIXED_ROWS][2])
{
    int32x4_t p[FIXED_ROWS / 2][4][MOST_DIGITS] = {0};
#pragma GCC unroll 4
    for (int four = 0; four < 8; four += 2) {
        int32x4_t quants[4]; /* two outputs each */
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            const int at = column + v * LANES;
            const int32x4_t a = vreinterpretq_s32_s8(dot_quants(format, w, four, at));
            const int32x4_t b = vreinterpretq_s32_s8(dot_quants(format, w, four + 1, at));
            quants[2 * v] = vzip1q_s32(a, b);
            quants[2 * v + 1] = vzip2q_s32(a, b);
        }
#pragma GCC unroll 6
        for (int i = 0; i < m; i += 2)
#pragma GCC unroll 3
            for (int d = 0; d < digits; d++) {
                const int8x16_t inputs =
                    vreinterpretq_s8_s32(two_rows(x + fixed_four(m, d, four) + i,
                                                  x + fixed_four(m, d, four + 1) + i, i + 1 == m));
#pragma GCC unroll 4
                for (int v = 0; v < 4; v++)
                    p[i / 2][v][d] =
                        vmmlaq_s32(p[i / 2][v][d], inputs, vreinterpretq_s8_s32(quants[v]));
            }
    }
#pragma GCC unroll 6
    for (int i = 0; i < m; i += 2)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            int32x4_t *low = p[i / 2][2 * v], *high = p[i / 2][2 * v + 1];
            if (digits == 1)
                add_wide(format, m, i, x, w, column + v * LANES, low, high);
            const vec pairs[2] = {dot_value(digits, low), dot_value(digits, high)};
            vec rows[2];
            turn_sums(pairs, rows);
            values[i][v] = rows[0];
            if (i + 1 < m)
                values[i + 1][v] = rows[1];
        }
}

/* ---- bf16 ---- */

/* sum [ceil(m / 2)][4], two outputs of two rows each, += four inputs of x [m] * w, or fewer: where
 * the second two, or the last input, are past the end they count as zero. */
INLINE void tile_four(const int m, const float *x, const unsigned char *row, int64_t inputs,
                      int pair, vec sum[][4])
{
    static const float none[2] = {0};
    const int at = pair * (int)sizeof(vec);
    const struct two_inputs zero = {{0}, {0}};
    const struct two_inputs a = load_two(row + at, inputs > 1);
    const struct two_inputs b = inputs > 2 ? load_two(row + 2 * ROW_BYTES + at, inputs > 3) : zero;
    const int32x4_t w[4] = {vzip1q_s32(a.low, b.low), vzip2q_s32(a.low, b.low),
                            vzip1q_s32(a.high, b.high), vzip2q_s32(a.high, b.high)};
#pragma GCC unroll 6
    for (int i = 0; i < m; i += 2) {
        const bfloat16x8_t input =
            vreinterpretq_bf16_s32(two_rows(x + i, inputs > 2 ? x + m + i : none, i + 1 == m));
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++)
            sum[i / 2][v] = vbfmmlaq_f32(sum[i / 2][v], input, vreinterpretq_bf16_s32(w[v]));
    }
}

/* The sums of rows i and i + 1, of which there may be one, from or to where a tile has them. */
INLINE void load_two_rows(const int m, int i, int pair, float *sums, vec sum[4])
{
    for (int half = 0; half < 2; half++) {
        const float *from = pair_sums(sums, i, pair) + half * 16;
        const vec rows[2] = {vec_load(from), i + 1 < m ? vec_load(from + PANEL) : vec_set(0.0f)};
        turn_sums(rows, sum + 2 * half);
    }
}

INLINE void store_two_rows(const int m, int i, int pair, float *sums, const vec sum[4])
{
    for (int half = 0; half < 2; half++) {
        float *to = pair_sums(sums, i, pair) + half * 16;
        vec rows[2];
        turn_sums(sum + 2 * half, rows);
        vec_store(to, rows[0]);
        if (i + 1 < m)
            vec_store(to + PANEL, rows[1]);
    }
}

/* Like panel_tile (kernels_panel.h), for one pair. */
INLINE void matrix_tile(const int m, const float *x, int64_t n, const unsigned char *w,
                        struct ahead ahead, int pair, float *sums, bool add)
{
    vec sum[TILE_ROWS / 2][4] = {{{0}}};
#pragma GCC unroll 6
    for (int i = 0; i < m; i += 2)
        if (add)
            load_two_rows(m, i, pair, sums, sum[i / 2]);
    int64_t k = 0;
    for (; k + 4 <= n; k += 4) {
        ask(ahead, k, 4);
        tile_four(m, x + k / 2 * m, w + k * ROW_BYTES, 4, pair, sum);
    }
    if (k < n)
        tile_four(m, x + k / 2 * m, w + k * ROW_BYTES, n - k, pair, sum);
#pragma GCC unroll 6
    for (int i = 0; i < m; i += 2)
        store_two_rows(m, i, pair, sums, sum[i / 2]);
}

/* Like panel_rows. */
static void matrix_rows(int m, const float *x, int64_t n, const unsigned char *w,
                        struct ahead ahead, float *sums, bool add)
{
    ahead.once = false;
    ahead.step /= PANEL_PAIR * PAIRS;
    for (int pair = 0; pair < PANEL_PAIR * PAIRS; pair++, ahead.at += n * ahead.step)
        FOR_ROWS(m, 2, TILE_ROWS, matrix_tile(M, x, n, w, ahead, pair, sums, add))
}

static void product_matrices(const struct product *p)
{
    static const struct product_way way = {pair_row, 2, .rows = matrix_rows};
    product_by(&way, p);
}

#endif
