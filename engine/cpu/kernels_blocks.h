/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights in blocks on CPUs that do not multiply bytes by fours: quants become f32.
 *
 * Per output, over blocks of 32 inputs in order, whatever the number of rows:
 *   acc = fma(sum of x, minimum, acc)        in formats that have minima
 *   acc = fma(sum of x * quant, scale, acc)
 * The second sum goes over the block's inputs in order, each a fused multiply-add; the first is
 * made when x is arranged. */
#ifndef ENGINE_CPU_KERNELS_BLOCKS_H
#define ENGINE_CPU_KERNELS_BLOCKS_H

#include "engine/cpu/kernels_q4.h"
#include "engine/cpu/kernels_q6.h"
#include "engine/cpu/kernels_q8.h"

enum {
    BLOCK = Q8_BLOCK,               /* inputs of a block, in every such format */
    QUANT_ROWS = TILE_ROWS * 2 / 3, /* most rows that multiply quants as they become f32 */
};

/* A block as f32. */
struct block_numbers {
    float quants[BLOCK][PANEL], scales[PANEL], minima[PANEL];
};

/* The floats of so many inputs of a block, as `arrange` writes them: they and, with minima, their
 * sum. */
static inline __attribute__((always_inline)) int64_t
arranged_inputs(const enum weight_format format, int64_t n)
{
    return n + weight_format_minimum(format);
}

/* Those of the inputs before input k, the first of a block. */
static inline __attribute__((always_inline)) int64_t
arranged_before(const enum weight_format format, int64_t k)
{
    return k / BLOCK * arranged_inputs(format, BLOCK);
}

/* Inputs whose quants share a dword; a panel's dwords of a group lie beside each other. */
static inline __attribute__((always_inline)) int group_inputs(const enum weight_format format)
{
    return format == WEIGHTS_Q8 ? 4 : 8;
}

typedef const uint8_t (*quad_bytes)[4];

static inline __attribute__((always_inline)) quad_bytes
group_dwords(const enum weight_format format, const unsigned char *block, int group)
{
    const size_t before = format == WEIGHTS_Q6 ? (size_t)group / 2 + 1 : 0; /* q6's upper bits */
    return (quad_bytes)(block + ((size_t)group + before) * PANEL * sizeof(int32_t));
}

/* LANES quants of input i of a group. */
static inline __attribute__((always_inline)) vec load_quants(const enum weight_format format,
                                                             const unsigned char *block,
                                                             const int group, int column,
                                                             const int i)
{
    const void *w = block;
    if (format == WEIGHTS_Q6)
        return q6_quants(w, group, column, i);
    quad_bytes dwords = group_dwords(format, block, group) + column;
    return format == WEIGHTS_Q4 ? q4_quants(dwords, i) : q8_quants(dwords, i);
}

static inline __attribute__((always_inline)) vec load_scales(const enum weight_format format,
                                                             const unsigned char *block, int column)
{
    const void *w = block;
    return format == WEIGHTS_Q4   ? q4_scales(((const struct q4_block *)w)->scales, column)
           : format == WEIGHTS_Q6 ? q6_scales(w, column)
                                  : q8_scales(w, column);
}

static inline __attribute__((always_inline)) vec load_minima(const enum weight_format format,
                                                             const unsigned char *block, int column)
{
    const void *w = block;
    return format == WEIGHTS_Q4 ? q4_scales(((const struct q4_block *)w)->minima, column)
                                : vec_set(0.0f);
}

static inline __attribute__((always_inline)) void
unpack_ends(const enum weight_format format, const unsigned char *block, struct block_numbers *out)
{
    for (int j = 0; j < PANEL; j += LANES) {
        vec_store(out->scales + j, load_scales(format, block, j));
        if (weight_format_minimum(format))
            vec_store(out->minima + j, load_minima(format, block, j));
    }
}

static inline __attribute__((always_inline)) void
unpack_block(const enum weight_format format, const unsigned char *block, struct block_numbers *out)
{
    const int inputs = group_inputs(format);
    unpack_ends(format, block, out);
    for (int j = 0; j < PANEL; j += LANES)
        for (int group = 0; group < BLOCK / inputs; group++)
#pragma GCC unroll 8
            for (int i = 0; i < inputs; i++)
                vec_store(&out->quants[inputs * group + i][j],
                          load_quants(format, block, group, j, i));
}

/* The end of a block of a tile of rows whose n inputs are at x. */
static inline __attribute__((always_inline)) struct block_end
end_of(const enum weight_format format, const struct block_numbers *numbers, const float *x, int m,
       int64_t n)
{
    struct block_end end = {.scales = numbers->scales};
    if (weight_format_minimum(format)) {
        end.minima = numbers->minima;
        end.inputs = x + n * m;
    }
    return end;
}

/* sums [1][BLOCK_ROWS][32] (+)= x [n, m] * w, which is struct block_numbers, with scales alone and
 * with minima too. */
static void panel_rows_scales(int m, const float *x, int64_t n, const unsigned char *w,
                              struct ahead ahead, float *sums, bool add)
{
    const struct block_numbers *numbers = (const struct block_numbers *)(const void *)w;
    panel_rows(WEIGHTS_F32, m, x, n, (const unsigned char *)numbers->quants,
               end_of(WEIGHTS_Q8, numbers, x, m, n), ahead, sums, add);
}

static void panel_rows_minima(int m, const float *x, int64_t n, const unsigned char *w,
                              struct ahead ahead, float *sums, bool add)
{
    const struct block_numbers *numbers = (const struct block_numbers *)(const void *)w;
    panel_rows(WEIGHTS_F32, m, x, n, (const unsigned char *)numbers->quants,
               end_of(WEIGHTS_Q4, numbers, x, m, n), ahead, sums, add);
}

/* sum [m][pairs] += x [n, m] * quants of n inputs, at most a group. */
static inline __attribute__((always_inline)) void
tile_group(const enum weight_format format, const int m, const int pairs, const float *x, int n,
           const unsigned char *block, int group, int pair, vec sum[][2])
{
    const int inputs = group_inputs(format);
#pragma GCC unroll 32
    for (int u = 0; u < inputs * 2 * pairs; u++) {
        const int i = u / (2 * pairs), v = u % (2 * pairs);
        if (i >= n)
            return;
        vec quants = load_quants(format, block, group, row_column(2 * pair + v), i);
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            vec *to = &sum[r * pairs + v / 2][v % 2];
            *to = vec_fma(vec_set(x[i * m + r]), quants, *to);
        }
    }
}

static inline __attribute__((always_inline)) void
quant_tile(const enum weight_format format, const int m, const int pairs, const float *x, int64_t n,
           const unsigned char *block, int pair, const struct block_numbers *numbers, float *sums,
           bool add)
{
    const int inputs = group_inputs(format);
    vec sum[2 * TILE_ROWS][2];
#pragma GCC unroll 32
    for (int i = 0; i < m * pairs; i++)
        sum[i][0] = sum[i][1] = vec_set(0.0f);
    int group = 0;
    for (; inputs * (group + 1) <= n; group++)
        tile_group(format, m, pairs, x + inputs * group * m, inputs, block, group, pair, sum);
    if (inputs * group < n)
        tile_group(format, m, pairs, x + inputs * group * m, (int)n - inputs * group, block, group,
                   pair, sum);
    end_tile(m, pairs, pair, sum, end_of(format, numbers, x, m, n), sums, add);
}

/* sums [1][BLOCK_ROWS][32] (+)= x [n, m] * a block, for any m from 2 to QUANT_ROWS. For so few rows
 * writing the block to scratch as f32 would take longer than multiplying. */
static inline __attribute__((always_inline)) void quant_rows(const enum weight_format format, int m,
                                                             const float *x, int64_t n,
                                                             const unsigned char *block,
                                                             float *sums, bool add)
{
    struct block_numbers numbers;
    unpack_ends(format, block, &numbers);
    for (int p = 0; p < PAIRS; p += pairs_at_once(WEIGHTS_F32, m))
        FOR_ROWS(m, 2, QUANT_ROWS,
                 quant_tile(format, M, pairs_at_once(WEIGHTS_F32, M), x, n, block, p, &numbers,
                            sums, add))
}

/* Adds n inputs of one group of each panel, at most all, to sums of quants. */
static inline __attribute__((always_inline)) void add_group(const enum weight_format format,
                                                            const float *x, int n, int group,
                                                            const unsigned char *blocks,
                                                            struct row *sums)
{
#pragma GCC unroll 16
    for (int u = 0; u < PANEL_PAIR * 2 * PAIRS; u++) {
        vec *sum = &sums[u / (2 * PAIRS)].sums[u % (2 * PAIRS)];
        const unsigned char *block = blocks + u / (2 * PAIRS) * row_bytes(format);
        const int column = row_column(u % (2 * PAIRS));
#pragma GCC unroll 8
        for (int i = 0; i < group_inputs(format); i++)
            if (i < n)
                *sum = vec_fma(vec_set(x[i]), load_quants(format, block, group, column, i), *sum);
    }
}

/* Adds x, the n inputs of a block, * blocks [2] to the sums of one row [2]. Such a row waits for
 * memory, so it prefetches Q8_AHEAD bytes ahead (Zen 3, 2 threads, q8: 0.88 of the speed of
 * reading, without 0.46). */
static inline __attribute__((always_inline)) void add_block(const enum weight_format format,
                                                            const float *x, int n,
                                                            const unsigned char *blocks,
                                                            struct row *rows)
{
    const int inputs = group_inputs(format), groups = BLOCK / inputs;
    const int pair_lines = PANEL_PAIR * (int)row_bytes(format) / LINE;
    const char *ahead = (const char *)blocks + Q8_AHEAD;
    struct row sums[PANEL_PAIR] = {zero_row(), zero_row()};
    for (int group = 0; group < groups && inputs * group < n; group++) {
        for (int line = 0; line < pair_lines / groups; line++, ahead += LINE)
            ask_once(ahead, Q8_AHEAD);
        if (inputs * (group + 1) <= n)
            add_group(format, x + inputs * group, inputs, group, blocks, sums);
        else
            add_group(format, x + inputs * group, n - inputs * group, group, blocks, sums);
    }
    for (int line = 0; line < pair_lines % groups; line++)
        ask_once(ahead + line * LINE, Q8_AHEAD);
#pragma GCC unroll 16
    for (int u = 0; u < PANEL_PAIR * 2 * PAIRS; u++) {
        const unsigned char *block = blocks + u / (2 * PAIRS) * row_bytes(format);
        const int v = u % (2 * PAIRS), column = row_column(v);
        vec *sum = &rows[u / (2 * PAIRS)].sums[v];
        if (weight_format_minimum(format))
            *sum = vec_fma(vec_set(x[n]), load_minima(format, block, column), *sum);
        *sum = vec_fma(sums[u / (2 * PAIRS)].sums[v], load_scales(format, block, column), *sum);
    }
}

/* Adds x of n inputs * blocks [ceil(n / 32)][2] to the sums of one row [2]. */
static inline __attribute__((always_inline)) void add_block_row(const enum weight_format format,
                                                                const float *x, int64_t n,
                                                                const unsigned char *blocks,
                                                                struct row *rows)
{
    for (int64_t k = 0; k < n; k += BLOCK, blocks += PANEL_PAIR * row_bytes(format)) {
        add_block(format, x, n - k < BLOCK ? (int)(n - k) : BLOCK, blocks, rows);
        x += arranged_inputs(format, BLOCK);
    }
}

#endif
