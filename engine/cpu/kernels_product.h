/* SPDX-License-Identifier: Apache-2.0 */
/* Multiplies rows by packed weights of any format: register tiles of rows against panels.
 *
 * Each output has one running sum over the input, in order: acc = fma(x[k], w[k][j], acc). The
 * number of rows and the tile's shape change only which sums run beside each other. 16-bit weights
 * become f32 in registers, exactly; q8, q6 and q4 have such a sum per block (kernels_blocks.h). So
 * a sum of n products errs by at most n 2^-23 of the sum of their sizes, in every format; in q4 of
 * the sizes of their quants and minima.
 *
 * A product of N rows does 2 N in out operations and reads the panels once per BLOCK_ROWS rows: in
 * out weights of 4, 2, 2, 34/32, 28/32 or 20/32 bytes. x is arranged first, once a product (8 bytes
 * a number), so that a tile reads one stream of it. INPUT_BLOCK inputs of the rows stay in the
 * second cache for GROUP_PANELS panels; where there are no more, the sums of a pair of panels are
 * finished in the first. A single row walks its panels as one stream and prefetches (ahead.h).
 *
 * Figures, and what was tried instead: loadtest/FIGURES.md, "Choices of the kernels". */
#ifndef ENGINE_CPU_KERNELS_PRODUCT_H
#define ENGINE_CPU_KERNELS_PRODUCT_H

#include "engine/cpu/kernels_blocks.h"
#include "engine/cpu/kernels_elementwise.h"

enum {
    FEW_ROWS = MANY_REGISTERS ? 24 : 18, /* bound by the stream of panels */
    FEW_BLOCK = 128,                     /* inputs over which all passes of few rows go */
    GROUP_PANELS = 4,                    /* whose sums are in the making together */
    INPUT_BLOCK = 24 * 32, /* inputs that BLOCK_ROWS rows keep in the second cache for them */
};

/* Tiles of at most TILE_ROWS rows, as even as they come. */
static int tile_height(int rows)
{
    int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    return (rows + tiles - 1) / tiles;
}

/* out [4, m]: four inputs of four rows. */
static inline __attribute__((always_inline)) void arrange_fours(const float *x, int64_t x_stride,
                                                                int m, float factor, float *out)
{
    typedef float four __attribute__((vector_size(16)));
    four row[4], pair[4];
    for (int i = 0; i < 4; i++) {
        memcpy(&row[i], x + i * x_stride, sizeof row[i]);
        row[i] *= factor;
    }
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

/* Other threads have just written x [m, n] and read what was arranged of the product before: lines
 * that come one by one where many stores wait for each. So all of a tile's are asked for first, x
 * by prefetches and the lines of out [count] by stores: a prefetch for writing made no difference.
 */
static inline __attribute__((always_inline)) void
claim_lines(const float *x, int64_t x_stride, int m, int64_t n, void *out, int64_t count)
{
    const int64_t line = LINE / (int64_t)sizeof *x;
    for (int i = 0; i < m; i++)
        for (int64_t k = 0; k < n; k += line)
            __builtin_prefetch(x + i * x_stride + k);
    volatile int32_t *dwords = out;
    for (int64_t at = 0; at < count; at += line)
        dwords[at] = 0;
}

/* out [n, m]: one tile. */
static void arrange_tile(const float *x, int64_t x_stride, int m, int64_t n, float factor,
                         float *out)
{
    int fours = m / 4 * 4;
    int64_t k = 0;
    claim_lines(x, x_stride, m, n, out, n * m);
    if (m == 1)
        for (; k < n; k++)
            out[k] = x[k] * factor;
    for (; k + 4 <= n; k += 4) {
        for (int i = 0; i < fours; i += 4)
            arrange_fours(x + i * x_stride + k, x_stride, m, factor, out + k * m + i);
        for (int i = fours; i < m; i++)
            for (int j = 0; j < 4; j++)
                out[(k + j) * m + i] = x[i * x_stride + k + j] * factor;
    }
    for (; k < n; k++)
        for (int i = 0; i < m; i++)
            out[k * m + i] = x[i * x_stride + k] * factor;
}

/* What products of a format multiply x with beforehand. */
#define INPUT_OF_FLOATS(format) 1.0f
#define INPUT_OF_HALVES(format) 1.0f
#define INPUT_OF_INTEGERS(format) format##_INPUT
#define INPUT_OF(value, name, ending, kind, ...) [value] = INPUT_OF_##kind(value),
static const float input_factors[WEIGHT_FORMAT_COUNT] = {WEIGHT_FORMATS(INPUT_OF)};

/* out [m] = the sums over n inputs of a tile x [n, m]: each of four sums of every fourth input. */
static void sum_tile(const float *x, int m, int64_t n, float *out)
{
    float sums[4][TILE_ROWS] = {0};
    for (int64_t k = 0; k < n; k++)
        for (int i = 0; i < m; i++)
            sums[k % 4][i] += x[k * m + i];
    for (int i = 0; i < m; i++)
        out[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
}

static void kernel_arrange(const struct weight *weight, const float *x, int64_t x_stride, int rows,
                           int64_t first, int64_t end, float *out)
{
    const bool blocks = weight_format_block(weight->format) > 1;
    const int64_t block = blocks ? weight_format_block(weight->format) : end - first;
    const float factor = input_factors[weight->format];
    for (int64_t k = first, count; k < end; k += count) {
        count = end - k < block ? end - k : block;
        for (int r = 0, m; r < rows; r += m) {
            m = tile_height(rows - r);
            float *tile = blocks ? out + rows * arranged_before(weight->format, k) +
                                       r * arranged_inputs(weight->format, count)
                                 : out + r * weight->in + m * k;
            arrange_tile(x + r * x_stride + k, x_stride, m, count, factor, tile);
            if (weight_format_minimum(weight->format))
                sum_tile(tile, m, count, tile + count * m);
        }
    }
}

typedef void panel_rows_function(int m, const float *x, int64_t n, const unsigned char *w,
                                 struct ahead ahead, float *sums, bool add);

/* sums [panels][BLOCK_ROWS][32], of which `rows` rows, (+)= n inputs of x times w. A tile of rows
 * from row r on, as arranged, begins at x + r * x_stride; `skipped` of its inputs are not meant.
 * Each pass over w asks for its part of what lies ahead, ahead.step bytes per input in all: if only
 * the first one asked, memory would wait for the others (16 texts in bf16: 0.90). */
static void block_sums(panel_rows_function *function, int rows, const float *x, int64_t x_stride,
                       int64_t skipped, int64_t n, const void *w, struct ahead ahead, float *sums,
                       bool add)
{
    ahead.step /= (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int r = 0, m; r < rows; r += m, ahead.at += n * ahead.step) {
        m = tile_height(rows - r);
        function(m, x + r * x_stride + skipped * m, n, w, ahead, sums + r * PANEL, add);
    }
}

/* Many rows of x against n inputs of two panels of two bytes: the first tile writes down what they
 * are in f32, and the others read that. */
static inline __attribute__((always_inline)) void
wide_sums(const enum weight_format format, int rows, const float *x, int64_t x_stride,
          int64_t skipped, int64_t n, const unsigned char *w, struct ahead ahead, float *sums,
          bool add)
{
    _Alignas(LINE) float wide[INPUT_BLOCK][PANEL];
    const int m = tile_height(rows);
    const int passes = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int pair = 0; pair < PANEL_PAIR; pair++, ahead.at += n * ROW_BYTES / PANEL_PAIR) {
        float *to = sums + pair * PANEL_SUMS;
        struct ahead first = {ahead.at, ROW_BYTES / PANEL_PAIR / passes, false};
        FOR_ROWS(m, TILE_ROWS / 2 + 1, TILE_ROWS,
                 panel_tile(format, M, 1, x + skipped * M, n, w, (struct block_end){0}, first, pair,
                            wide[0], sums, add))
        first.at += n * first.step;
        block_sums(panel_rows_f32, rows - m, x + m * x_stride, x_stride, skipped, n, wide,
                   (struct ahead){first.at, first.step * (passes - 1), false}, to + m * PANEL, add);
    }
}

static void wide_sums_bf16(int rows, const float *x, int64_t x_stride, int64_t skipped, int64_t n,
                           const unsigned char *w, struct ahead ahead, float *sums, bool add)
{
    wide_sums(WEIGHTS_BF16, rows, x, x_stride, skipped, n, w, ahead, sums, add);
}

static void wide_sums_f16(int rows, const float *x, int64_t x_stride, int64_t skipped, int64_t n,
                          const unsigned char *w, struct ahead ahead, float *sums, bool add)
{
    wide_sums(WEIGHTS_F16, rows, x, x_stride, skipped, n, w, ahead, sums, add);
}

/* Rows of x against inputs [k, end) of two panels in blocks. `function` takes a block as f32. */
static inline __attribute__((always_inline)) void quant_sums(const enum weight_format format,
                                                             panel_rows_function *function,
                                                             const struct weight *weight, int rows,
                                                             const float *x, int64_t k, int64_t end,
                                                             int64_t panel, float *sums)
{
    struct block_numbers numbers;
    for (; k < end; k += BLOCK)
        for (int i = 0; i < PANEL_PAIR; i++) {
            const size_t at = (size_t)(k / BLOCK * PANEL_PAIR) * row_bytes(format);
            const unsigned char *w = panel_at(weight, panel + i) + at, *ahead = w + TILE_AHEAD;
            const float *inputs = x + rows * arranged_before(format, k);
            int64_t n = end - k < BLOCK ? end - k : BLOCK;
            for (size_t line = 0; line < row_bytes(format); line += LINE)
                __builtin_prefetch(ahead + line, 0, TILE_CACHES);
            if (rows <= QUANT_ROWS) {
                quant_rows(format, rows, inputs, n, w, sums + i * PANEL_SUMS, k > 0);
                continue;
            }
            unpack_block(format, w, &numbers);
            block_sums(function, rows, inputs, arranged_inputs(format, n), 0, n, &numbers,
                       (struct ahead){ahead, 0, false}, sums + i * PANEL_SUMS, k > 0);
        }
}

/* NAME_sums of each format in blocks. */
#define SUMS_OF_FLOATS(format, name)
#define SUMS_OF_HALVES(format, name)
#define SUMS_OF_INTEGERS(format, name)                                                            \
    static void name##_sums(const struct weight *weight, int rows, const float *x, int64_t k,     \
                            int64_t end, int64_t panel, float *sums)                              \
    {                                                                                             \
        quant_sums(format, weight_format_minimum(format) ? panel_rows_minima : panel_rows_scales, \
                   weight, rows, x, k, end, panel, sums);                                         \
    }
#define SUMS_OF(value, name, ending, kind, ...) SUMS_OF_##kind(value, ending)
WEIGHT_FORMATS(SUMS_OF)

/* How rows of x meet panels of a format. */
struct product_way {
    void (*row)(const struct product *); /* one row */
    int inputs;                          /* of x that lie in one float */
    /* Some rows, of a format whose weights stand alone. wide: many, where weights become f32 once;
     * or NULL. */
    panel_rows_function *rows;
    void (*wide)(int rows, const float *x, int64_t x_stride, int64_t skipped, int64_t n,
                 const unsigned char *w, struct ahead ahead, float *sums, bool add);
    /* Some rows, of a format in blocks. */
    void (*blocks)(const struct weight *weight, int rows, const float *x, int64_t k, int64_t end,
                   int64_t panel, float *sums);
};

/* sums [panels][BLOCK_ROWS][32], of which `rows` rows, (+)= inputs [k, end) of x, as arranged,
 * times the panels that lie in turns from `panel` on, counted over all heads. */
static void panel_sums(const struct product_way *way, const struct weight *weight, int rows,
                       const float *x, int64_t k, int64_t end, int64_t panel, float *sums)
{
    const enum weight_format format = weight->format;
    if (way->blocks != NULL) {
        way->blocks(weight, rows, x, k, end, panel, sums);
        return;
    }
    const unsigned char *w = panel_at(weight, panel) + k * ROW_BYTES;
    const bool once = one_pass(format, rows);
    int64_t distance = once ? TILE_AHEAD : (end - k) * ROW_BYTES;
    if (WIDENS && way->wide != NULL && rows > TILE_ROWS) {
        const struct ahead ahead = {w + distance, ROW_BYTES, false};
        way->wide(rows, x, weight->in, k, end - k, w, ahead, sums, k > 0);
        return;
    }
    block_sums(way->rows, rows, x, weight->in, k / way->inputs, end - k, w,
               (struct ahead){w + distance, ROW_BYTES, once}, sums, k > 0);
}

/* Bias, activation and residual of sums [rows][32], of which n columns, a constant where it is all
 * of them, go to y; the activation takes them as one array. */
static inline __attribute__((always_inline)) void
finish_rows(const struct product *p, const float *bias, const int64_t n, float *sums, float *y)
{
    const int rows = p->num_rows;
    if (bias != NULL)
        for (int i = 0; i < rows; i++)
            for (int64_t j = 0; j < n; j++)
                sums[i * PANEL + j] += bias[j];
    if (p->activation != FORMULA_IDENTITY)
        map_row(p->activation, sums, sums, NULL, 0.0f, rows * PANEL);
    for (int i = 0; i < rows; i++, sums += PANEL, y += p->y_stride)
        if (p->accumulate)
            for (int64_t j = 0; j < n; j++)
                y[j] += sums[j];
        else
            memcpy(y, sums, (size_t)n * sizeof(float));
}

/* The rows of a panel whose sums are there. */
static void finish_panel(const struct product *p, int64_t panel, float *sums)
{
    const struct weight *weight = p->weight;
    int64_t column = panel * PANEL;
    int64_t valid = weight->out - column;
    if (valid <= 0) /* there to make a pair */
        return;
    const float *bias = weight->bias == NULL ? NULL : weight->bias + p->head * weight->out + column;
    if (valid < PANEL)
        finish_rows(p, bias, valid, sums, p->y + column);
    else
        finish_rows(p, bias, PANEL, sums, p->y + column);
}

/* A panel of the product's head, counted over all heads. */
static inline int64_t panel_number(const struct product *p, int64_t panel)
{
    return p->head * p->weight->panels + panel;
}

/* Asks for what the end of one row's panel will want, while its weights come. Inlined always: gcc
 * deletes calls of a function that does nothing but prefetch. */
static inline __attribute__((always_inline)) void prepare_finish(const struct product *p,
                                                                 int64_t panel)
{
    const int64_t line = LINE / sizeof(float);
    const struct weight *weight = p->weight;
    for (int64_t column = panel * PANEL; column < (panel + 1) * PANEL && column < weight->out;
         column += line) {
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
        finish_panel(p, panel, sums);
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

/* product_row_NAME, of one row: its panels are one stream from memory. A call, sums that go through
 * memory or an activation between two of them hold it up. ADD(format, x, n, w, rows) adds x [n] * w
 * to the sums of the row [panels]. */
#define PRODUCT_ROW(name, format, ADD)                                                   \
    static void product_row_##name(const struct product *p)                              \
    {                                                                                    \
        const int together = panels_together(format);                                    \
        for (int64_t panel = p->first; panel < p->first + p->count; panel += together) { \
            struct row rows[PANEL_PAIR];                                                 \
            _Pragma("GCC unroll 2") for (int i = 0; i < together; i++)                   \
            {                                                                            \
                rows[i] = zero_row();                                                    \
                prepare_finish(p, panel + i);                                            \
            }                                                                            \
            const unsigned char *w = panel_at(p->weight, panel_number(p, panel));        \
            ADD(format, p->x, p->weight->in, w, rows);                                   \
            _Pragma("GCC unroll 2") for (int i = 0; i < together; i++)                   \
                finish_sums(p, panel + i, &rows[i]);                                     \
        }                                                                                \
    }
#define ADD_OF_FLOATS add_row
#define ADD_OF_HALVES add_row
#define ADD_OF_INTEGERS add_block_row
#define PRODUCT_ROW_OF(value, name, ending, kind, ...) PRODUCT_ROW(ending, value, ADD_OF_##kind)
WEIGHT_FORMATS(PRODUCT_ROW_OF)

/* Asks for what the ends of the rows' panels will write, while their weights come. */
static inline void prepare_rows(const struct product *p, int64_t panel, int64_t panels)
{
    int64_t column = panel * PANEL, end = column + panels * PANEL;
    end = end < p->weight->out ? end : p->weight->out;
    for (int i = 0; i < p->num_rows; i++)
        for (int64_t j = column; j < end; j += LINE / (int64_t)sizeof(float))
            __builtin_prefetch(p->y + i * p->y_stride + j, 1);
}

/* 2 rows or more. */
static void product_rows(const struct product_way *way, const struct product *p)
{
    float sums[GROUP_PANELS][PANEL_SUMS];
    const int rows = p->num_rows;
    const int64_t in = p->weight->in, last = p->first + p->count;
    const int together = panels_together(p->weight->format);
    const bool few = rows <= FEW_ROWS; /* whose stream is best not broken */
    const int64_t group = few || in <= INPUT_BLOCK ? together : GROUP_PANELS;
    const int64_t step = one_pass(p->weight->format, rows) ? in : few ? FEW_BLOCK : INPUT_BLOCK;
    for (int64_t first = p->first; first < last; first += group) {
        int64_t panels = last - first < group ? last - first : group;
        prepare_rows(p, first, panels);
        for (int64_t k = 0; k < in; k += step)
            for (int64_t i = 0; i < panels; i += together)
                panel_sums(way, p->weight, rows, p->x, k, in - k < step ? in : k + step,
                           panel_number(p, first + i), sums[i]);
        for (int64_t i = 0; i < panels; i++)
            finish_panel(p, first + i, sums[i]);
    }
}

static void product_by(const struct product_way *way, const struct product *p)
{
    if (p->num_rows == 1)
        way->row(p);
    else
        product_rows(way, p);
}

#define WAY_OF_FLOATS(name) .rows = panel_rows_##name
#define WAY_OF_HALVES(name) .rows = panel_rows_##name, .wide = wide_sums_##name
#define WAY_OF_INTEGERS(name) .blocks = name##_sums
#define WAY_OF(value, name, ending, kind, ...) \
    [value] = {product_row_##ending, 1, WAY_OF_##kind(ending)},
static void kernel_product(const struct product *p)
{
    static const struct product_way ways[WEIGHT_FORMAT_COUNT] = {WEIGHT_FORMATS(WAY_OF)};
    product_by(&ways[p->weight->format], p);
}

#endif
