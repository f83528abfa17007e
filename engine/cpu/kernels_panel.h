/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of products: multiply one row of x, or a tile of rows, with a panel or with two panels
 * whose rows alternate. kernels_product.h uses them. */
#ifndef ENGINE_CPU_KERNELS_PANEL_H
#define ENGINE_CPU_KERNELS_PANEL_H

#include "engine/cpu/ahead.h"
#include "engine/cpu/kernels.h"

enum {
    PAIRS = 16 / LANES, /* pairs of vectors in a panel's row: columns j and j + 16 */
    ROW_BYTES =
        4 * PANEL, /* bytes of a row of the panels that alternate, where each stands alone */
    PANEL_SUMS = BLOCK_ROWS * PANEL, /* sums of one panel, for the rows that meet it together */
    MANY_REGISTERS = LANES == 16,    /* 32 of them, not 16 */
    ONE_ROW_INPUTS = MANY_REGISTERS ? 4 : 1, /* rows of a panel that one row of x loads together */
};

/* The sums of a panel and one row of x, in registers, in the order of load_pair's columns. */
struct row {
    vec sums[2 * PAIRS];
};

/* Vectors of a row of weights come in pairs, columns j.. and j + 16.. of a panel: PAIRS pairs, and
 * then those of the panel beside it. */
static inline __attribute__((always_inline)) int pairs_together(const enum weight_format format)
{
    return panels_together(format) * PAIRS;
}

static inline __attribute__((always_inline)) void
load_pair(const enum weight_format format, const unsigned char *row, int pair, vec *low, vec *high)
{
    const float *floats = (const float *)(const void *)row + pair * LANES;
    const uint16_t *halves = (const uint16_t *)(const void *)row;
    halves += pair / PAIRS * PANEL + pair % PAIRS * LANES;
    if (format == WEIGHTS_F32) {
        *low = vec_load(floats);
        *high = vec_load(floats + 16);
    } else if (format == WEIGHTS_F16) {
        *low = vec_load_f16(halves);
        *high = vec_load_f16(halves + 16);
    } else {
        vec_load_bf16_pairs(floats, low, high);
    }
}

/* The columns of a pair in row i of sums [panels][BLOCK_ROWS][32]. */
static inline float *pair_sums(float *sums, int i, int pair)
{
    return sums + pair / PAIRS * PANEL_SUMS + i * PANEL + pair % PAIRS * LANES;
}

/* What tiles of rows prefetch while they multiply: `step` bytes further at each input. */
struct ahead {
    const unsigned char *at;
    int step;
    bool once; /* these bytes will be read once, TILE_AHEAD later */
};

static inline __attribute__((always_inline)) void ask_tile(const unsigned char *line,
                                                           const bool once)
{
    if (once)
        ask_once(line, TILE_AHEAD);
    else
        __builtin_prefetch(line, 0, TILE_CACHES);
}

/* Prefetches for some inputs from input k on. step is at most 2 LINE, and `once` is a constant at
 * each call: a branch cost a tenth of the speed of eight rows. */
static inline __attribute__((always_inline)) void ask(struct ahead ahead, int64_t k,
                                                      const int inputs)
{
    const unsigned char *at = ahead.at + k * ahead.step;
    ask_tile(at, ahead.once);
    if (inputs * ahead.step > LINE)
#pragma GCC unroll 8
        for (int i = 0; i < inputs; i++) {
            if (i > 0)
                ask_tile(at + i * ahead.step, ahead.once);
            if (ahead.step > LINE)
                ask_tile(at + i * ahead.step + LINE, ahead.once);
        }
}

/* sum [m][pairs] += x [m] * one row of w. wide [pairs][32], if not NULL, becomes the row in f32. */
static inline __attribute__((always_inline)) void
tile_input(const enum weight_format format, const int m, const int pairs, const float *x,
           const unsigned char *row, int pair, float *wide, vec sum[][2])
{
#pragma GCC unroll 2
    for (int j = 0; j < pairs; j++) {
        vec low, high;
        load_pair(format, row, pair + j, &low, &high);
        if (wide != NULL) {
            vec_store(wide + j * PANEL, low);
            vec_store(wide + j * PANEL + 16, high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < m; i++) {
            vec input = vec_set(x[i]);
            sum[i * pairs + j][0] = vec_fma(input, low, sum[i * pairs + j][0]);
            sum[i * pairs + j][1] = vec_fma(input, high, sum[i * pairs + j][1]);
        }
    }
}

/* Begins a tile: sum [m][pairs] = sums [panels][BLOCK_ROWS][32], or 0. */
static inline __attribute__((always_inline)) void start_tile(const int m, const int pairs, int pair,
                                                             float *sums, bool add, vec sum[][2])
{
#pragma GCC unroll 32
    for (int i = 0; i < m * pairs; i++) {
        const float *from = pair_sums(sums, i / pairs, pair + i % pairs);
        sum[i][0] = add ? vec_load(from) : vec_set(0.0f);
        sum[i][1] = add ? vec_load(from + 16) : vec_set(0.0f);
    }
}

/* What ends the sums of a block of inputs: scales and minima [32], and its rows' sums of inputs
 * [m]. NULL where there are none. */
struct block_end {
    const float *scales, *minima, *inputs;
};

/* Ends a tile: sums [panels][BLOCK_ROWS][32] = sum [m][pairs], or (+)= inputs times minima, += sum
 * times scales. */
static inline __attribute__((always_inline)) void end_tile(const int m, const int pairs, int pair,
                                                           vec sum[][2], struct block_end end,
                                                           float *sums, bool add)
{
#pragma GCC unroll 32
    for (int i = 0; i < m * pairs; i++) {
        float *to = pair_sums(sums, i / pairs, pair + i % pairs);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            if (end.scales != NULL) {
                const int column = (pair + i % pairs) * LANES + half * 16;
                vec scale = vec_load(end.scales + column);
                vec start = add ? vec_load(to + half * 16) : vec_set(0.0f);
                if (end.minima != NULL)
                    start = vec_fma(vec_set(end.inputs[i / pairs]), vec_load(end.minima + column),
                                    start);
                sum[i][half] = vec_fma(sum[i][half], scale, start);
            }
            vec_store(to + half * 16, sum[i][half]);
        }
    }
}

/* Sums [panels][BLOCK_ROWS][32] (+)= x [n, m] * w [n, panels][32], as `end` says, for the columns
 * of `pairs` pairs from `pair` on. wide [n][pairs][32], if not NULL, becomes these columns in f32.
 * format, m and pairs are constants at each call. */
static inline __attribute__((always_inline)) void
panel_tile(const enum weight_format format, const int m, const int pairs, const float *x, int64_t n,
           const unsigned char *w, struct block_end end, struct ahead ahead, int pair, float *wide,
           float *sums, bool add)
{
    vec sum[2 * TILE_ROWS][2];
    start_tile(m, pairs, pair, sums, add && end.scales == NULL, sum);
    int64_t k = 0;
    for (; k + TILE_INPUTS <= n; k += TILE_INPUTS) {
        ask(ahead, k, TILE_INPUTS);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_INPUTS; i++)
            tile_input(format, m, pairs, x + (k + i) * m, w + (k + i) * ROW_BYTES, pair,
                       wide == NULL ? NULL : wide + (k + i) * pairs * PANEL, sum);
    }
    for (; k < n; k++)
        tile_input(format, m, pairs, x + k * m, w + k * ROW_BYTES, pair,
                   wide == NULL ? NULL : wide + k * pairs * PANEL, sum);
    end_tile(m, pairs, pair, sum, end, sums, add);
}

/* Prefetches what one row of x reads ROW_AHEAD later, or one line of it. f32 with AVX2 leaves that
 * to the hardware. */
static inline __attribute__((always_inline)) void ask_rows(const enum weight_format format,
                                                           const unsigned char *rows)
{
    if (format != WEIGHTS_F32 || MANY_REGISTERS)
#pragma GCC unroll 8
        for (int line = 0; line < (ROW_EVERY_LINE ? ONE_ROW_INPUTS * ROW_BYTES : LINE);
             line += LINE)
            ask_once(rows + ROW_AHEAD + line, ROW_AHEAD);
}

/* Adds x [n] * w [n, panels][32] to the sums of one row [panels]. Such a row waits for memory, so
 * ONE_ROW_INPUTS rows of the panels are loaded together. */
static inline __attribute__((always_inline)) void add_row(const enum weight_format format,
                                                          const float *x, int64_t n,
                                                          const unsigned char *w, struct row *rows)
{
    const int vectors = 2 * pairs_together(format);
    int64_t k = 0;
    for (; k + ONE_ROW_INPUTS <= n; k += ONE_ROW_INPUTS) {
        vec weights[ONE_ROW_INPUTS][2 * PANEL_PAIR * PAIRS];
        ask_rows(format, w + k * ROW_BYTES);
#pragma GCC unroll 8
        for (int i = 0; i < ONE_ROW_INPUTS; i++)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v += 2)
                load_pair(format, w + (k + i) * ROW_BYTES, v / 2, &weights[i][v],
                          &weights[i][v + 1]);
#pragma GCC unroll 8
        for (int i = 0; i < ONE_ROW_INPUTS; i++)
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) {
                vec *sum = &rows[v / (2 * PAIRS)].sums[v % (2 * PAIRS)];
                *sum = vec_fma(vec_set(x[k + i]), weights[i][v], *sum);
            }
    }
    for (; k < n; k++)
#pragma GCC unroll 8
        for (int u = 0; u < pairs_together(format); u++) {
            vec low, high, *sum = &rows[u / PAIRS].sums[u % PAIRS * 2];
            load_pair(format, w + k * ROW_BYTES, u, &low, &high);
            sum[0] = vec_fma(vec_set(x[k]), low, sum[0]);
            sum[1] = vec_fma(vec_set(x[k]), high, sum[1]);
        }
}

/* The column of a panel where vector u of a row's sums begins. */
static inline int row_column(int u)
{
    return u / 2 * LANES + u % 2 * 16;
}

static inline __attribute__((always_inline)) void store_row(const struct row *row, float *sums)
{
#pragma GCC unroll 8
    for (int u = 0; u < 2 * PAIRS; u++)
        vec_store(sums + row_column(u), row->sums[u]);
}

static inline __attribute__((always_inline)) struct row zero_row(void)
{
    struct row row;
#pragma GCC unroll 8
    for (int u = 0; u < 2 * PAIRS; u++)
        row.sums[u] = vec_set(0.0f);
    return row;
}

/* The number of pairs whose sums with m rows of x fit in registers. */
static inline __attribute__((always_inline)) int pairs_at_once(const enum weight_format format,
                                                               int m)
{
    return m <= TILE_ROWS / 2 && pairs_together(format) > 1 ? 2 : 1;
}

/* Whether each weight is read once for all rows. */
static bool one_pass(enum weight_format format, int rows)
{
    return rows <= TILE_ROWS && pairs_at_once(format, rows) == pairs_together(format);
}

/* Sums of all columns, for any m from 2 to `most`. */
static inline __attribute__((always_inline)) void
panel_passes(const enum weight_format format, const int most, int m, const float *x, int64_t n,
             const unsigned char *w, struct block_end end, struct ahead ahead, float *sums,
             bool add)
{
    const int pairs = pairs_at_once(format, m);
    ahead.step = ahead.step * pairs / pairs_together(format);
    for (int p = 0; p < pairs_together(format); p += pairs, ahead.at += n * ahead.step)
        FOR_ROWS(m, 2, TILE_ROWS,
                 if (M <= most) panel_tile(format, M, pairs_at_once(format, M), x, n, w, end, ahead,
                                           p, NULL, sums, add))
}

/* sums [panels][BLOCK_ROWS][32] (+)= x [n, m] * w [n, panels][32], as `end` says, for any m from 2
 * to TILE_ROWS. */
static inline __attribute__((always_inline)) void
panel_rows(const enum weight_format format, int m, const float *x, int64_t n,
           const unsigned char *w, struct block_end end, struct ahead ahead, float *sums, bool add)
{
    if (TWO_STEPS && ahead.once) {
        ahead.once = true; /* a constant, as in the other branch */
        panel_passes(format, TILE_ROWS / pairs_together(format), m, x, n, w, end, ahead, sums, add);
    } else {
        ahead.once = false;
        panel_passes(format, TILE_ROWS, m, x, n, w, end, ahead, sums, add);
    }
}

static void panel_rows_f32(int m, const float *x, int64_t n, const unsigned char *w,
                           struct ahead ahead, float *sums, bool add)
{
    panel_rows(WEIGHTS_F32, m, x, n, w, (struct block_end){0}, ahead, sums, add);
}

static void panel_rows_bf16(int m, const float *x, int64_t n, const unsigned char *w,
                            struct ahead ahead, float *sums, bool add)
{
    panel_rows(WEIGHTS_BF16, m, x, n, w, (struct block_end){0}, ahead, sums, add);
}

static void panel_rows_f16(int m, const float *x, int64_t n, const unsigned char *w,
                           struct ahead ahead, float *sums, bool add)
{
    panel_rows(WEIGHTS_F16, m, x, n, w, (struct block_end){0}, ahead, sums, add);
}

#endif
