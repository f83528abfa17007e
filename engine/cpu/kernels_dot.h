/* SPDX-License-Identifier: Apache-2.0 */
/* Products with q8 and q4 weights on Arm's CPUs that multiply bytes by fours (SDOT), in exact
 * integers. Sums, error and bits are those of kernels_vnni.h: what differs is that Arm multiplies
 * signed bytes alone, so that 128 is taken out of q8's quants at once, and that vectors have four
 * outputs. q6 becomes f32 (kernels_blocks.h). CPUs that multiply matrices of bytes take tiles by
 * kernels_matrices.h, with the same bits. */
#ifndef ENGINE_CPU_KERNELS_DOT_H
#define ENGINE_CPU_KERNELS_DOT_H

#include "engine/cpu/kernels_fixed.h"

/* Formats that are multiplied so, a bit each. */
#define DOT_FORMATS (1u << WEIGHTS_Q8 | 1u << WEIGHTS_Q4)

enum {
    DOT_COLUMNS = 2 * LANES, /* outputs of a tile */
    DOT_VECTORS = 4,         /* vectors of outputs of one row, whose sums are in registers */
};

/* The four-th four inputs of LANES outputs of a block, from a column on. */
INLINE int8x16_t dot_quants(const enum weight_format format, const unsigned char *block, int four,
                            int column)
{
    const int parts = group_inputs(format) / 4;
    const uint8x16_t bytes = vld1q_u8(group_dwords(format, block, four / parts)[column]);
    if (format != WEIGHTS_Q4)
        return vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)));
    return vreinterpretq_s8_u8(four % parts == 0 ? vandq_u8(bytes, vdupq_n_u8(15))
                                                 : vshrq_n_u8(bytes, 4));
}

/* Four digits of x, for every output. */
INLINE int8x16_t dot_input(const int32_t *x)
{
    return vreinterpretq_s8_s32(vdupq_n_s32(*x));
}

/* What the second digits of the wide four of one of m rows add to LANES outputs of a block. */
INLINE int32x4_t dot_wide(const enum weight_format format, const int m, const int32_t *x,
                          const unsigned char *block, int column)
{
    const int32_t *wide = x + fixed_wide(m);
    uint8x16_t bytes = vld1q_u8(block + wide[0] + column * (int)sizeof *wide);
    if (format == WEIGHTS_Q4)
        bytes = vandq_u8(vshlq_u8(bytes, vdupq_n_s8((int8_t)(wide[3 * m] - 8))), vdupq_n_u8(15));
    else
        bytes = veorq_u8(bytes, vdupq_n_u8(128));
    return vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), vreinterpretq_s8_u8(bytes), dot_input(wide + m)),
                       8);
}

/* What a block adds to outputs, without the scales. p: the exact sums by digit; only the sum of the
 * lower two is right. */
INLINE vec dot_value(const int digits, const int32x4_t *p)
{
    int32x4_t low = digits > 1 ? vaddq_s32(vshlq_n_s32(p[1], 8), p[0]) : p[0];
    if (digits < 3)
        return vcvtq_f32_s32(low);
    return vec_fma(vcvtq_f32_s32(p[2]), vec_set(65536.0f), vcvtq_f32_s32(low));
}

/* LANES scales, or minima, of a block. */
INLINE vec dot_ends(const enum weight_format format, const unsigned char *block, bool minima,
                    int column)
{
    const void *w = block;
    const struct q4_block *q4 = w;
    const uint16_t *scales =
        format == WEIGHTS_Q4 ? q4->scales : ((const struct q8_block *)w)->scales;
    return vec_load_f16((minima ? q4->minima : scales) + column);
}

/* The sums of LANES outputs after a block, of which `value` is what dot_value says. x: the dwords
 * of one of m rows. */
INLINE vec dot_end(const enum weight_format format, const int m, vec value, const int32_t *x,
                   const unsigned char *w, int column, vec sum)
{
    const vec scale = vreinterpretq_f32_s32(vdupq_n_s32(x[0]));
    if (weight_format_minimum(format))
        sum = vec_fma(dot_ends(format, w, true, column) * vec_set(MINIMA_SCALE),
                      vreinterpretq_f32_s32(vdupq_n_s32(x[m])), sum);
    return vec_fma(value, dot_ends(format, w, false, column) * scale, sum);
}

/* Adds a block to the sums of one row, and prefetches the one that lies Q8_AHEAD later. */
INLINE void dot_row(const enum weight_format format, const int digits, const int32_t *x,
                    const unsigned char *w, struct row *row)
{
    for (int line = 0; line < (int)row_bytes(format); line += LINE)
        ask_once((const char *)w + line + Q8_AHEAD, Q8_AHEAD);
#pragma GCC unroll 2
    for (int u = 0; u < 2 * PAIRS; u += DOT_VECTORS) {
        int32x4_t p[DOT_VECTORS][MOST_DIGITS] = {0};
#pragma GCC unroll 8
        for (int four = 0; four < 8; four++)
#pragma GCC unroll 4
            for (int v = 0; v < DOT_VECTORS; v++) {
                const int8x16_t quants = dot_quants(format, w, four, row_column(u + v));
#pragma GCC unroll 3
                for (int d = 0; d < digits; d++)
                    p[v][d] = vdotq_s32(p[v][d], quants, dot_input(x + fixed_four(1, d, four)));
            }
#pragma GCC unroll 4
        for (int v = 0; v < DOT_VECTORS; v++) {
            if (digits == 1)
                p[v][0] = vaddq_s32(p[v][0], dot_wide(format, 1, x, w, row_column(u + v)));
            row->sums[u + v] = dot_end(format, 1, dot_value(digits, p[v]), x, w, row_column(u + v),
                                       row->sums[u + v]);
        }
    }
}

/* One row, whose panels come in pairs. */
INLINE void product_row_dot(const int digits, const enum weight_format format,
                            const struct product *p)
{
    const int64_t blocks = panel_rows_of(format, p->weight->in);
    const int32_t *x = (const int32_t *)(const void *)p->x;
    for (int64_t panel = p->first; panel < p->first + p->count; panel += PANEL_PAIR) {
        const unsigned char *w = panel_at(p->weight, panel_number(p, panel));
        struct row rows[PANEL_PAIR];
        for (int i = 0; i < PANEL_PAIR; i++) {
            prepare_finish(p, panel + i);
            rows[i] = zero_row();
        }
        for (int64_t b = 0; b < blocks; b++)
            for (int i = 0; i < PANEL_PAIR; i++, w += row_bytes(format))
                dot_row(format, digits, x + b * fixed_words(digits), w, &rows[i]);
        for (int i = 0; i < PANEL_PAIR; i++)
            finish_sums(p, panel + i, &rows[i]);
    }
}

#if FOR_MATRICES
#include "engine/cpu/kernels_matrices.h"
#else
/* values [m][2]: what a block adds to DOT_COLUMNS outputs of m rows. */
INLINE void dot_values(const enum weight_format format, const int digits, const int m,
                       const int32_t *x, const unsigned char *w, int column,
                       vec values[FIXED_ROWS][2])
{
    int32x4_t p[FIXED_ROWS][2][MOST_DIGITS] = {0};
#pragma GCC unroll 8
    for (int four = 0; four < 8; four++) {
        const int8x16_t low = dot_quants(format, w, four, column);
        const int8x16_t high = dot_quants(format, w, four, column + LANES);
#pragma GCC unroll 12
        for (int i = 0; i < m; i++)
#pragma GCC unroll 3
            for (int d = 0; d < digits; d++) {
                const int8x16_t input = dot_input(x + fixed_four(m, d, four) + i);
                p[i][0][d] = vdotq_s32(p[i][0][d], low, input);
                p[i][1][d] = vdotq_s32(p[i][1][d], high, input);
            }
    }
#pragma GCC unroll 24
    for (int i = 0; i < 2 * m; i++) {
        int32x4_t *sums = p[i / 2][i % 2];
        if (digits == 1)
            sums[0] = vaddq_s32(sums[0], dot_wide(format, m, x + i / 2, w, column + i % 2 * LANES));
        values[i / 2][i % 2] = dot_value(digits, sums);
    }
}
#endif

/* sums [m, 32] (+)= x [m] * w, a block each; format, digits and m are constants at each call. */
INLINE void dot_block(const enum weight_format format, const int digits, const int m,
                      const int32_t *x, const unsigned char *w, bool first, float *sums)
{
    for (int column = 0; column < PANEL; column += DOT_COLUMNS) {
        vec values[FIXED_ROWS][2];
        dot_values(format, digits, m, x, w, column, values);
#pragma GCC unroll 24
        for (int i = 0; i < 2 * m; i++) {
            const int at = column + i % 2 * LANES;
            float *sum = sums + i / 2 * PANEL + at;
            vec_store(sum, dot_end(format, m, values[i / 2][i % 2], x + i / 2, w, at,
                                   first ? vec_set(0.0f) : vec_load(sum)));
        }
    }
}

/* m rows of sums [panels, BLOCK_ROWS, 32]: x [m, n blocks] * w [n, PANEL_PAIR], one panel or both
 * of the pair; `ahead` asks for what one reads TILE_AHEAD later. */
INLINE void dot_tile(const enum weight_format format, const int digits, const int m,
                     const int32_t *x, int64_t n, const unsigned char *pair, int panels, bool ahead,
                     float *sums)
{
    const size_t bytes = row_bytes(format);
    for (int64_t b = 0; b < n; b++, x += m * fixed_words(digits))
        for (int panel = 0; panel < panels; panel++) {
            const unsigned char *w = pair + (size_t)(b * PANEL_PAIR + panel) * bytes;
            for (size_t line = 0; ahead && line < bytes; line += LINE)
                __builtin_prefetch(w + TILE_AHEAD + line, 0, TILE_CACHES);
            dot_block(format, digits, m, x, w, b == 0, sums + panel * PANEL_SUMS);
        }
}

INLINE void dot_rows(const enum weight_format format, const int digits, int m, const int32_t *x,
                     int64_t n, const unsigned char *pair, int panels, bool ahead, float *sums)
{
    FOR_ROWS(m, 1, TILE_ROWS,
             if (M <= fixed_rows_of(format, digits))
                 dot_tile(format, digits, M, x, n, pair, panels, ahead, sums))
}

/* The first tile of rows loads both panels as one stream; the others find each panel in the first
 * cache. */
INLINE void product_rows_dot(const int digits, const enum weight_format format,
                             const struct product *p)
{
    const int most = fixed_rows_of(format, digits), rows = p->num_rows,
              m = rows < most ? rows : most;
    const int32_t *x = (const int32_t *)(const void *)p->x;
    const int64_t blocks = panel_rows_of(format, p->weight->in);
    float sums[PANEL_PAIR][PANEL_SUMS];
    for (int64_t panel = p->first; panel < p->first + p->count; panel += PANEL_PAIR) {
        const unsigned char *w = panel_at(p->weight, panel_number(p, panel));
        dot_rows(format, digits, m, x, blocks, w, PANEL_PAIR, true, sums[0]);
        for (int j = 0; j < PANEL_PAIR; j++, w += row_bytes(format))
            for (int i = m; i < rows; i += most)
                dot_rows(format, digits, rows - i < most ? rows - i : most, x + i * p->x_stride,
                         blocks, w, 1, false, sums[j] + i * PANEL);
        for (int i = 0; i < PANEL_PAIR; i++)
            finish_panel(p, panel + i, sums[i]);
    }
}

INLINE void product_dot(const enum weight_format format, const struct product *p)
{
    if (p->num_rows == 1)
        FOR_DIGITS(product_row_dot, p->weight, format, p)
    else
        FOR_DIGITS(product_rows_dot, p->weight, format, p)
}

static void kernel_product_dot(const struct product *p)
{
    if (p->weight->format == WEIGHTS_Q8)
        product_dot(WEIGHTS_Q8, p);
    else if (p->weight->format == WEIGHTS_Q4)
        product_dot(WEIGHTS_Q4, p);
#if FOR_MATRICES
    else if (p->weight->format == WEIGHTS_BF16 && p->weight->activations == ACTIVATIONS_16BIT)
        product_matrices(p);
#endif
    else
        kernel_product(p);
}

static void kernel_arrange_dot(const struct weight *weight, const float *x, int64_t x_stride,
                               int rows, int64_t first, int64_t end, float *out)
{
    if (DOT_FORMATS >> weight->format & 1)
        arrange_fixed(weight, x, x_stride, rows, first, end, out);
#if FOR_MATRICES
    else if (weight->format == WEIGHTS_BF16)
        kernel_arrange_bf16(weight, x, x_stride, rows, first, end, out);
#endif
    else
        kernel_arrange(weight, x, x_stride, rows, first, end, out);
}

#endif
