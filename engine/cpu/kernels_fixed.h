/* SPDX-License-Identifier: Apache-2.0 */
/* x in fixed point, for products of bytes (kernels_vnni.h, kernels_dot.h). Both arithmetics write
 * the same bits. */
#ifndef ENGINE_CPU_KERNELS_FIXED_H
#define ENGINE_CPU_KERNELS_FIXED_H

#include "engine/cpu/kernels_product.h"

/* So few rows are arranged one by one, and their sums of one digit would leave units waiting. */
enum { FEW_FIXED = 3 };

/* Rows of a tile: 24 sums in registers, of all digits or, with minima in AVX-512, of one. */
INLINE int fixed_rows_of(const enum weight_format format, const int digits)
{
    return LANES == 16 && weight_format_minimum(format) ? FIXED_ROWS : FIXED_ROWS / digits;
}

/* A tile of x in fixed point has, per block of 32 inputs, fixed_words dwords of each of its m rows;
 * row i's are at i, m apart. x = (d[0] + 256 d[1] + 65536 d[2]) * scale with digits in -128..127.
 * So x / scale is at most +-8355711, in two digits +-32639, in one +-127, and the error is half of
 * the scale: 2^-24, 2^-16 or 2^-8 of the largest number (and 0.8 % of that).
 *
 * In one digit the largest number of a block would leave few of the 127 to the others, and models
 * have such numbers: so the four inputs that it is in, the wide four, have two digits, and the
 * largest is that of the other 28. (That is 1/257 of the wide four's where theirs is less.) In q6,
 * whose halves of a block have sums of their own, each half has its own largest instead: it costs
 * nothing there. What both give: loadtest/FIGURES.md, "Inputs in 8 bits".
 *
 * The dwords are: the scale (0 where all numbers are under 2^-100, NaN where one is not finite);
 * -128 times the sums of d[0] + 256 d[1] and of d[2], which take the 128 out of q8's quants, -32
 * times those of each half for q6's, or with minima the sum of x in f32; the digits, all d[0]
 * first, four inputs to a dword. With one digit there follow at which byte of a block of weights
 * the quants of the wide four begin, and its d[1]; in q4 the bits that its quants have in the bytes
 * there, and how far their sum is to be shifted. In q6 there follow the halves' scales. */
INLINE int fixed_four(const int m, const int d, const int four)
{
    return (FIXED_ENDS + 8 * d + four) * m;
}

/* Where what follows the one digit is. */
INLINE int fixed_wide(const int m)
{
    return (FIXED_ENDS + 8) * m;
}

/* What counts as the largest number of a block, whose wide four has the size `wide` and the other
 * numbers `others`: so that one digit is enough for these, and two for those. */
#define WIDE_LEAST (1.0f / 257)
INLINE float largest_beside_wide(float others, float wide)
{
    const float least = wide * WIDE_LEAST;
    return others > least ? others : least;
}

/* The sum of a block's inputs counts so much less, and its minima more: it may be larger than any
 * float. */
#define MINIMA_INPUT 0x1p-5f
#define MINIMA_SCALE 0x1p5f

/* Whether blocks have a wide four. */
INLINE bool has_wide(const enum weight_format format, const int digits)
{
    return digits == 1 && format != WEIGHTS_Q6;
}

/* Whether each half of a block has its own scale. */
INLINE bool has_halves(const enum weight_format format, const int digits)
{
    return digits == 1 && format == WEIGHTS_Q6;
}

/* The digits that numbers are taken apart into: with a wide four its second, too. */
INLINE int digits_made(const enum weight_format format, const int digits)
{
    return digits + has_wide(format, digits);
}

/* The largest number in so many digits. */
INLINE int32_t fixed_most(const int digits)
{
    return digits == 1 ? 127 : digits == 2 ? 32639 : 8355711;
}

/* What a block's numbers are multiplied with. largest: of their sizes, as the bits of a float. */
INLINE float fixed_factor(const int digits, uint32_t largest)
{
    const float most = float_of_bits(largest);
    return most < INFINITY && most >= 0x1p-100f ? (float)fixed_most(digits) / most : 0.0f;
}

/* Parts of a block, with sums of their own: halves with a factor each in q6, else one. */
INLINE int block_parts(const enum weight_format format)
{
    return format == WEIGHTS_Q6 ? 2 : 1;
}

/* What one unit of the integers is. */
INLINE float fixed_scale(const int digits, uint32_t largest, float factor)
{
    const float size = float_of_bits(largest);
    return !(size < INFINITY) ? NAN : factor == 0.0f ? 0.0f : size / (float)fixed_most(digits);
}

/* The two dwords of a part: its sums of d[0] + 256 d[1], and of d[2]. */
INLINE void write_part(const enum weight_format format, const int m, int32_t low, int32_t high,
                       float scale, int32_t *out)
{
    const float whole = (float)high * 65536.0f + (float)low;
    const bool minima = weight_format_minimum(format);
    const int offset = format == WEIGHTS_Q6 ? -32 : -128;
    out[0] = minima ? (int32_t)bits_of_float(whole * MINIMA_INPUT * scale) : offset * low;
    out[m] = minima ? 0 : offset * high;
}

/* Where a row's digits of a block go: the dwords of the first, then of each next `digit` dwords on;
 * its fours are `four` dwords apart. */
struct digit_place {
    int32_t *at;
    int digit, four;
};

INLINE void fix_digits(const struct digit_place to, int d, const int8_t bytes[Q8_BLOCK])
{
#pragma GCC unroll 8
    for (int four = 0; four < 8; four++)
        memcpy(to.at + d * to.digit + four * to.four, bytes + 4 * four, 4);
}

/* Writes the wide four. bytes: the second digits of its block. */
INLINE void write_wide(const enum weight_format format, const int m, int four,
                       const int8_t bytes[Q8_BLOCK], int32_t *out)
{
    const int fours = group_inputs(format) / 4, shift = four % fours * 4;
    int32_t *to = out + fixed_wide(m);
    to[0] = four / fours * PANEL * (int)sizeof(int32_t);
    memcpy(to + m, bytes + 4 * four, 4);
    if (format == WEIGHTS_Q4) {
        to[2 * m] = (int32_t)(UINT32_C(0x0f0f0f0f) << shift);
        to[3 * m] = 8 - shift;
    }
}

enum { BLOCK_VECTORS = Q8_BLOCK / LANES };

#if defined(__AVX512F__)
/* Takes the lowest digit, -128..127, of each number; the number becomes the rest. */
static inline __m512i take_digit(__m512i *number)
{
    __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(*number, 24), 24);
    *number = _mm512_srai_epi32(_mm512_sub_epi32(*number, digit), 8);
    return digit;
}

/* The first 32 of n numbers, zero past the last. */
INLINE void load_block(const float *x, int64_t n, vec numbers[BLOCK_VECTORS])
{
    const uint32_t present = n >= 32 ? UINT32_MAX : (1u << n) - 1;
    for (int half = 0; half < 2; half++)
        numbers[half] = _mm512_maskz_loadu_ps((__mmask16)(present >> 16 * half), x + 16 * half);
}

/* The sizes of a vector's numbers, as the bits of a float. */
INLINE __m512i sizes_of(vec numbers)
{
    return _mm512_and_si512(_mm512_castps_si512(numbers), _mm512_set1_epi32(INT32_MAX));
}

/* How a block becomes fixed point. */
struct block_scale {
    int wide;            /* four */
    bool finite;         /* all numbers */
    uint32_t largest[2]; /* that counts, in each half, as the bits of a float */
};

INLINE struct block_scale block_scale(const enum weight_format format, const int digits,
                                      const vec x[BLOCK_VECTORS])
{
    const __m512i sizes[2] = {sizes_of(x[0]), sizes_of(x[1])};
    const uint32_t low = _mm512_reduce_max_epu32(sizes[0]);
    const uint32_t high = _mm512_reduce_max_epu32(sizes[1]), most = low > high ? low : high;
    struct block_scale scale = {.finite = float_of_bits(most) < INFINITY, .largest = {most, most}};
    if (has_halves(format, digits) && scale.finite) {
        scale.largest[0] = low;
        scale.largest[1] = high;
    }
    if (has_wide(format, digits) && scale.finite) {
        const __m512i top = _mm512_set1_epi32((int32_t)most);
        const uint32_t equal = _mm512_cmpeq_epi32_mask(sizes[0], top) |
                               (uint32_t)_mm512_cmpeq_epi32_mask(sizes[1], top) << 16;
        scale.wide = __builtin_ctz(equal) / 4;
        const uint32_t others = ~(UINT32_C(15) << 4 * scale.wide);
        const uint32_t other = _mm512_reduce_max_epu32(
            _mm512_max_epu32(_mm512_maskz_mov_epi32((__mmask16)others, sizes[0]),
                             _mm512_maskz_mov_epi32((__mmask16)(others >> 16), sizes[1])));
        scale.largest[0] = scale.largest[1] =
            bits_of_float(largest_beside_wide(float_of_bits(other), float_of_bits(most)));
    }
    return scale;
}

/* A block's numbers [2] in fixed point. With one digit the scale keeps them in their range. */
INLINE void fix_numbers(const int digits, const vec x[BLOCK_VECTORS], bool finite,
                        const float factors[2], __m512i numbers[2])
{
    const __m512i top = _mm512_set1_epi32(fixed_most(digits));
    const __m512i least = _mm512_set1_epi32(-fixed_most(digits));
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __m512 scaled = _mm512_mul_ps(x[half], _mm512_set1_ps(factors[half]));
        numbers[half] = _mm512_maskz_cvtps_epi32(finite ? UINT16_MAX : 0, scaled);
        if (digits > 1)
            numbers[half] = _mm512_max_epi32(_mm512_min_epi32(numbers[half], top), least);
    }
}

/* Writes the dwords behind the scale. sums: of all digits; top: of the third. */
INLINE void write_sums(const enum weight_format format, const int m, const __m512i sums[2],
                       const __m512i top[2], float scale, int32_t *out)
{
    const int parts = block_parts(format);
    for (int i = 0; i < parts; i++) {
        __m512i all = parts == 2 ? sums[i] : _mm512_add_epi32(sums[0], sums[1]);
        __m512i highest = parts == 2 ? top[i] : _mm512_add_epi32(top[0], top[1]);
        all = _mm512_sub_epi32(all, _mm512_slli_epi32(highest, 16));
        write_part(format, m, _mm512_reduce_add_epi32(all), _mm512_reduce_add_epi32(highest), scale,
                   out + 2 * i * m);
    }
}

/* Writes x, the numbers of a block, to the dwords of one of m rows: all but the digits m apart. */
INLINE void fix_block(const enum weight_format format, const int digits, const int m,
                      const vec x[BLOCK_VECTORS], int32_t *out, const struct digit_place to)
{
    const struct block_scale found = block_scale(format, digits, x);
    const uint32_t largest =
        found.largest[0] > found.largest[1] ? found.largest[0] : found.largest[1];
    const float factors[2] = {fixed_factor(digits, found.largest[0]),
                              fixed_factor(digits, found.largest[1])};
    __m512i fixed[2];
    fix_numbers(digits, x, found.finite, factors, fixed);
    const __m512i sums[2] = {fixed[0], fixed[1]};
    __m512i top_sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int d = 0; d < digits_made(format, digits); d++) {
        int8_t bytes[Q8_BLOCK];
        __m512i low = take_digit(&fixed[0]), high = take_digit(&fixed[1]);
        if (d == MOST_DIGITS - 1) {
            top_sums[0] = low;
            top_sums[1] = high;
        }
        _mm_storeu_si128((__m128i *)(void *)bytes, _mm512_cvtepi32_epi8(low));
        _mm_storeu_si128((__m128i *)(void *)(bytes + 16), _mm512_cvtepi32_epi8(high));
        if (d < digits)
            fix_digits(to, d, bytes);
        else
            write_wide(format, m, found.wide, bytes, out);
    }
    const float scale = fixed_scale(digits, largest, fixed_factor(digits, largest));
    out[0] = (int32_t)bits_of_float(scale);
    for (int half = 0; has_halves(format, digits) && half < 2; half++)
        out[fixed_wide(m) + half * m] =
            (int32_t)bits_of_float(fixed_scale(digits, found.largest[half], factors[half]));
    write_sums(format, m, sums, top_sums, scale, out + m);
}
/* Digits of a row's numbers of a block, [digits][32] bytes; with one digit, the second too. */
INLINE void row_digits(const enum weight_format format, const int digits,
                       const vec x[BLOCK_VECTORS], bool finite, const float factors[2],
                       int8_t (*bytes)[Q8_BLOCK])
{
    __m512i numbers[2];
    fix_numbers(digits, x, finite, factors, numbers);
#pragma GCC unroll 3
    for (int d = 0; d < digits_made(format, digits); d++) {
        const __m128i low = _mm512_cvtepi32_epi8(numbers[0]);
        const __m128i high = _mm512_cvtepi32_epi8(numbers[1]);
        _mm256_store_si256((__m256i *)(void *)bytes[d], _mm256_set_m128i(high, low));
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            numbers[half] =
                _mm512_srai_epi32(_mm512_add_epi32(numbers[half], _mm512_set1_epi32(128)), 8);
    }
}

/* fours [8]: dword j of 16 rows of 32 bytes, a row each `stride` bytes. */
INLINE void turn_fours(const int8_t *rows, size_t stride, __m512i fours[8])
{
    __m512i a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const void *low = rows + (size_t)i * stride, *high = rows + (size_t)(i + 8) * stride;
        a[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(low)),
                                  _mm256_load_si256(high), 1);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    /* a [4]: dwords 0, 1, 2 and 3 of each 128 bits of rows 0 to 3 and of rows 4 to 7 */
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        fours[i] =
            _mm512_permutex2var_epi64(a[i], _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0), a[i + 4]);
        fours[i + 4] =
            _mm512_permutex2var_epi64(a[i], _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2), a[i + 4]);
    }
}

/* The largest size of each of a block's fours, eight dwords. */
INLINE void store_fours(const vec x[BLOCK_VECTORS], int8_t bytes[Q8_BLOCK])
{
    __m512i sizes[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __m512i all = sizes_of(x[half]);
        const __m512i two = _mm512_max_epu32(all, _mm512_shuffle_epi32(all, _MM_PERM_CDAB));
        sizes[half] = _mm512_max_epu32(two, _mm512_shuffle_epi32(two, _MM_PERM_BADC));
    }
    const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i fours = _mm512_permutex2var_epi32(sizes[0], firsts, sizes[1]);
    _mm256_store_si256((__m256i *)(void *)bytes, _mm512_castsi512_si256(fours));
}

/* Rows of a tile at once, a row to a lane: what is said above of numbers, of vectors. */
struct tile_scales {
    __m512i wide;
    __mmask16 finite;
    __m512 factors[2], scales[2];
};

/* What counts as the largest number of each half. sizes [8]: the largest of each four. */
INLINE void largest_numbers(const enum weight_format format, const int digits,
                            const __m512i sizes[8], struct tile_scales *tile, __m512 counted[2])
{
    __m512i top = sizes[0], others = _mm512_setzero_si512(), halves[2] = {sizes[0], sizes[4]};
    tile->wide = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int four = 1; four < 8; four++) {
        const __mmask16 larger = _mm512_cmpgt_epu32_mask(sizes[four], top);
        tile->wide = _mm512_mask_mov_epi32(tile->wide, larger, _mm512_set1_epi32(four));
        others = _mm512_max_epu32(others, _mm512_min_epu32(top, sizes[four]));
        top = _mm512_max_epu32(top, sizes[four]);
        halves[four / 4] = _mm512_max_epu32(halves[four / 4], sizes[four]);
    }
    const __m512 most = _mm512_castsi512_ps(top);
    tile->finite = _mm512_cmp_ps_mask(most, _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    counted[0] = counted[1] = most;
    if (has_wide(format, digits)) {
        const __m512 least = _mm512_mul_ps(most, _mm512_set1_ps(WIDE_LEAST));
        counted[0] = counted[1] =
            _mm512_mask_max_ps(most, tile->finite, _mm512_castsi512_ps(others), least);
    }
    if (has_halves(format, digits)) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            counted[half] =
                _mm512_mask_mov_ps(most, tile->finite, _mm512_castsi512_ps(halves[half]));
    }
}

INLINE struct tile_scales tile_scales(const enum weight_format format, const int digits,
                                      const __m512i sizes[8])
{
    struct tile_scales tile;
    __m512 counted[2];
    largest_numbers(format, digits, sizes, &tile, counted);
    const __m512 zero = _mm512_setzero_ps(), most = _mm512_set1_ps((float)fixed_most(digits));
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __mmask16 counts = _mm512_mask_cmp_ps_mask(tile.finite, counted[half],
                                                         _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
        tile.factors[half] = _mm512_maskz_div_ps(counts, most, counted[half]);
        const __mmask16 some = _mm512_cmp_ps_mask(tile.factors[half], zero, _CMP_NEQ_UQ);
        tile.scales[half] = _mm512_mask_blend_ps(tile.finite, _mm512_set1_ps(NAN),
                                                 _mm512_maskz_div_ps(some, counted[half], most));
    }
    return tile;
}

/* The sums of so many fours' bytes, of 16 rows. */
INLINE __m512i sum_fours(const __m512i *fours, const int count)
{
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(_mm512_set1_epi8(1), fours[i]));
    return _mm512_madd_epi16(sum, _mm512_set1_epi16(1));
}

/* Writes the dwords behind the scales. sums [digits_made][part]. */
INLINE void write_parts(const enum weight_format format, const int digits, const int m,
                        __mmask16 lanes, __m512i sums[MOST_DIGITS][2], __m512 scales, int32_t *out)
{
    const bool minima = weight_format_minimum(format);
    const __m512i offset = _mm512_set1_epi32(format == WEIGHTS_Q6 ? -32 : -128);
#pragma GCC unroll 2
    for (int part = 0; part < block_parts(format); part++, out += 2 * m) {
        __m512i low = sums[0][part], high = _mm512_setzero_si512();
        if (digits_made(format, digits) > 1)
            low = _mm512_add_epi32(low, _mm512_slli_epi32(sums[1][part], 8));
        if (digits > 2)
            high = sums[2][part];
        const __m512 whole =
            _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(65536.0f)),
                          _mm512_cvtepi32_ps(low));
        const __m512 sum =
            _mm512_mul_ps(_mm512_mul_ps(whole, _mm512_set1_ps(MINIMA_INPUT)), scales);
        _mm512_mask_storeu_epi32(
            out, lanes, minima ? _mm512_castps_si512(sum) : _mm512_mullo_epi32(low, offset));
        _mm512_mask_storeu_epi32(
            out + m, lanes, minima ? _mm512_setzero_si512() : _mm512_mullo_epi32(high, offset));
    }
}

/* Digits of 16 rows; those past the last are not meant. */
typedef int8_t tile_bytes[16][MOST_DIGITS][Q8_BLOCK];

/* Writes a block of m rows, of which n numbers are there. */
INLINE void fix_tile_block(const enum weight_format format, const int digits, int m, const float *x,
                           int64_t x_stride, int64_t n, tile_bytes bytes, int32_t *out)
{
    _Alignas(LINE) float factors[2][16];
    _Alignas(LINE) int32_t wide[16];
    __m512i sizes[8];
    const __mmask16 lanes = (__mmask16)((1u << m) - 1);
    for (int i = 0; i < m; i++) {
        vec numbers[BLOCK_VECTORS];
        load_block(x + i * x_stride, n, numbers);
        store_fours(numbers, bytes[i][0]);
    }
    turn_fours(bytes[0][0], sizeof bytes[0], sizes);
    const struct tile_scales tile = tile_scales(format, digits, sizes);
    _mm512_store_si512(wide, tile.wide);
    for (int half = 0; half < 2; half++)
        _mm512_store_ps(factors[half], tile.factors[half]);
    for (int i = 0; i < m; i++) {
        vec numbers[BLOCK_VECTORS];
        load_block(x + i * x_stride, n, numbers);
        row_digits(format, digits, numbers, tile.finite >> i & 1,
                   (const float[2]){factors[0][i], factors[1][i]}, bytes[i]);
    }
    __m512i sums[MOST_DIGITS][2];
    const int parts = block_parts(format);
#pragma GCC unroll 3
    for (int d = 0; d < digits; d++) {
        __m512i fours[8];
        turn_fours(bytes[0][d], sizeof bytes[0], fours);
#pragma GCC unroll 8
        for (int four = 0; four < 8; four++)
            _mm512_mask_storeu_epi32(out + fixed_four(m, d, four), lanes, fours[four]);
#pragma GCC unroll 2
        for (int part = 0; part < parts; part++)
            sums[d][part] = sum_fours(fours + part * 8 / parts, 8 / parts);
    }
    if (has_wide(format, digits)) {
        for (int i = 0; i < m; i++)
            write_wide(format, m, wide[i], bytes[i][1], out + i);
        const __m512i seconds = _mm512_maskz_loadu_epi32(lanes, out + fixed_wide(m) + m);
        sums[1][0] = sum_fours(&seconds, 1);
    }
    if (has_halves(format, digits)) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            _mm512_mask_storeu_ps(out + fixed_wide(m) + half * m, lanes, tile.scales[half]);
    }
    _mm512_mask_storeu_ps(out, lanes, tile.scales[0]);
    write_parts(format, digits, m, lanes, sums, tile.scales[0], out + m);
}

/* m rows of n numbers: the bits that fix_row writes. */
INLINE void fix_tile(const enum weight_format format, const int digits, int m, const float *x,
                     int64_t x_stride, int64_t n, int32_t *out)
{
    _Alignas(LINE) tile_bytes bytes = {{{0}}};
    for (int64_t k = 0; k < n; k += Q8_BLOCK, out += m * fixed_words(digits))
        fix_tile_block(format, digits, m, x + k, x_stride, n - k, bytes, out);
}
#elif defined(FOR_NEON)
/* The same in vectors of four, for formats of one part. */
INLINE void load_block(const float *x, int64_t n, vec numbers[BLOCK_VECTORS])
{
    float block[Q8_BLOCK] = {0};
    memcpy(block, x, (size_t)(n < Q8_BLOCK ? n : Q8_BLOCK) * sizeof *block);
    for (int v = 0; v < BLOCK_VECTORS; v++)
        numbers[v] = vec_load(block + v * LANES);
}

INLINE void fix_block(const enum weight_format format, const int digits, const int m,
                      const vec x[BLOCK_VECTORS], int32_t *out, const struct digit_place to)
{
    uint32_t sizes[BLOCK_VECTORS], largest = 0, others = 0;
    int wide = 0;
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        sizes[v] = (uint32_t)vmaxvq_s32((vec_ints)x[v] & INT32_MAX);
        if (sizes[v] > largest) {
            largest = sizes[v];
            wide = v; /* a vector is a four */
        }
    }
    for (int v = 0; v < BLOCK_VECTORS; v++)
        others = v != wide && sizes[v] > others ? sizes[v] : others;
    const bool finite = float_of_bits(largest) < INFINITY;
    if (digits == 1 && finite)
        largest = bits_of_float(largest_beside_wide(float_of_bits(others), float_of_bits(largest)));
    const float factor = fixed_factor(digits, largest);
    int32x4_t fixed[BLOCK_VECTORS], sum = {0}, top_sum = {0};
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        const vec_ints top = vdupq_n_s32(fixed_most(digits == 1 && v == wide ? 2 : digits));
        fixed[v] = vcvtnq_s32_f32(x[v] * vec_set(factor));
        fixed[v] = finite ? vmaxq_s32(vminq_s32(fixed[v], top), -top) : vdupq_n_s32(0);
    }
    for (int v = 0; v < BLOCK_VECTORS; v++)
        sum += fixed[v];
    for (int d = 0; d < digits_made(format, digits); d++) {
        int8_t bytes[Q8_BLOCK];
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const vec_ints digit = fixed[v] << 24 >> 24;
            fixed[v] = (fixed[v] - digit) >> 8;
            if (d == MOST_DIGITS - 1)
                top_sum += digit;
            for (int i = 0; i < LANES; i++)
                bytes[v * LANES + i] = (int8_t)digit[i];
        }
        if (d < digits)
            fix_digits(to, d, bytes);
        else
            write_wide(format, m, wide, bytes, out);
    }
    const float scale = fixed_scale(digits, largest, factor);
    out[0] = (int32_t)bits_of_float(scale);
    write_part(format, m, vaddvq_s32(sum - (top_sum << 16)), vaddvq_s32(top_sum), scale, out + m);
}
#endif

#if defined(__AVX512F__)
/* Whole blocks of a row with one digit, at most so many as a tile has rows: as a tile whose rows
 * are blocks. out: of one of m rows. */
INLINE void fix_blocks(const enum weight_format format, const int m, const float *x, int blocks,
                       tile_bytes bytes, int32_t *out)
{
    const int words = fixed_words(1);
    int32_t tile[16 * (FIXED_ENDS + Q8_BLOCK / 4 + FIXED_WIDE)];
    fix_tile_block(format, 1, blocks, x, Q8_BLOCK, Q8_BLOCK, bytes, tile);
    for (int block = 0; block < blocks; block++)
        for (int word = 0; word < words; word++)
            out[(block * words + word) * m] = tile[word * blocks + block];
}
#endif

/* Row i of a tile of m. */
INLINE void fix_row(const enum weight_format format, const int digits, const int m, int i,
                    const float *x, int64_t n, int32_t *out)
{
    int64_t k = 0;
#if defined(__AVX512F__)
    _Alignas(LINE) tile_bytes bytes = {{{0}}};
    for (int64_t blocks; digits == 1 && (blocks = (n - k) / Q8_BLOCK) > 0;) {
        blocks = blocks < 16 ? blocks : 16;
        fix_blocks(format, m, x + k, (int)blocks, bytes, out + i);
        out += blocks * m * fixed_words(digits);
        k += blocks * Q8_BLOCK;
    }
#endif
    for (; k < n; k += Q8_BLOCK, out += m * fixed_words(digits)) {
        vec numbers[BLOCK_VECTORS];
        load_block(x + k, n - k, numbers);
        fix_block(format, digits, m, numbers, out + i,
                  (struct digit_place){out + i + fixed_four(m, 0, 0), 8 * m, m});
    }
}

/* Inputs [first, end) of n. */
INLINE void fix_rows(const int digits, const enum weight_format format, const float *x,
                     int64_t x_stride, int rows, int64_t n, int64_t first, int64_t end,
                     int32_t *out)
{
    const int64_t words = (n + Q8_BLOCK - 1) / Q8_BLOCK * fixed_words(digits);
    const int64_t before = first / Q8_BLOCK * fixed_words(digits), count = end - first;
    const int64_t claimed = (count + Q8_BLOCK - 1) / Q8_BLOCK * fixed_words(digits);
    const int most = fixed_rows_of(format, digits);
    for (int r = 0, m; r < rows; r += m, out += m * words) {
        const float *tile = x + r * x_stride + first;
        m = rows - r < most ? rows - r : most;
        claim_lines(tile, x_stride, m, count, out + m * before, m * claimed);
        if (m == 1)
            fix_row(format, digits, 1, 0, tile, count, out + before);
#if defined(__AVX512F__)
        else if (m > FEW_FIXED)
            fix_tile(format, digits, m, tile, x_stride, count, out + m * before);
#endif
        else
            for (int i = 0; i < m; i++)
                fix_row(format, digits, m, i, tile + i * x_stride, count, out + m * before);
    }
}

/* Calls with the number of digits of a weight's activations as a constant. */
#define FOR_DIGITS(function, weight, ...)       \
    switch (digits_of((weight)->activations)) { \
    case 1:                                     \
        function(1, __VA_ARGS__);               \
        break;                                  \
    case 2:                                     \
        function(2, __VA_ARGS__);               \
        break;                                  \
    default:                                    \
        function(MOST_DIGITS, __VA_ARGS__);     \
        break;                                  \
    }

/* x as `arrange` writes it for formats whose bytes are multiplied. */
static void arrange_fixed(const struct weight *weight, const float *x, int64_t x_stride, int rows,
                          int64_t first, int64_t end, float *out)
{
    int32_t *fixed = (int32_t *)(void *)out;
    if (weight->format == WEIGHTS_Q8)
        FOR_DIGITS(fix_rows, weight, WEIGHTS_Q8, x, x_stride, rows, weight->in, first, end, fixed)
#if defined(__AVX512F__)
    else if (weight->format == WEIGHTS_Q6)
        FOR_DIGITS(fix_rows, weight, WEIGHTS_Q6, x, x_stride, rows, weight->in, first, end, fixed)
#endif
    else
        FOR_DIGITS(fix_rows, weight, WEIGHTS_Q4, x, x_stride, rows, weight->in, first, end, fixed)
}

#endif
