/* SPDX-License-Identifier: Apache-2.0 */
/* Products with q8 weights on CPUs that do not multiply bytes by fours: quants become f32.
 *
 * Per output, over blocks of 32 inputs in order, whatever the number of rows:
 *   acc = fma(sum of x * quant, scale, acc)
 * The sum goes over the block's inputs in order, each a fused multiply-add. kernels.h says how x,
 * quants and scales are scaled. */
#ifndef ENGINE_CPU_KERNELS_Q8_H
#define ENGINE_CPU_KERNELS_Q8_H

#include "engine/cpu/kernels_panel.h"

enum {
    Q8_ROWS = TILE_ROWS * 2 / 3, /* most rows that multiply quants as they become f32 */
};

/* A block as f32. */
struct q8_numbers {
    float quants[Q8_BLOCK][PANEL], scales[PANEL];
};

/* LANES quants times 2^24: those of input i of each four. */
static inline __attribute__((always_inline)) vec load_quants(const uint8_t (*fours)[4], const int i)
{
    vec_ints bytes;
    memcpy(&bytes, fours, sizeof bytes);
    bytes ^= INT32_C(-0x7f7f7f80); /* 128 less, in each byte */
    return __builtin_convertvector(vec_raise_byte(bytes, i), vec);
}

static inline vec load_scales(const struct q8_block *w, int column)
{
    return vec_load_f16(w->scales + column) * vec_set(Q8_SCALE);
}

static void unpack_q8(const struct q8_block *w, struct q8_numbers *out)
{
    for (int j = 0; j < PANEL; j += LANES) {
        vec_store(out->scales + j, load_scales(w, j));
        for (int four = 0; four < 8; four++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                vec_store(&out->quants[4 * four + i][j], load_quants(&w->quants[four][j], i));
    }
}

/* sums [1][BLOCK_ROWS][32] (+)= x [n, m] * w, which is struct q8_numbers of one block. */
static void panel_rows_q8(int m, const float *x, int64_t n, const unsigned char *w,
                          struct ahead ahead, float *sums, bool add)
{
    const struct q8_numbers *numbers = (const struct q8_numbers *)(const void *)w;
    panel_rows(WEIGHTS_F32, m, x, n, (const unsigned char *)numbers->quants, numbers->scales, ahead,
               sums, add);
}

/* sum [m][pairs] += x [n, m] * quants of n inputs, at most four. */
static inline __attribute__((always_inline)) void tile_four(const int m, const int pairs,
                                                            const float *x, int n,
                                                            const uint8_t (*fours)[4], int pair,
                                                            vec sum[][2])
{
#pragma GCC unroll 16
    for (int u = 0; u < 4 * 2 * pairs; u++) {
        const int i = u / (2 * pairs), v = u % (2 * pairs);
        if (i >= n)
            return;
        vec quants = load_quants(fours + row_column(2 * pair + v), i);
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            vec *to = &sum[r * pairs + v / 2][v % 2];
            *to = vec_fma(vec_set(x[i * m + r]), quants, *to);
        }
    }
}

static inline __attribute__((always_inline)) void
q8_tile(const int m, const int pairs, const float *x, int64_t n, const struct q8_block *w, int pair,
        const float *scales, float *sums, bool add)
{
    vec sum[2 * TILE_ROWS][2];
#pragma GCC unroll 32
    for (int i = 0; i < m * pairs; i++)
        sum[i][0] = sum[i][1] = vec_set(0.0f);
    int four = 0;
    for (; 4 * four + 4 <= n; four++)
        tile_four(m, pairs, x + 4 * four * m, 4, w->quants[four], pair, sum);
    if (4 * four < n)
        tile_four(m, pairs, x + 4 * four * m, (int)n - 4 * four, w->quants[four], pair, sum);
    end_tile(m, pairs, pair, sum, scales, sums, add);
}

/* sums [1][BLOCK_ROWS][32] (+)= x [n, m] * w, one block, for any m from 2 to Q8_ROWS. For so few
 * rows writing the block to scratch as f32 would take longer than multiplying. */
static void q8_rows(int m, const float *x, int64_t n, const struct q8_block *w, float *sums,
                    bool add)
{
    float scales[PANEL];
    for (int j = 0; j < PANEL; j += LANES)
        vec_store(scales + j, load_scales(w, j));
    for (int p = 0; p < PAIRS; p += pairs_at_once(WEIGHTS_F32, m))
        FOR_ROWS(m, 2, Q8_ROWS,
                 q8_tile(M, pairs_at_once(WEIGHTS_F32, M), x, n, w, p, scales, sums, add))
}

/* Adds n inputs k.. of one block of each panel, at most four, to sums of quants. */
static inline __attribute__((always_inline)) void
add_four(const float *x, int n, int four, const struct q8_block *w, struct row *sums)
{
#pragma GCC unroll 16
    for (int u = 0; u < PANEL_PAIR * 2 * PAIRS; u++) {
        vec *sum = &sums[u / (2 * PAIRS)].sums[u % (2 * PAIRS)];
        const uint8_t(*fours)[4] = &w[u / (2 * PAIRS)].quants[four][row_column(u % (2 * PAIRS))];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            if (i < n)
                *sum = vec_fma(vec_set(x[i]), load_quants(fours, i), *sum);
    }
}

/* Adds x [n] * blocks [ceil(n / 32)][2] to the sums of one row [2]. Such a row waits for memory, so
 * it prefetches Q8_AHEAD bytes ahead (Zen 3, 2 threads: 0.88 of the speed of reading, without
 * 0.46).
 */
static inline __attribute__((always_inline)) void add_q8_row(const enum weight_format format,
                                                             const float *x, int64_t n,
                                                             const unsigned char *blocks,
                                                             struct row *rows)
{
    const struct q8_block *w = (const struct q8_block *)(const void *)blocks;
    (void)format;
    enum { FOUR_LINES = PANEL_PAIR * sizeof *w / 8 / LINE }; /* and two more a pair of blocks */
    for (int64_t k = 0; k < n; k += Q8_BLOCK, w += PANEL_PAIR) {
        const char *ahead = (const char *)w + Q8_AHEAD;
        struct row sums[PANEL_PAIR] = {zero_row(), zero_row()};
        for (int four = 0; four < 8 && k + 4 * four < n; four++, ahead += FOUR_LINES * LINE) {
            for (int line = 0; line < FOUR_LINES; line++)
                ask_once(ahead + line * LINE, Q8_AHEAD);
            if (k + 4 * four + 4 <= n)
                add_four(x + k + 4 * four, 4, four, w, sums);
            else
                add_four(x + k + 4 * four, (int)(n - k - 4 * four), four, w, sums);
        }
        for (int line = 0; line < 2; line++)
            ask_once(ahead + line * LINE, Q8_AHEAD);
#pragma GCC unroll 16
        for (int u = 0; u < PANEL_PAIR * 2 * PAIRS; u++) {
            int panel = u / (2 * PAIRS), v = u % (2 * PAIRS);
            rows[panel].sums[v] = vec_fma(
                sums[panel].sums[v], load_scales(w + panel, row_column(v)), rows[panel].sums[v]);
        }
    }
}

#endif
