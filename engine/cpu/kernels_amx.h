/* SPDX-License-Identifier: Apache-2.0 */
/* Products by tiles (tiles.h), of two rows of x or more with weights in bf16, f16, q8 and q4. This
 * file is included twice: AMX(name) names its functions, TILE(operation) those of the processor or
 * of the emulation.
 *
 * bf16, f16. Per output, over blocks of 32 inputs, in a block from the lowest part of the weight to
 * the highest, and for each from the lowest part of x to the highest: acc += a tile's sum of 16
 * pairs. The weights of a chunk of blocks become pairs of each part in scratch once (bf16: two
 * loads, shifts and blends for 128 bytes), and all rows meet them there, 32 rows and 32 outputs at
 * a time. 16 rows, 16 outputs and 32 inputs take a tile product for each part of x with each of the
 * weight: in f32 three with bf16 and six with f16, with rounded x one and two.
 *
 * q6 is multiplied as by kernels_vnni.h: its halves of a block would take half a tile each.
 *
 * q8, q4. A block's bytes are multiplied by tiles, q8's right where they lie; the sums of bytes are
 * exact, so the end of a block and all bits are those of kernels_vnni.h. A tile product serves 16
 * rows, 16 outputs and 32 inputs, for each digit.
 *
 * A tile has the rows that there are and no others. No row's bits depend on the others in its tile.
 * No speed has been measured. */

#ifndef ENGINE_CPU_KERNELS_AMX_H
#define ENGINE_CPU_KERNELS_AMX_H

#undef AMX_STATE
#define AMX_STATE struct TILE(state)

INLINE void AMX(set_shape)(struct tile_config *config, int first, int end, int rows, int bytes)
{
    for (int tile = first; tile < end; tile++) {
        config->rows[tile] = (uint8_t)rows;
        config->row_bytes[tile] = (uint16_t)bytes;
    }
}

/* ---- bf16 and f16 ---- */

/* Tiles: sums 0 and 1 of the first rows, 2 and 3 of the second, x of both 4 and 5, weights 6 and 7.
 */
static void AMX(shape_pairs)(AMX_STATE *state, int first, int second)
{
    struct tile_config config = {.palette = 1};
    AMX(set_shape)(&config, 0, 2, first, TILE_BYTES);
    AMX(set_shape)(&config, 4, 5, first, TILE_BYTES);
    if (second > 0) {
        AMX(set_shape)(&config, 2, 4, second, TILE_BYTES);
        AMX(set_shape)(&config, 5, 6, second, TILE_BYTES);
    }
    AMX(set_shape)(&config, 6, 8, TILE_PAIRS, TILE_BYTES);
    TILE(configure)(state, &config);
}

/* sums [rows][32], `stride` apart, (+)= x * the weights of `panel` in `blocks` blocks,
 * w [blocks][w_parts]. second: x has two tiles of rows, of which the other begins at x + far, with
 * its sums 16 rows on. */
INLINE void AMX(multiply_pairs)(AMX_STATE *state, const int parts, const int w_parts,
                                const bool second, int first_rows, int second_rows, const float *x,
                                int64_t far, int64_t blocks, const pair_tiles *w, int panel,
                                float *sums, int64_t stride, bool add)
{
    const int64_t row = stride * (int64_t)sizeof *sums, line = TILE_BYTES;
    float *other = sums + TILE_HEIGHT * stride;
    (void)state;
    if (add) {
        TILE(load)(state, 0, sums, row);
        TILE(load)(state, 1, sums + 16, row);
    } else {
        TILE(zero)(state, 0);
        TILE(zero)(state, 1);
    }
    if (second && add) {
        TILE(load)(state, 2, other, row);
        TILE(load)(state, 3, other + 16, row);
    } else if (second) {
        TILE(zero)(state, 2);
        TILE(zero)(state, 3);
    }
    for (int64_t i = 0; i < blocks * w_parts; i++) {
        const int64_t b = i / w_parts;
        TILE(load)(state, 6, w[i][panel][0], line);
        TILE(load)(state, 7, w[i][panel][1], line);
        for (int part = parts - 1; part >= 0; part--) {
            TILE(load)(state, 4, x + (b * parts + part) * first_rows * TILE_PAIRS, line);
            TILE(multiply_bf16)(state, 0, 4, 6);
            TILE(multiply_bf16)(state, 1, 4, 7);
            if (second) {
                TILE(load)(state, 5, x + far + (b * parts + part) * second_rows * TILE_PAIRS, line);
                TILE(multiply_bf16)(state, 2, 5, 6);
                TILE(multiply_bf16)(state, 3, 5, 7);
            }
        }
    }
    TILE(store)(state, 0, sums, row);
    TILE(store)(state, 1, sums + 16, row);
    if (second) {
        TILE(store)(state, 2, other, row);
        TILE(store)(state, 3, other + 16, row);
    }
}

/* All rows against a chunk of blocks from block `from` on, of both panels. */
INLINE void AMX(multiply_chunk)(AMX_STATE *state, const int parts, const enum weight_format format,
                                const struct product *p, int64_t from, int64_t blocks,
                                const pair_tiles *w, float *sums)
{
    const int rows = p->num_rows;
    for (int r = 0; r < rows; r += 2 * TILE_HEIGHT) {
        const int left = rows - r, first = left < TILE_HEIGHT ? left : TILE_HEIGHT;
        const int second = left - first < TILE_HEIGHT ? left - first : TILE_HEIGHT;
        const int64_t before = from * parts * TILE_PAIRS;
        const float *x = p->x + r * p->x_stride + before * first;
        const int64_t far = TILE_HEIGHT * p->x_stride + before * (second - first);
        if (r == 0 || left < 2 * TILE_HEIGHT)
            AMX(shape_pairs)(state, first, second);
        for (int panel = 0; panel < PANEL_PAIR; panel++) {
            float *to = sums + panel * PANEL_SUMS + r * PANEL;
            if (second > 0)
                AMX(multiply_pairs)
            (state, parts, weight_parts(format), true, first, second, x, far, blocks, w, panel, to,
             PANEL, from > 0);
            else AMX(multiply_pairs)(state, parts, weight_parts(format), false, first, 0, x, 0,
                                     blocks, w, panel, to, PANEL, from > 0);
        }
    }
}

INLINE void AMX(product_pairs)(const int parts, const enum weight_format format,
                               const struct product *p)
{
    enum { CHUNK = 16 }; /* parts of blocks: 32 KiB of a panel */
    const int64_t most = CHUNK / weight_parts(format);
    _Alignas(LINE) pair_tiles tiles[CHUNK];
    _Alignas(LINE) unsigned char rest[32][ROW_BYTES];
    _Alignas(LINE) float sums[PANEL_PAIR][PANEL_SUMS];
    AMX_STATE state;
    const int64_t in = p->weight->in, blocks = (in + 31) / 32;
    for (int64_t panel = p->first; panel < p->first + p->count; panel += PANEL_PAIR) {
        const unsigned char *w = panel_at(p->weight, panel_number(p, panel));
        prepare_rows(p, panel, PANEL_PAIR);
        for (int64_t from = 0, count; from < blocks; from += count) {
            count = blocks - from < most ? blocks - from : most;
            for (int64_t b = 0; b < count; b++, w += 32 * ROW_BYTES) {
                for (int line = 0; line < 32 * ROW_BYTES; line += LINE)
                    ask_tile(w + line + TILE_AHEAD, true);
                pair_block(format, whole_block(w, in - (from + b) * 32, rest),
                           tiles + b * weight_parts(format));
            }
            AMX(multiply_chunk)(&state, parts, format, p, from, count, tiles, sums[0]);
        }
        for (int i = 0; i < PANEL_PAIR; i++)
            finish_panel(p, panel + i, sums[i]);
    }
    TILE(release)(&state);
}

/* ---- q8 and q4 ---- */

/* Sums of bytes of one block: a tile of each digit. */
typedef int32_t byte_sums[MOST_DIGITS][TILE_HEIGHT][16];

/* Tiles: sums 0 to 2, digits of x 3 to 5, weights 6. */
static void AMX(shape_bytes)(AMX_STATE *state, int rows)
{
    struct tile_config config = {.palette = 1};
    AMX(set_shape)(&config, 0, 3, rows, TILE_BYTES);
    AMX(set_shape)(&config, 3, 6, rows, Q8_BLOCK);
    AMX(set_shape)(&config, 6, 7, Q8_BLOCK / 4, TILE_BYTES);
    TILE(configure)(state, &config);
}

/* A block's x, digits [digits][m][32] bytes, times its quants for 16 outputs. */
INLINE void AMX(multiply_bytes)(AMX_STATE *state, const enum weight_format format, const int digits,
                                int m, const int32_t *x, const unsigned char *w, int half,
                                byte_sums sums)
{
    const int64_t line = TILE_BYTES, digit = 8 * m, row = Q8_BLOCK;
    const __m512i none = _mm512_setzero_si512();
    _Alignas(LINE) int32_t quants[Q8_BLOCK / 4][16];
    (void)state;
    if (format == WEIGHTS_Q4) {
        for (int four = 0; four < 8; four++) {
            const __m512i group = _mm512_loadu_si512(group_dwords(format, w, four / 2) + half * 16);
            _mm512_store_si512(quants[four], four_quants(format, group, none, four));
        }
        TILE(load)(state, 6, quants, line);
    } else {
        TILE(load)(state, 6, group_dwords(format, w, 0) + half * 16, 2 * line);
    }
    TILE(load)(state, 3, x, row);
    TILE(zero)(state, 0);
    TILE(multiply_bytes)(state, 0, 3, 6);
    TILE(store)(state, 0, sums[0], line);
    if (digits > 1) {
        TILE(load)(state, 4, x + digit, row);
        TILE(zero)(state, 1);
        TILE(multiply_bytes)(state, 1, 4, 6);
        TILE(store)(state, 1, sums[1], line);
    }
    if (digits > 2) {
        TILE(load)(state, 5, x + 2 * digit, row);
        TILE(zero)(state, 2);
        TILE(multiply_bytes)(state, 2, 5, 6);
        TILE(store)(state, 2, sums[2], line);
    }
}

/* What a block adds to row i of m, for 16 outputs. p has them in its first half, whichever they
 * are: an index that is no constant would keep it in memory. */
VNNI_INLINE vec AMX(end_bytes)(const enum weight_format format, const int digits, int m, int i,
                               const int32_t *x, const byte_sums sums, const unsigned char *w,
                               vec scales, int half, vec sum)
{
    __m512i p[MOST_DIGITS][2];
    start_sums(format, digits, m, 0, p, x + i);
#pragma GCC unroll 3
    for (int d = 0; d < digits; d++)
        p[d][0] = _mm512_add_epi32(p[d][0], _mm512_load_si512(sums[d][i]));
    if (has_wide(format, digits))
        p[0][0] = add_wide(p[0][0], format, m, x + i, w, half);
    const __m512 value = part_value(format, digits, 0, p, w, 0, _mm512_setzero_ps());
    return end_block(format, m, value, x + i, scales, weight_minima(format, w, half), sum);
}

/* sums [m][32], of which 16 columns, (+)= x * the blocks of a panel from w on, of which every other
 * is the panel's. full: m is 16, and the sums stay in registers. */
VNNI_INLINE void AMX(multiply_blocks)(AMX_STATE *state, const enum weight_format format,
                                      const int digits, const bool full, int m, const int32_t *x,
                                      int64_t blocks, const unsigned char *w, int half, bool ahead,
                                      float *sums, bool add)
{
    _Alignas(LINE) byte_sums products[2]; /* the tiles go on while a block before ends */
    vec kept[TILE_HEIGHT];
#pragma GCC unroll 16
    for (int i = 0; full && i < TILE_HEIGHT; i++)
        kept[i] = add ? vec_load(sums + i * PANEL) : vec_set(0.0f);
    for (int64_t b = 0; b < blocks; b++, w += PANEL_PAIR * row_bytes(format)) {
        for (size_t line = (size_t)half; ahead && line < row_bytes(format) / LINE; line += 2)
            ask_tile(w + line * LINE + TILE_AHEAD, false);
        AMX(multiply_bytes)(state, format, digits, m, x + FIXED_ENDS * m, w, half, products[b % 2]);
        const vec scales = weight_scales(format, w, half);
        if (full) {
#pragma GCC unroll 16
            for (int i = 0; i < TILE_HEIGHT; i++)
                kept[i] = AMX(end_bytes)(format, digits, TILE_HEIGHT, i, x, products[b % 2], w,
                                         scales, half, kept[i]);
        } else {
            for (int i = 0; i < m; i++) {
                vec start = add || b > 0 ? vec_load(sums + i * PANEL) : vec_set(0.0f);
                vec_store(sums + i * PANEL, AMX(end_bytes)(format, digits, m, i, x, products[b % 2],
                                                           w, scales, half, start));
            }
        }
        x += m * fixed_words(digits);
    }
#pragma GCC unroll 16
    for (int i = 0; full && i < TILE_HEIGHT; i++)
        vec_store(sums + i * PANEL, kept[i]);
}

VNNI_INLINE void AMX(product_bytes)(const int digits, const enum weight_format format,
                                    const struct product *p)
{
    enum { CHUNK = 16 }; /* blocks whose weights stay in the first cache */
    const int32_t *inputs = (const int32_t *)(const void *)p->x;
    const int64_t blocks = panel_rows_of(format, p->weight->in);
    const int rows = p->num_rows, columns = 2 * PANEL_PAIR;
    _Alignas(LINE) float sums[PANEL_PAIR][PANEL_SUMS];
    AMX_STATE state;
    int shaped = 0;
    for (int64_t panel = p->first; panel < p->first + p->count; panel += PANEL_PAIR) {
        const unsigned char *w = panel_at(p->weight, panel_number(p, panel));
        prepare_rows(p, panel, PANEL_PAIR);
        for (int64_t from = 0; from < blocks; from += CHUNK) {
            const int64_t count = blocks - from < CHUNK ? blocks - from : CHUNK;
            for (int r = 0, m; r < rows; r += m) {
                m = rows - r < TILE_HEIGHT ? rows - r : TILE_HEIGHT;
                const int32_t *x = inputs + r * p->x_stride + m * from * fixed_words(digits);
                if (shaped != m)
                    AMX(shape_bytes)(&state, shaped = m);
                for (int c = 0; c < columns; c++) {
                    const unsigned char *at =
                        w + (size_t)(from * PANEL_PAIR + c / 2) * row_bytes(format);
                    float *to = sums[c / 2] + r * PANEL + c % 2 * 16;
                    if (m == TILE_HEIGHT)
                        AMX(multiply_blocks)
                    (&state, format, digits, true, TILE_HEIGHT, x, count, at, c % 2, r == 0, to,
                     from > 0);
                    else AMX(multiply_blocks)(&state, format, digits, false, m, x, count, at, c % 2,
                                              r == 0, to, from > 0);
                }
            }
        }
        for (int i = 0; i < PANEL_PAIR; i++)
            finish_panel(p, panel + i, sums[i]);
    }
    TILE(release)(&state);
}

/* ---- all ---- */

/* Four sums, as many as products have, in the making. */
INLINE float AMX(measure_tiles)(bool bytes, int64_t rounds)
{
    float sums[TILE_HEIGHT][16];
    AMX_STATE state;
    AMX(shape_pairs)(&state, TILE_HEIGHT, TILE_HEIGHT);
    for (int64_t round = 0; round < rounds; round++) {
        if (bytes) {
            TILE(multiply_bytes)(&state, 0, 4, 6);
            TILE(multiply_bytes)(&state, 1, 4, 7);
            TILE(multiply_bytes)(&state, 2, 5, 6);
            TILE(multiply_bytes)(&state, 3, 5, 7);
        } else {
            TILE(multiply_bf16)(&state, 0, 4, 6);
            TILE(multiply_bf16)(&state, 1, 4, 7);
            TILE(multiply_bf16)(&state, 2, 5, 6);
            TILE(multiply_bf16)(&state, 3, 5, 7);
        }
    }
    TILE(store)(&state, 0, sums, (int64_t)sizeof sums[0]);
    TILE(release)(&state);
    return sums[0][0];
}

static float AMX(measure_tile_pairs)(int64_t rounds)
{
    return AMX(measure_tiles)(false, rounds);
}

static float AMX(measure_tile_bytes)(int64_t rounds)
{
    return AMX(measure_tiles)(true, rounds);
}

VNNI static void AMX(kernel_product)(const struct product *p)
{
    const enum weight_format format = p->weight->format;
    if (p->num_rows == 1 && (PART_FORMATS >> format & 1) != 0) {
        product_row_tiles(p);
    } else if (format == WEIGHTS_BF16) {
        FOR_PARTS(AMX(product_pairs), p->weight, WEIGHTS_BF16, p)
    } else if (format == WEIGHTS_F16) {
        FOR_PARTS(AMX(product_pairs), p->weight, WEIGHTS_F16, p)
    } else if (p->num_rows == 1 || (TILE_FORMATS >> format & 1) == 0) {
        kernel_product_vnni(p);
    } else if (format == WEIGHTS_Q8) {
        FOR_DIGITS(AMX(product_bytes), p->weight, WEIGHTS_Q8, p)
    } else {
        FOR_DIGITS(AMX(product_bytes), p->weight, WEIGHTS_Q4, p)
    }
}

#endif
