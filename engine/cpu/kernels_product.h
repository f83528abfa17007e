/* Matrix products on packed weights of any format: register tiles of rows against panels.
 *
 * One running sum per output, over the input in order: acc = fma(x[k], w[k][j], acc), whatever the
 * number of rows; the tile's shape changes only which sums run beside each other. 16-bit weights
 * become f32 in registers, exactly; q8 blocks in a buffer, exactly but for one rounding of quant *
 * scale. So a sum of n products errs by at most n 2^-23 of the sum of their sizes, in every format.
 *
 * A product of N rows does 2 N in out operations and reads the panels once per BLOCK_ROWS rows: in
 * out weights of 4, 2, 2 or 34/32 bytes; x stays in the second cache and is read once per panel.
 * `regla bench --preset gpt_neox-160m --weights f32,bf16,q8 --pp 512 --tg 64 --repeat 3`, 2 threads
 * at real-time priority on a busy machine of 34.5 GB/s and 236 GFLOP/s: of the limit, all of the
 * step (nine tenths of it products), pp512 68 %, 68 %, 89 %; tg64 89 %, 86 %, 88 %. */
#ifndef ENGINE_CPU_KERNELS_PRODUCT_H
#define ENGINE_CPU_KERNELS_PRODUCT_H

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels_elementwise.h"
#include "engine/cpu/kernels_tile.h"
#include "engine/cpu/vector.h"

#include <math.h>
#include <string.h>

enum {
    PAIRS = 16 / LANES,                  /* of vectors of a panel's row: columns j and j + 16 */
    ONE_ROW_PANELS = LANES == 4 ? 1 : 2, /* side by side: enough sums to hide an fma's latency */
    BLOCK_ROWS = 96                      /* of x that meet a panel together */
};

/* A part of a panel, or of panels beside each other. */
struct panels {
    const unsigned char *data; /* the first panel at the first k */
    size_t stride;             /* bytes between panels */
};

static inline __attribute__((always_inline)) size_t row_bytes(const enum weight_format format)
{
    return PANEL * (format == WEIGHTS_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* Columns j.. and j + 16.. of one row of a panel, j = pair * LANES. */
static inline __attribute__((always_inline)) void
load_pair(const enum weight_format format, const unsigned char *row, int pair, vec *low, vec *high)
{
    const float *floats = (const float *)(const void *)row + pair * LANES;
    const uint16_t *halves = (const uint16_t *)(const void *)row + pair * LANES;
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

/* sums [m, 32 * panels] (+)= x [m, n] * w. Units are pairs of vectors, from `pair` of the first
 * panel on; format, m and units are constants at each call. */
static inline __attribute__((always_inline)) void
panel_tile(const enum weight_format format, const int m, const int units, const float *x,
           int64_t x_stride, int64_t n, struct panels w, int pair, float *sums, bool add)
{
    vec sum[TILE_ROWS][2 * PAIRS * ONE_ROW_PANELS];
    sums += pair * LANES;
#pragma GCC unroll 16
    for (int i = 0; i < m; i++)
#pragma GCC unroll 8
        for (int u = 0; u < units; u++) {
            const float *at = sums + i * PANEL + u / PAIRS * PANEL + u % PAIRS * LANES;
            sum[i][2 * u] = add ? vec_load(at) : vec_set(0.0f);
            sum[i][2 * u + 1] = add ? vec_load(at + 16) : vec_set(0.0f);
        }
    for (int64_t k = 0; k < n; k++) {
        const unsigned char *row = w.data + k * (int64_t)row_bytes(format);
        vec weights[2 * PAIRS * ONE_ROW_PANELS];
#pragma GCC unroll 8
        for (int u = 0; u < units; u++)
            load_pair(format, row + (size_t)(u / PAIRS) * w.stride, pair + u % PAIRS,
                      &weights[2 * u], &weights[2 * u + 1]);
#pragma GCC unroll 16
        for (int i = 0; i < m; i++) {
            vec input = vec_set(x[i * x_stride + k]);
#pragma GCC unroll 8
            for (int u = 0; u < 2 * units; u++)
                sum[i][u] = vec_fma(input, weights[u], sum[i][u]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < m; i++)
#pragma GCC unroll 8
        for (int u = 0; u < units; u++) {
            float *at = sums + i * PANEL + u / PAIRS * PANEL + u % PAIRS * LANES;
            vec_store(at, sum[i][2 * u]);
            vec_store(at + 16, sum[i][2 * u + 1]);
        }
}

/* The same for any m up to TILE_ROWS, of one panel; or one row of ONE_ROW_PANELS. */
static inline __attribute__((always_inline)) void panel_rows(const enum weight_format format, int m,
                                                             int panels, const float *x,
                                                             int64_t x_stride, int64_t n,
                                                             struct panels w, float *sums, bool add)
{
    if (m == 1 && panels == ONE_ROW_PANELS) {
        panel_tile(format, 1, PAIRS * ONE_ROW_PANELS, x, x_stride, n, w, 0, sums, add);
        return;
    }
#define TILE_CASE(rows)                                                                           \
    case rows:                                                                                    \
        if (rows <= TILE_ROWS)                                                                    \
            panel_tile(format, rows <= TILE_ROWS ? rows : 1, 1, x, x_stride, n, w, p, sums, add); \
        break;
    for (int p = 0; p < PAIRS; p++)
        switch (m) {
            TILE_CASE(1)
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

static void panel_rows_f32(int m, int panels, const float *x, int64_t x_stride, int64_t n,
                           struct panels w, float *sums, bool add)
{
    panel_rows(WEIGHTS_F32, m, panels, x, x_stride, n, w, sums, add);
}

static void panel_rows_bf16(int m, int panels, const float *x, int64_t x_stride, int64_t n,
                            struct panels w, float *sums, bool add)
{
    panel_rows(WEIGHTS_BF16, m, panels, x, x_stride, n, w, sums, add);
}

static void panel_rows_f16(int m, int panels, const float *x, int64_t x_stride, int64_t n,
                           struct panels w, float *sums, bool add)
{
    panel_rows(WEIGHTS_F16, m, panels, x, x_stride, n, w, sums, add);
}

/* The 32 rows of a block as f32. */
static void unpack_q8(const struct q8_block *block, float out[32][PANEL])
{
    typedef int32_t lanes __attribute__((vector_size(sizeof(vec))));
    for (int j = 0; j < PANEL; j += LANES) {
        vec scale = vec_load_f16(block->scales + j);
        for (int four = 0; four < 8; four++) {
            lanes quants;
            memcpy(&quants, block->quants[four][j], sizeof quants);
            for (int i = 0; i < 4; i++) {
                lanes quant = (quants >> 8 * i & 255) - 128;
                vec_store(&out[4 * four + i][j], __builtin_convertvector(quant, vec) * scale);
            }
        }
    }
}

/* Tiles of at most TILE_ROWS rows, as even as they come. */
static int tile_height(int rows)
{
    int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    return (rows + tiles - 1) / tiles;
}

typedef void panel_rows_function(int m, int panels, const float *x, int64_t x_stride, int64_t n,
                                 struct panels w, float *sums, bool add);

/* sums [rows, 32] of one panel, or [32 * panels] of one row; rows <= BLOCK_ROWS. */
static void panel_sums(const struct weight *weight, int rows, int panels, const float *x,
                       int64_t x_stride, const unsigned char *panel, float *sums)
{
    enum weight_format format = weight->format;
    panel_rows_function *function = format == WEIGHTS_BF16  ? panel_rows_bf16
                                    : format == WEIGHTS_F16 ? panel_rows_f16
                                                            : panel_rows_f32;
    float unpacked[32][PANEL];
    int64_t step = format == WEIGHTS_Q8 ? 32 : weight->in;
    for (int64_t k = 0; k < weight->in; k += step) {
        int64_t n = weight->in - k < step ? weight->in - k : step;
        struct panels w = {panel, weight->panel_bytes};
        if (format == WEIGHTS_Q8) {
            unpack_q8((const struct q8_block *)(const void *)panel + k / 32, unpacked);
            w.data = (const unsigned char *)unpacked;
        }
        for (int r = 0, m; r < rows; r += m) {
            m = tile_height(rows - r);
            function(m, panels, x + r * x_stride + k, x_stride, n, w, sums + r * PANEL, k > 0);
        }
    }
}

/* Bias, activation and residual of one row of sums. */
static void finish_row(const struct product *p, const float *bias, float *sums, int64_t n, float *y)
{
    if (bias != NULL)
        for (int64_t j = 0; j < n; j++)
            sums[j] += bias[j];
    if (p->activation != FORMULA_IDENTITY)
        map_row(p->activation, sums, sums, NULL, 0.0f, n);
    if (p->accumulate)
        for (int64_t j = 0; j < n; j++)
            y[j] += sums[j];
    else
        memcpy(y, sums, (size_t)n * sizeof(float));
}

/* Rows [first, first + rows) of `panels` panels from `panel` on, whose sums are there. */
static void finish_panels(const struct product *p, int first, int rows, int64_t panel, int panels,
                          float *sums)
{
    const struct weight *weight = p->weight;
    int64_t column = panel * PANEL, width = (int64_t)panels * PANEL;
    int64_t valid = weight->out - column < width ? weight->out - column : width;
    const float *bias = weight->bias == NULL ? NULL : weight->bias + p->head * weight->out + column;
    for (int i = 0; i < rows; i++)
        finish_row(p, bias, sums + i * width, valid, p->y + (first + i) * p->y_stride + column);
}

static const unsigned char *panel_at(const struct product *p, int64_t panel)
{
    const struct weight *weight = p->weight;
    return weight->data + (size_t)(p->head * weight->panels + panel) * weight->panel_bytes;
}

static void kernel_product(const struct product *p)
{
    float sums[BLOCK_ROWS * PANEL];
    bool together = p->num_rows == 1 && p->weight->format != WEIGHTS_Q8;
    for (int r = 0, rows; r < p->num_rows; r += rows) {
        rows = p->num_rows - r < BLOCK_ROWS ? p->num_rows - r : BLOCK_ROWS;
        for (int64_t panel = p->first, end = p->first + p->count, panels; panel < end;
             panel += panels) {
            panels = together && panel + ONE_ROW_PANELS <= end ? ONE_ROW_PANELS : 1;
            panel_sums(p->weight, rows, (int)panels, p->x + r * p->x_stride, p->x_stride,
                       panel_at(p, panel), sums);
            finish_panels(p, r, rows, panel, (int)panels, sums);
        }
    }
}

#endif
