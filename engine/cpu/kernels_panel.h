/* Pieces of products: one row of x, or a tile of rows, against a panel or the panels that lie in
 * turns. kernels_product.h says what they are for and how fast they are. */
#ifndef ENGINE_CPU_KERNELS_PANEL_H
#define ENGINE_CPU_KERNELS_PANEL_H

#include "engine/cpu/kernels.h"
#include "engine/cpu/vector.h"

enum {
    PAIRS = 16 / LANES,              /* of vectors of a panel's row: columns j and j + 16 */
    ROW_BYTES = 4 * PANEL,           /* of panels that lie in turns, in all formats but q8 */
    PANEL_SUMS = BLOCK_ROWS * PANEL, /* of one panel, for the rows that meet it together */
    ONE_ROW_INPUTS = 4,              /* rows of a panel that one row of x asks for together */
    PAGE_AHEAD = 4096, /* bytes: a line that shows the hardware the next page of a stream */
    PAGE_STEPS = 8,    /* rows of panels of halves, 1 KiB, that ask for one such line */
};

/* The sums of a panel and one row of x, in registers: columns as load_pair has them. */
struct row {
    vec sums[2 * PAIRS];
};

/* Vectors of a row of weights come in pairs: columns j.. and j + 16.. of a panel, PAIRS of them,
 * and then those of the panel that lies beside it. */
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

/* What tiles of rows ask for while they multiply: `step` bytes further at each input. */
struct ahead {
    const unsigned char *at;
    int64_t step;
};

/* Sums [panels][BLOCK_ROWS][32] (+)= x [n, m] * w [n, panels][32], of which the columns of `pairs`
 * pairs from `pair` on; format, m and pairs are constants at each call. */
static inline __attribute__((always_inline)) void
panel_tile(const enum weight_format format, const int m, const int pairs, const float *x, int64_t n,
           const unsigned char *w, struct ahead ahead, int pair, float *sums, bool add)
{
    vec sum[2 * TILE_ROWS][2], low, high;
#pragma GCC unroll 32
    for (int i = 0; i < m * pairs; i++) {
        const float *from = pair_sums(sums, i / pairs, pair + i % pairs);
        sum[i][0] = add ? vec_load(from) : vec_set(0.0f);
        sum[i][1] = add ? vec_load(from + 16) : vec_set(0.0f);
    }
    for (int64_t k = 0; k < n; k++) {
        __builtin_prefetch(ahead.at + k * ahead.step, 0, 2);
        if (ahead.step > 64) /* two lines */
            __builtin_prefetch(ahead.at + k * ahead.step + 64, 0, 2);
#pragma GCC unroll 2
        for (int j = 0; j < pairs; j++) {
            load_pair(format, w + k * ROW_BYTES, pair + j, &low, &high);
#pragma GCC unroll 16
            for (int i = 0; i < m; i++) {
                vec input = vec_set(x[k * m + i]);
                sum[i * pairs + j][0] = vec_fma(input, low, sum[i * pairs + j][0]);
                sum[i * pairs + j][1] = vec_fma(input, high, sum[i * pairs + j][1]);
            }
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < m * pairs; i++) {
        float *to = pair_sums(sums, i / pairs, pair + i % pairs);
        vec_store(to, sum[i][0]);
        vec_store(to + 16, sum[i][1]);
    }
}

/* Adds x [n] * w [n, panels][32] to the sums of one row [panels], which waits for memory:
 * ONE_ROW_INPUTS rows of the panels are asked for together. The hardware runs ahead of a stream
 * only to the end of a page: halves show it the next one (1.015 times as fast). */
static inline __attribute__((always_inline)) void add_row(const enum weight_format format,
                                                          const float *x, int64_t n,
                                                          const unsigned char *w, struct row *rows)
{
    const int vectors = 2 * pairs_together(format);
    int64_t k = 0;
    for (; k + ONE_ROW_INPUTS <= n; k += ONE_ROW_INPUTS) {
        vec weights[ONE_ROW_INPUTS][2 * PANEL_PAIR * PAIRS];
        if (format != WEIGHTS_F32 && k % PAGE_STEPS == 0)
            __builtin_prefetch(w + k * ROW_BYTES + PAGE_AHEAD, 0, 2);
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

static inline __attribute__((always_inline)) struct row load_row(const float *sums)
{
    struct row row;
#pragma GCC unroll 8
    for (int u = 0; u < 2 * PAIRS; u++)
        row.sums[u] = sums == NULL ? vec_set(0.0f) : vec_load(sums + row_column(u));
    return row;
}

/* Pairs of a row of weights whose sums with m rows of x fit in registers. */
static inline __attribute__((always_inline)) int pairs_at_once(const enum weight_format format,
                                                               int m)
{
    return m <= TILE_ROWS / 2 && pairs_together(format) > 1 ? 2 : 1;
}

/* Whether each weight is read once, for all of the rows. */
static bool one_pass(enum weight_format format, int rows)
{
    return rows <= TILE_ROWS && pairs_at_once(format, rows) == pairs_together(format);
}

/* sums [panels][BLOCK_ROWS][32] (+)= x [n, m] * w [n, panels][32], for any m up to TILE_ROWS. */
static inline __attribute__((always_inline)) void
panel_rows(const enum weight_format format, int m, const float *x, int64_t n,
           const unsigned char *w, struct ahead ahead, float *sums, bool add)
{
    if (m == 1) {
        struct row rows[PANEL_PAIR];
        for (int i = 0; i < panels_together(format); i++)
            rows[i] = load_row(add ? sums + i * PANEL_SUMS : NULL);
        add_row(format, x, n, w, rows);
        for (int i = 0; i < panels_together(format); i++)
            store_row(&rows[i], sums + i * PANEL_SUMS);
        return;
    }
    const int pairs = pairs_at_once(format, m);
    ahead.step = ahead.step * pairs / pairs_together(format);
#define TILE_CASE(rows)                                                                            \
    case rows:                                                                                     \
        if (rows <= TILE_ROWS)                                                                     \
            panel_tile(format, rows <= TILE_ROWS ? rows : 2, pairs_at_once(format, rows), x, n, w, \
                       ahead, p, sums, add);                                                       \
        break;
    for (int p = 0; p < pairs_together(format); p += pairs, ahead.at += n * ahead.step)
        switch (m) {
            TILE_CASE(2)
            TILE_CASE(3)
            TILE_CASE(4)
            TILE_CASE(5)
            TILE_CASE(6)
            TILE_CASE(7)
            TILE_CASE(8)
            TILE_CASE(9)
            TILE_CASE(10)
            TILE_CASE(11)
            TILE_CASE(12)
        }
#undef TILE_CASE
}

static void panel_rows_f32(int m, const float *x, int64_t n, const unsigned char *w,
                           struct ahead ahead, float *sums, bool add)
{
    panel_rows(WEIGHTS_F32, m, x, n, w, ahead, sums, add);
}

static void panel_rows_bf16(int m, const float *x, int64_t n, const unsigned char *w,
                            struct ahead ahead, float *sums, bool add)
{
    panel_rows(WEIGHTS_BF16, m, x, n, w, ahead, sums, add);
}

static void panel_rows_f16(int m, const float *x, int64_t n, const unsigned char *w,
                           struct ahead ahead, float *sums, bool add)
{
    panel_rows(WEIGHTS_F16, m, x, n, w, ahead, sums, add);
}

#endif
