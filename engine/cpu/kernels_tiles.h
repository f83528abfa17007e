/* SPDX-License-Identifier: Apache-2.0 */
/* What products by tiles (kernels_amx.h) take: x and weights in the order of tiles, and one row of
 * x, which waits for memory and needs no tile.
 *
 * x comes in tiles of up to 16 rows, as even pieces of 16 as they come, and of each by blocks of 32
 * inputs. A block of m rows is
 *
 *     bf16, f16   [parts][m][32] bf16: x in one part, rounded (16bit), or in three (f32)
 *     q8, q4      [FIXED_ENDS][m] dwords as kernels_vnni.h has them, [digits][m][32] bytes
 *
 * The three parts are the highest 8 bits of a number, of what is left, and the rest: their sum is
 * a finite number exactly, unless it is tiny. A weight in f16 has two such parts, one in bf16 is
 * its own. The product of a part with a part is exact. q8 and q4 have the bits of kernels_vnni.h,
 * whatever multiplies the bytes. */
#ifndef ENGINE_CPU_KERNELS_TILES_H
#define ENGINE_CPU_KERNELS_TILES_H

#include "engine/cpu/kernels_vnni.h"
#include "engine/cpu/tiles.h"

/* What tiles multiply in fixed point, and what they multiply in parts. */
#define TILE_FORMATS (1u << WEIGHTS_Q8 | 1u << WEIGHTS_Q4)
#define PART_FORMATS (1u << WEIGHTS_BF16 | 1u << WEIGHTS_F16)

enum { MOST_WEIGHT_PARTS = 2 };

/* Of a weight in one of PART_FORMATS. */
INLINE int weight_parts(const enum weight_format format)
{
    return format == WEIGHTS_F16 ? MOST_WEIGHT_PARTS : 1;
}

INLINE int parts_of(enum activation_format activations)
{
    return activations == ACTIVATIONS_16BIT ? 1 : MOST_PARTS;
}

/* Makes a call with the parts of x as a constant. */
#define FOR_PARTS(function, weight, ...)          \
    {                                             \
        if (parts_of((weight)->activations) == 1) \
            function(1, __VA_ARGS__);             \
        else                                      \
            function(MOST_PARTS, __VA_ARGS__);    \
    }

/* Of a round of measure_tile_pairs: four products of 16 x 16 x 32. Those of bytes are twice as
 * deep. */
enum { TILES_ROUND_OPERATIONS = 4 * 2 * TILE_HEIGHT * 16 * 32 };
#define MEASURED_TILES(name)                                                           \
    .units[UNIT_TILES_OF_PAIRS] = {measure_tile_pairs_##name, TILES_ROUND_OPERATIONS}, \
    .units[UNIT_TILES_OF_BYTES] = {measure_tile_bytes_##name, 2 * TILES_ROUND_OPERATIONS}

/* ---- x ---- */

/* bf16 in the upper halves of the dwords of low and then of high, one after the other. */
INLINE __m512i upper_halves(__m512i low, __m512i high)
{
    const __m512i dwords = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i odd = _mm512_add_epi32(_mm512_mullo_epi32(dwords, _mm512_set1_epi32(0x40004)),
                                         _mm512_set1_epi32(0x30001));
    return _mm512_permutex2var_epi16(low, odd, high);
}

/* Rounded to bf16 in the upper half, as f32_to_bf16 does it. */
INLINE __m512i round_upper(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                                _mm512_set1_epi32(0x400000));
}

/* Takes the highest part of each number, in the upper half; the number becomes the rest. */
INLINE __m512i take_part(__m512 *x)
{
    const __m512i bits = _mm512_castps_si512(*x);
    __m512i part = _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000));
    part = _mm512_mask_or_epi32(part, _mm512_cmp_ps_mask(*x, *x, _CMP_UNORD_Q), part,
                                _mm512_set1_epi32(0x400000)); /* a NaN stays one */
    *x = _mm512_sub_ps(*x, _mm512_castsi512_ps(part));
    return part;
}

/* A block's n inputs of row i of m. Fewer parts than all: the last one is rounded. */
INLINE void part_block(const int parts, int m, int i, const float *x, int64_t n, float *out)
{
    __m512 numbers[2];
    load_block(x, n, numbers);
#pragma GCC unroll 3
    for (int part = 0; part < parts; part++) {
        const bool rest = part + 1 == parts && parts < MOST_PARTS;
        __m512i pairs = rest ? upper_halves(round_upper(numbers[0]), round_upper(numbers[1]))
                             : upper_halves(take_part(&numbers[0]), take_part(&numbers[1]));
        _mm512_storeu_si512(out + (part * m + i) * TILE_PAIRS, pairs);
    }
}

/* Inputs [first, end) of rows, whose rows as arranged are `stride` floats. */
INLINE void part_rows(const int parts, const float *x, int64_t x_stride, int rows, int64_t stride,
                      int64_t first, int64_t end, float *out)
{
    const int64_t words = parts * TILE_PAIRS;
    for (int r = 0, m; r < rows; r += m, out += m * stride) {
        m = rows - r < TILE_HEIGHT ? rows - r : TILE_HEIGHT;
        claim_lines(x + r * x_stride + first, x_stride, m, end - first,
                    out + m * (first / 32) * words, m * ((end - first + 31) / 32) * words);
        for (int64_t k = first; k < end; k += 32)
            for (int i = 0; i < m; i++)
                part_block(parts, m, i, x + (r + i) * x_stride + k, end - k,
                           out + m * (k / 32) * words);
    }
}

/* The same in fixed point. */
INLINE void digit_rows(const int digits, const enum weight_format format, const float *x,
                       int64_t x_stride, int rows, int64_t stride, int64_t first, int64_t end,
                       int32_t *out)
{
    const int words = fixed_words(digits);
    for (int r = 0, m; r < rows; r += m, out += m * stride) {
        m = rows - r < TILE_HEIGHT ? rows - r : TILE_HEIGHT;
        claim_lines(x + r * x_stride + first, x_stride, m, end - first,
                    out + m * (first / 32) * words, m * ((end - first + 31) / 32) * words);
        for (int i = 0; i < m; i++)
            for (int64_t k = first; k < end; k += 32) {
                int32_t *block = out + m * (k / 32) * words;
                __m512 numbers[2];
                load_block(x + (r + i) * x_stride + k, end - k, numbers);
                fix_block(format, digits, m, numbers, block + i,
                          (struct digit_place){block + FIXED_ENDS * m + 8 * i, 8 * m, 1});
            }
    }
}

static void kernel_arrange_tiles(const struct weight *weight, const float *x, int64_t x_stride,
                                 int rows, int64_t first, int64_t end, float *out)
{
    int32_t *fixed = (int32_t *)(void *)out;
    const int64_t blocks = panel_rows_of(WEIGHTS_Q8, weight->in);
    if (PART_FORMATS >> weight->format & 1)
        FOR_PARTS(part_rows, weight, x, x_stride, rows,
                  blocks * parts_of(weight->activations) * TILE_PAIRS, first, end, out)
    else if (rows == 1 || (TILE_FORMATS >> weight->format & 1) == 0)
        kernel_arrange_vnni(weight, x, x_stride, rows, first, end, out);
    else if (weight->format == WEIGHTS_Q8)
        FOR_DIGITS(digit_rows, weight, WEIGHTS_Q8, x, x_stride, rows,
                   blocks * fixed_words(digits_of(weight->activations)), first, end, fixed)
    else
        FOR_DIGITS(digit_rows, weight, WEIGHTS_Q4, x, x_stride, rows,
                   blocks * fixed_words(digits_of(weight->activations)), first, end, fixed)
}

/* ---- weights ---- */

/* One part of a block of 32 inputs of two panels: tiles of pairs of inputs. */
typedef uint32_t pair_tiles[PANEL_PAIR][2][TILE_PAIRS][16];

/* Takes the highest part of each number, in the upper half; the number, which was f16, becomes the
 * rest. What is not finite leaves a NaN. */
INLINE __m512i take_f16_part(__m512 *w)
{
    const __m512i part =
        _mm512_and_si512(_mm512_castps_si512(*w), _mm512_set1_epi32((int)0xffff0000));
    *w = _mm512_sub_ps(*w, _mm512_castsi512_ps(part));
    return part;
}

/* Parts of 16 numbers in f16 each of two rows, as pairs: the highest ones, and the rests. The lower
 * half of a rest is zero, except of a NaN, whose bits go into the rest beside it: both belong to
 * one output, which is NaN anyway. */
INLINE void pair_f16(const uint16_t *first, const uint16_t *second,
                     __m512i pairs[MOST_WEIGHT_PARTS])
{
    vec one = vec_load_f16(first), two = vec_load_f16(second);
    const __m512i low = take_f16_part(&one), high = take_f16_part(&two);
    pairs[0] = _mm512_or_si512(_mm512_srli_epi32(low, 16), high);
    pairs[1] =
        _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(one), 16), _mm512_castps_si512(two));
}

/* A block of 32 inputs of which n from w on are there: these, or a copy with zeros behind it. */
INLINE const unsigned char *whole_block(const unsigned char *w, int64_t n,
                                        unsigned char rest[32][ROW_BYTES])
{
    if (n >= 32)
        return w;
    memset(rest, 0, 32 * ROW_BYTES);
    memcpy(rest, w, (size_t)n * ROW_BYTES);
    return rest[0];
}

/* out [parts]: a whole block, its rests first, as they are added up. */
INLINE void pair_block(const enum weight_format format, const unsigned char *w, pair_tiles *out)
{
    for (int pair = 0; pair < TILE_PAIRS; pair++, w += 2 * ROW_BYTES)
        for (int panel = 0; panel < PANEL_PAIR; panel++) {
            __m512i pairs[2][MOST_WEIGHT_PARTS]; /* columns j and j + 16 of the panel */
            if (format == WEIGHTS_F16) {
                const uint16_t *row = (const uint16_t *)(const void *)(w + panel * LINE);
                const uint16_t *next = row + ROW_BYTES / sizeof *row;
                pair_f16(row, next, pairs[0]);
                pair_f16(row + 16, next + 16, pairs[1]);
            } else {
                const struct two_inputs two = load_two(w + panel * LINE, true);
                pairs[0][0] = two.low;
                pairs[1][0] = two.high;
            }
#pragma GCC unroll 4
            for (int i = 0; i < 2 * weight_parts(format); i++) {
                const int place = weight_parts(format) - 1 - i / 2;
                _mm512_store_si512(out[place][panel][i % 2][pair], pairs[i % 2][i / 2]);
            }
        }
}

/* ---- one row ---- */

/* The numbers of a block of x: of each part those of even inputs, then of odd ones. */
typedef float part_numbers[MOST_PARTS][2][TILE_PAIRS];

/* A block of one row, as part_block has it. */
INLINE void load_parts(const int parts, const float *pairs, part_numbers numbers)
{
#pragma GCC unroll 3
    for (int part = 0; part < parts; part++) {
        vec low, high;
        vec_load_bf16_pairs(pairs + part * TILE_PAIRS, &low, &high);
        vec_store(numbers[part][0], low);
        vec_store(numbers[part][1], high);
    }
}

/* Registers hold the sums of three parts of x and of as many vectors of weights: both panels of
 * bf16, or both parts of one panel of f16. */
enum { PART_VECTORS = 4 };

/* Those of an input. */
INLINE void load_row_parts(const enum weight_format format, const unsigned char *w,
                           vec out[PART_VECTORS])
{
    if (format == WEIGHTS_F16) {
        load_pair(format, w, 0, &out[2], &out[3]);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
            out[i] = _mm512_castsi512_ps(take_f16_part(&out[2 + i]));
    } else {
        load_pair(format, w, 0, &out[0], &out[1]);
        load_pair(format, w, 1, &out[2], &out[3]);
    }
}

/* sums [PART_VECTORS / parts of a weight] += a block of x * a whole block of w, as tiles add them
 * up (tiles.h): the two sums of a block begin at zero. */
INLINE void add_pairs(const int parts, const enum weight_format format, part_numbers x,
                      const unsigned char *w, bool ahead, vec *sums)
{
    const int vectors = PART_VECTORS / weight_parts(format);
    vec even[MOST_PARTS][PART_VECTORS], odd[MOST_PARTS][PART_VECTORS];
#pragma GCC unroll 12
    for (int i = 0; i < parts * 4; i++)
        even[i / 4][i % 4] = odd[i / 4][i % 4] = vec_set(0.0f);
    for (int pair = 0; pair < TILE_PAIRS; pair++, w += 2 * ROW_BYTES) {
        vec first[PART_VECTORS], second[PART_VECTORS];
        if (ahead && pair % (ONE_ROW_INPUTS / 2) == 0)
            ask_rows(format, w);
        load_row_parts(format, w, first);
#pragma GCC unroll 12
        for (int i = 0; i < parts * 4; i++)
            even[i / 4][i % 4] =
                vec_fma(vec_set(x[i / 4][0][pair]), first[i % 4], even[i / 4][i % 4]);
        load_row_parts(format, w + ROW_BYTES, second);
#pragma GCC unroll 12
        for (int i = 0; i < parts * 4; i++)
            odd[i / 4][i % 4] =
                vec_fma(vec_set(x[i / 4][1][pair]), second[i % 4], odd[i / 4][i % 4]);
    }
#pragma GCC unroll 2
    for (int from = PART_VECTORS - vectors; from >= 0; from -= vectors)
#pragma GCC unroll 12
        for (int i = vectors * parts - 1; i >= 0; i--) {
            const int part = i / vectors, v = i % vectors;
            sums[v] += even[part][from + v] + odd[part][from + v];
        }
}

INLINE void product_row_parts(const int parts, const enum weight_format format,
                              const struct product *p)
{
    const int vectors = PART_VECTORS / weight_parts(format);
    _Alignas(LINE) unsigned char rest[32][ROW_BYTES];
    _Alignas(LINE) part_numbers x;
    const int64_t in = p->weight->in;
    for (int64_t panel = p->first; panel < p->first + p->count; panel += PANEL_PAIR) {
        const unsigned char *w = panel_at(p->weight, panel_number(p, panel));
        struct row rows[PANEL_PAIR] = {zero_row(), zero_row()};
        vec sums[4] = {vec_set(0.0f), vec_set(0.0f), vec_set(0.0f), vec_set(0.0f)};
        prepare_finish(p, panel);
        prepare_finish(p, panel + 1);
        for (int64_t k = 0; k < in; k += 32, w += 32 * ROW_BYTES) {
            load_parts(parts, p->x + k / 32 * parts * TILE_PAIRS, x);
            const unsigned char *block = whole_block(w, in - k, rest);
#pragma GCC unroll 2
            for (int v = 0; v < 4; v += vectors)
                add_pairs(parts, format, x, block + v / 2 * LINE, v == 0, sums + v);
        }
        for (int i = 0; i < 4; i++)
            rows[i / 2].sums[i % 2] = sums[i];
        finish_sums(p, panel, &rows[0]);
        finish_sums(p, panel + 1, &rows[1]);
    }
}

static void product_row_tiles(const struct product *p)
{
    if (p->weight->format == WEIGHTS_F16)
        FOR_PARTS(product_row_parts, p->weight, WEIGHTS_F16, p)
    else
        FOR_PARTS(product_row_parts, p->weight, WEIGHTS_BF16, p)
}

#endif
