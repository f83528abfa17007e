/* SPDX-License-Identifier: Apache-2.0 */
/* x in fixed point, for products of bytes (kernels_vnni.h, kernels_dot.h). Both arithmetics write
 * the same bits. */
#ifndef ENGINE_CPU_KERNELS_FIXED_H
#define ENGINE_CPU_KERNELS_FIXED_H

#include "engine/cpu/kernels_product.h"

/* Rows of a tile: 24 sums in registers. */
INLINE int fixed_rows_of(const int digits)
{
    return FIXED_ROWS / digits;
}

/* A tile of x in fixed point has, per block of 32 inputs, fixed_words dwords of each of its m rows;
 * row i's are at i, m apart. x = (d[0] + 256 d[1] + 65536 d[2]) * scale with digits in -128..127.
 * So x / scale is at most +-8355711, in two digits +-32639, in one +-127, and the error is half of
 * the scale: 2^-24, 2^-16 or 2^-8 of the block's largest number (and 0.8 % of that).
 *
 * The dwords are: the scale (0 where all numbers are under 2^-100, NaN where one is not finite);
 * -128 times the sums of d[0] + 256 d[1] and of d[2], which take the 128 out of q8's quants, -32
 * times those of each half for q6's, or with minima the sum of x in f32; the digits, all d[0]
 * first, four inputs to a dword. */
INLINE int fixed_four(const int m, const int d, const int four)
{
    return (FIXED_ENDS + 8 * d + four) * m;
}

/* The sum of a block's inputs counts so much less, and its minima more: it may be larger than any
 * float. */
#define MINIMA_INPUT 0x1p-5f
#define MINIMA_SCALE 0x1p5f

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
    __m512i positive = _mm512_set1_epi32(INT32_MAX); /* all but the sign */
    __m512i bits = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x[0]), positive),
                                    _mm512_and_si512(_mm512_castps_si512(x[1]), positive));
    const uint32_t largest = _mm512_reduce_max_epu32(bits);
    const bool finite = float_of_bits(largest) < INFINITY;
    const float factor = fixed_factor(digits, largest);
    __m512i top = _mm512_set1_epi32(fixed_most(digits)), fixed[2];
    for (int i = 0; i < 2; i++) {
        __m512 scaled = _mm512_mul_ps(x[i], _mm512_set1_ps(factor));
        fixed[i] = finite ? _mm512_cvtps_epi32(scaled) : _mm512_setzero_si512();
        fixed[i] = _mm512_min_epi32(fixed[i], top);
        fixed[i] = _mm512_max_epi32(fixed[i], _mm512_sub_epi32(_mm512_setzero_si512(), top));
    }
    const __m512i sums[2] = {fixed[0], fixed[1]};
    __m512i top_sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int d = 0; d < digits; d++) {
        int8_t bytes[Q8_BLOCK];
        __m512i low = take_digit(&fixed[0]), high = take_digit(&fixed[1]);
        if (d == MOST_DIGITS - 1) {
            top_sums[0] = low;
            top_sums[1] = high;
        }
        _mm_storeu_si128((__m128i *)(void *)bytes, _mm512_cvtepi32_epi8(low));
        _mm_storeu_si128((__m128i *)(void *)(bytes + 16), _mm512_cvtepi32_epi8(high));
        fix_digits(to, d, bytes);
    }
    const float scale = fixed_scale(digits, largest, factor);
    out[0] = (int32_t)bits_of_float(scale);
    write_sums(format, m, sums, top_sums, scale, out + m);
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
    vec_ints most = {0};
    for (int v = 0; v < BLOCK_VECTORS; v++)
        most = vmaxq_s32(most, (vec_ints)x[v] & INT32_MAX);
    const uint32_t largest = (uint32_t)vmaxvq_s32(most);
    const bool finite = float_of_bits(largest) < INFINITY;
    const float factor = fixed_factor(digits, largest);
    const vec_ints top = vdupq_n_s32(fixed_most(digits));
    int32x4_t fixed[BLOCK_VECTORS], sum = {0}, top_sum = {0};
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        fixed[v] = vcvtnq_s32_f32(x[v] * vec_set(factor));
        fixed[v] = finite ? vmaxq_s32(vminq_s32(fixed[v], top), -top) : vdupq_n_s32(0);
    }
    for (int v = 0; v < BLOCK_VECTORS; v++)
        sum += fixed[v];
    for (int d = 0; d < digits; d++) {
        int8_t bytes[Q8_BLOCK];
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const vec_ints digit = fixed[v] << 24 >> 24;
            fixed[v] = (fixed[v] - digit) >> 8;
            if (d == MOST_DIGITS - 1)
                top_sum += digit;
            for (int i = 0; i < LANES; i++)
                bytes[v * LANES + i] = (int8_t)digit[i];
        }
        fix_digits(to, d, bytes);
    }
    const float scale = fixed_scale(digits, largest, factor);
    out[0] = (int32_t)bits_of_float(scale);
    write_part(format, m, vaddvq_s32(sum - (top_sum << 16)), vaddvq_s32(top_sum), scale, out + m);
}
#endif

/* Row i of a tile of m. */
INLINE void fix_row(const enum weight_format format, const int digits, const int m, int i,
                    const float *x, int64_t n, int32_t *out)
{
    for (int64_t k = 0; k < n; k += Q8_BLOCK, out += m * fixed_words(digits)) {
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
    for (int r = 0, m; r < rows; r += m, out += m * words) {
        const float *tile = x + r * x_stride + first;
        m = rows - r < fixed_rows_of(digits) ? rows - r : fixed_rows_of(digits);
        claim_lines(tile, x_stride, m, count, out + m * before, m * claimed);
        if (m == 1)
            fix_row(format, digits, 1, 0, tile, count, out + before);
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
