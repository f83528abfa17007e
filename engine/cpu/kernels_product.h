/* Matrix products on packed weights of any format: register tiles of rows against panels.
 *
 * One running sum per output, over the input in order: acc = fma(x[k], w[k][j], acc), whatever the
 * number of rows; the tile's shape changes only which sums run beside each other. 16-bit weights
 * become f32 in registers, exactly; q8 blocks in a buffer, exactly but for one rounding of quant *
 * scale. So a sum of n products errs by at most n 2^-23 of the sum of their sizes, in every format.
 *
 * A product of N rows does 2 N in out operations and reads the panels once per BLOCK_ROWS rows: in
 * out weights of 4, 2, 2 or 34/32 bytes. Rows of x are arranged before (once a product, 8 bytes a
 * number), so that a tile reads one stream of x; INPUT_BLOCK of their inputs stay in the second
 * cache for GROUP_PANELS panels. A single row walks its panels as one stream, which the hardware
 * foresees.
 *
 * `regla bench --preset gpt_neox-160m --weights f32,bf16,q8 --pp 512 --tg 64 --repeat 9`, five runs
 * on 2 threads of a machine of 31 to 61 GB/s and 236 GFLOP/s: of the limit, all of the step (nine
 * tenths of it products), pp512 78 to 80 %, 76 to 80 %, 86 to 93 %; tg64 95 to 97 %, 93 to 96 %, 93
 * to 98 %. regla-160m, tg64 97 to 98 %, 97 %, 95 % where the memory kept its slower pace; 96 to 97
 * %, 82 to 89 %, 75 to 83 % at the faster one, where what lies between the products counts more: a
 * step's q8 products by themselves have 0.95 to 0.97 of the speed of reading at the slower pace and
 * 0.88 to 0.91 at the faster, a single large one 1.01 to 1.02 and 0.96 to 0.99. 16 texts at once:
 * their first tile asks for the weights TILE_AHEAD in advance, 1.11 times as fast as without in
 * bf16 and 1.13 in q8 (regla-160m, steps of both programs in turns; half as far ahead, 0.91). */
#ifndef ENGINE_CPU_KERNELS_PRODUCT_H
#define ENGINE_CPU_KERNELS_PRODUCT_H

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels_elementwise.h"
#include "engine/cpu/kernels_tile.h"
#include "engine/cpu/vector.h"

#include <math.h>
#include <string.h>

enum {
    PAIRS = 16 / LANES,    /* of vectors of a panel's row: columns j and j + 16 */
    ONE_ROW_INPUTS = 4,    /* rows of a panel that one row of x asks for together */
    PAGE_AHEAD = 4096,     /* bytes: a line that shows the hardware the next page of a stream */
    PAGE_STEPS = 16,       /* rows of a panel of halves, 1 KiB, that ask for one such line */
    TILE_AHEAD = 4096,     /* bytes of a panel that its first tile of rows asks for in advance */
    GROUP_PANELS = 4,      /* whose sums are in the making together */
    INPUT_BLOCK = 24 * 32, /* inputs that BLOCK_ROWS rows keep in the second cache for them */
};

/* The sums of a panel and one row of x, in registers: columns as load_pair has them. */
struct row {
    vec sums[2 * PAIRS];
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

/* Two vectors of sums [m, 32] (+)= x [n, m] * w [n, 32], the columns of `pair`; format and m are
 * constants at each call. */
static inline __attribute__((always_inline)) void panel_tile(const enum weight_format format,
                                                             const int m, const float *x, int64_t n,
                                                             const unsigned char *w, int64_t ahead,
                                                             int pair, float *sums, bool add)
{
    vec sum[TILE_ROWS][2], low, high;
    sums += pair * LANES;
#pragma GCC unroll 16
    for (int i = 0; i < m; i++) {
        sum[i][0] = add ? vec_load(sums + i * PANEL) : vec_set(0.0f);
        sum[i][1] = add ? vec_load(sums + i * PANEL + 16) : vec_set(0.0f);
    }
    for (int64_t k = 0; k < n; k++) {
        const unsigned char *row = w + k * (int64_t)row_bytes(format);
        load_pair(format, row, pair, &low, &high);
        for (size_t line = 0; line < row_bytes(format) && pair == 0; line += 64)
            __builtin_prefetch(row + ahead + line, 0, 2);
#pragma GCC unroll 16
        for (int i = 0; i < m; i++) {
            vec input = vec_set(x[k * m + i]);
            sum[i][0] = vec_fma(input, low, sum[i][0]);
            sum[i][1] = vec_fma(input, high, sum[i][1]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < m; i++) {
        vec_store(sums + i * PANEL, sum[i][0]);
        vec_store(sums + i * PANEL + 16, sum[i][1]);
    }
}

/* Adds x [n] * w [n, 32] to the sums of one row, which waits for memory: ONE_ROW_INPUTS rows of the
 * panel are asked for together. The hardware runs ahead of a stream only to the end of a page:
 * halves show it the next one (bf16 1.014 times as fast; f32 0.98, so not there). */
static inline __attribute__((always_inline)) void add_row(const enum weight_format format,
                                                          const float *x, int64_t n,
                                                          const unsigned char *w, struct row *row)
{
    int64_t k = 0;
    for (; k + ONE_ROW_INPUTS <= n; k += ONE_ROW_INPUTS) {
        vec weights[ONE_ROW_INPUTS][2 * PAIRS];
        if (format != WEIGHTS_F32 && k % PAGE_STEPS == 0)
            __builtin_prefetch(w + k * (int64_t)row_bytes(format) + PAGE_AHEAD, 0, 2);
#pragma GCC unroll 8
        for (int i = 0; i < ONE_ROW_INPUTS; i++)
#pragma GCC unroll 8
            for (int u = 0; u < PAIRS; u++)
                load_pair(format, w + (k + i) * (int64_t)row_bytes(format), u, &weights[i][2 * u],
                          &weights[i][2 * u + 1]);
#pragma GCC unroll 8
        for (int i = 0; i < ONE_ROW_INPUTS; i++)
#pragma GCC unroll 8
            for (int u = 0; u < 2 * PAIRS; u++)
                row->sums[u] = vec_fma(vec_set(x[k + i]), weights[i][u], row->sums[u]);
    }
    for (; k < n; k++)
#pragma GCC unroll 8
        for (int u = 0; u < PAIRS; u++) {
            vec low, high;
            load_pair(format, w + k * (int64_t)row_bytes(format), u, &low, &high);
            row->sums[2 * u] = vec_fma(vec_set(x[k]), low, row->sums[2 * u]);
            row->sums[2 * u + 1] = vec_fma(vec_set(x[k]), high, row->sums[2 * u + 1]);
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

/* sums [m, 32] (+)= x [n, m] * w [n, 32], for any m up to TILE_ROWS. */
static inline __attribute__((always_inline)) void panel_rows(const enum weight_format format, int m,
                                                             const float *x, int64_t n,
                                                             const unsigned char *w, int64_t ahead,
                                                             float *sums, bool add)
{
    if (m == 1) {
        struct row row = load_row(add ? sums : NULL);
        add_row(format, x, n, w, &row);
        store_row(&row, sums);
        return;
    }
#define TILE_CASE(rows)                                                                     \
    case rows:                                                                              \
        if (rows <= TILE_ROWS)                                                              \
            panel_tile(format, rows <= TILE_ROWS ? rows : 2, x, n, w, ahead, p, sums, add); \
        break;
    for (int p = 0; p < PAIRS; p++)
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

static void panel_rows_f32(int m, const float *x, int64_t n, const unsigned char *w, int64_t ahead,
                           float *sums, bool add)
{
    panel_rows(WEIGHTS_F32, m, x, n, w, ahead, sums, add);
}

static void panel_rows_bf16(int m, const float *x, int64_t n, const unsigned char *w, int64_t ahead,
                            float *sums, bool add)
{
    panel_rows(WEIGHTS_BF16, m, x, n, w, ahead, sums, add);
}

static void panel_rows_f16(int m, const float *x, int64_t n, const unsigned char *w, int64_t ahead,
                           float *sums, bool add)
{
    panel_rows(WEIGHTS_F16, m, x, n, w, ahead, sums, add);
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

/* out [4, m]: four inputs of four rows. */
static inline __attribute__((always_inline)) void arrange_fours(const float *x, int64_t x_stride,
                                                                int m, float *out)
{
    typedef float four __attribute__((vector_size(16)));
    four row[4], pair[4];
    for (int i = 0; i < 4; i++)
        memcpy(&row[i], x + i * x_stride, sizeof row[i]);
    for (int i = 0; i < 2; i++) {
        pair[i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 0, 4, 1, 5);
        pair[2 + i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; i++) {
        four first = __builtin_shufflevector(pair[2 * i], pair[2 * i + 1], 0, 1, 4, 5);
        four second = __builtin_shufflevector(pair[2 * i], pair[2 * i + 1], 2, 3, 6, 7);
        memcpy(out + 2 * i * m, &first, sizeof first);
        memcpy(out + (2 * i + 1) * m, &second, sizeof second);
    }
}

/* out [n, m]: one tile. */
static void arrange_tile(const float *x, int64_t x_stride, int m, int64_t n, float *out)
{
    int fours = m / 4 * 4;
    int64_t k = 0;
    for (; k + 4 <= n; k += 4) {
        for (int i = 0; i < fours; i += 4)
            arrange_fours(x + i * x_stride + k, x_stride, m, out + k * m + i);
        for (int i = fours; i < m; i++)
            for (int j = 0; j < 4; j++)
                out[(k + j) * m + i] = x[i * x_stride + k + j];
    }
    for (; k < n; k++)
        for (int i = 0; i < m; i++)
            out[k * m + i] = x[i * x_stride + k];
}

static void kernel_arrange(const float *x, int64_t x_stride, int rows, int64_t n, float *out)
{
    for (int r = 0, m; r < rows; r += m, out += m * n) {
        m = tile_height(rows - r);
        arrange_tile(x + r * x_stride, x_stride, m, n, out);
    }
}

typedef void panel_rows_function(int m, const float *x, int64_t n, const unsigned char *w,
                                 int64_t ahead, float *sums, bool add);

/* A panel, counted over all heads; not of q8. */
static const unsigned char *panel_at(const struct weight *weight, int64_t panel)
{
    return weight->data + (size_t)panel * weight->panel_bytes;
}

/* sums [rows, 32] (+)= inputs [k, end) of x, as arranged, times a panel, counted over all heads;
 * rows <= BLOCK_ROWS. */
static void panel_sums(const struct weight *weight, int rows, const float *x, int64_t k,
                       int64_t end, int64_t panel, float *sums)
{
    enum weight_format format = weight->format;
    panel_rows_function *function = format == WEIGHTS_BF16  ? panel_rows_bf16
                                    : format == WEIGHTS_F16 ? panel_rows_f16
                                                            : panel_rows_f32;
    float unpacked[32][PANEL];
    int64_t n = end - k;
    for (; k < end; k += n) {
        const unsigned char *w = (const unsigned char *)unpacked;
        if (format == WEIGHTS_Q8) {
            n = end - k < 32 ? end - k : 32;
            unpack_q8(q8_panel(weight, panel) + k / 32 * Q8_PAIR, unpacked);
        } else {
            w = panel_at(weight, panel) + k * (int64_t)row_bytes(format);
        }
        for (int r = 0, m; r < rows; r += m) {
            m = tile_height(rows - r);
            function(m, x + r * weight->in + k * m, n, w, r == 0 ? TILE_AHEAD : 0, sums + r * PANEL,
                     k > 0);
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

/* Rows [first, first + rows) of a panel whose sums are there. */
static void finish_panel(const struct product *p, int first, int rows, int64_t panel, float *sums)
{
    const struct weight *weight = p->weight;
    int64_t column = panel * PANEL;
    int64_t valid = weight->out - column < PANEL ? weight->out - column : PANEL;
    if (valid <= 0) /* there to make a pair */
        return;
    const float *bias = weight->bias == NULL ? NULL : weight->bias + p->head * weight->out + column;
    for (int i = 0; i < rows; i++)
        finish_row(p, bias, sums + i * PANEL, valid, p->y + (first + i) * p->y_stride + column);
}

/* A panel of the product's head, counted over all heads. */
static inline int64_t panel_number(const struct product *p, int64_t panel)
{
    return p->head * p->weight->panels + panel;
}

/* Asks for what the end of one row's panel will want, while its weights come. */
static inline void prepare_finish(const struct product *p, int64_t panel)
{
    enum { LINE = 64 / sizeof(float) };
    const struct weight *weight = p->weight;
    for (int64_t column = panel * PANEL; column < (panel + 1) * PANEL && column < weight->out;
         column += LINE) {
        __builtin_prefetch(p->y + column, 1);
        if (weight->bias != NULL)
            __builtin_prefetch(weight->bias + p->head * weight->out + column);
    }
}

/* The end of one row's panel, without a way through memory where there is little to do. */
static inline __attribute__((always_inline)) void finish_sums(const struct product *p,
                                                              int64_t panel, struct row *row)
{
    const struct weight *weight = p->weight;
    int64_t column = panel * PANEL;
    if (weight->out - column < PANEL || p->activation != FORMULA_IDENTITY) {
        float sums[PANEL];
        store_row(row, sums);
        finish_panel(p, 0, 1, panel, sums);
        return;
    }
    float *y = p->y + column;
    if (weight->bias != NULL)
#pragma GCC unroll 8
        for (int u = 0; u < 2 * PAIRS; u++)
            row->sums[u] += vec_load(weight->bias + p->head * weight->out + column + row_column(u));
    if (p->accumulate)
#pragma GCC unroll 8
        for (int u = 0; u < 2 * PAIRS; u++)
            row->sums[u] += vec_load(y + row_column(u));
    store_row(row, y);
}

/* One row: its panels are one stream from memory. A call, sums that go through memory or an
 * activation between two of them hold it up. */
static inline __attribute__((always_inline)) void product_row(const enum weight_format format,
                                                              const struct product *p)
{
    for (int64_t panel = p->first; panel < p->first + p->count; panel++) {
        struct row row = load_row(NULL);
        prepare_finish(p, panel);
        add_row(format, p->x, p->weight->in, panel_at(p->weight, panel_number(p, panel)), &row);
        finish_sums(p, panel, &row);
    }
}

static void kernel_product(const struct product *p)
{
    if (p->num_rows == 1 && p->weight->format != WEIGHTS_Q8) {
        if (p->weight->format == WEIGHTS_F32)
            product_row(WEIGHTS_F32, p);
        else if (p->weight->format == WEIGHTS_BF16)
            product_row(WEIGHTS_BF16, p);
        else
            product_row(WEIGHTS_F16, p);
        return;
    }
    float sums[GROUP_PANELS][BLOCK_ROWS * PANEL];
    const int64_t in = p->weight->in, last = p->first + p->count;
    const bool q8 = p->weight->format == WEIGHTS_Q8; /* a pair's blocks, as they lie */
    const int64_t together = q8 ? Q8_PAIR : GROUP_PANELS;
    for (int r = 0, rows; r < p->num_rows; r += rows) {
        rows = p->num_rows - r < BLOCK_ROWS ? p->num_rows - r : BLOCK_ROWS;
        for (int64_t first = p->first; first < last; first += together) {
            int64_t panels = last - first < together ? last - first : together;
            /* few rows are bound by the panel's stream, which is best not broken */
            int64_t step = q8 ? 32 : rows > 2 * TILE_ROWS ? INPUT_BLOCK : in;
            for (int64_t k = 0; k < in; k += step)
                for (int64_t i = 0; i < panels; i++)
                    panel_sums(p->weight, rows, p->x + r * in, k, in - k < step ? in : k + step,
                               panel_number(p, first + i), sums[i]);
            for (int64_t i = 0; i < panels; i++)
                finish_panel(p, r, rows, first + i, sums[i]);
        }
    }
}

#endif
