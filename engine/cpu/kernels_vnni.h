/* SPDX-License-Identifier: Apache-2.0 */
/* Products with q8, q6 and q4 weights on CPUs that multiply bytes by fours (AVX-512 VNNI), in exact
 * integers.
 *
 * Each block of 32 inputs of x becomes fixed point with three digits of base 256, so a block's sum
 * of quant * digit is exact. Per output, over the blocks in order:
 *
 *   acc = fma(sum of x, minimum, acc)        with q4
 *   acc = fma(fma(p2, 65536, p1 * 256 + p0), weight scale * x scale, acc)
 *
 * In q6 the sum is that of the two halves' inputs, each times its factor: of a number and an fma.
 * With one digit each half has its own scale of x there, and an fma of its own into acc; in q8 and
 * q4 a wide four adds its second digit to p0 (kernels_fixed.h).
 *
 * Four or six bits become eight in registers. 1,024 weights and a row take 48 multiplications of 64
 * bytes, where f32 takes 64 of 16 numbers. Activations of 16 bits (two digits) take 32, of 8 bits
 * (one digit) 18, in q6 16. Weights are read once per BLOCK_ROWS rows, 34/32, 28/32 or 20/32 bytes
 * each; 32 numbers of x once per pair of panels, 116, 84 or 68 bytes. Four rows and more take the
 * digits one after the other in q4, and so does q8 its one (vnni_digits).
 *
 * The error is that of x in fixed point, half of its scale (and with three digits two roundings of
 * x) times the sum of a block's |w|, and of 5 roundings a block. How fast it is:
 * loadtest/FIGURES.md, "Kernels". */
#ifndef ENGINE_CPU_KERNELS_VNNI_H
#define ENGINE_CPU_KERNELS_VNNI_H

#include "engine/cpu/kernels_bf16.h"
#include "engine/cpu/kernels_fixed.h"

#include <immintrin.h>

/* Formats that are multiplied so, a bit each. */
#define VNNI_FORMATS (1u << WEIGHTS_Q8 | 1u << WEIGHTS_Q6 | 1u << WEIGHTS_Q4)

#define VNNI __attribute__((target("avx512vnni")))
#define VNNI_INLINE VNNI INLINE

static void kernel_arrange_vnni(const struct weight *weight, const float *x, int64_t x_stride,
                                int rows, int64_t first, int64_t end, float *out)
{
    if (VNNI_FORMATS >> weight->format & 1)
        arrange_fixed(weight, x, x_stride, rows, first, end, out);
    else
        kernel_arrange_bf16(weight, x, x_stride, rows, first, end, out);
}

/* q6's factors count so much less, and its scales more: their products with x's stay normal. */
#define FACTORS_VALUE 0x1p-7f
#define FACTORS_SCALE 0x1p7f

/* What lies in memory is loaded when it is wanted, and stored at once: compilers would keep it from
 * one use to the next, out of the registers that sums need. */
INLINE void use_memory(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Of 16 outputs of a block. */
INLINE vec weight_scales(const enum weight_format format, const unsigned char *block, int half)
{
    const void *w = block;
    const uint16_t *scales = format == WEIGHTS_Q4   ? ((const struct q4_block *)w)->scales
                             : format == WEIGHTS_Q6 ? ((const struct q6_block *)w)->scales
                                                    : ((const struct q8_block *)w)->scales;
    const vec loaded = vec_load_f16(scales + half * 16);
    if (format == WEIGHTS_Q6)
        return loaded * vec_set(FACTORS_SCALE);
    return loaded;
}

/* 0 in formats that have none. */
INLINE vec weight_minima(const enum weight_format format, const unsigned char *block, int half)
{
    const void *w = block;
    if (!weight_format_minimum(format))
        return vec_set(0.0f);
    return vec_load_f16(((const struct q4_block *)w)->minima + half * 16) * vec_set(MINIMA_SCALE);
}

/* A dword of x as a number, for every output. */
INLINE vec input_number(const int32_t *x)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32(*x));
}

/* Dwords of 16 outputs as quants of their four-th four inputs (of eight): those of its group
 * (group_inputs), and in q6 those with the upper bits of its half. */
INLINE __m512i four_quants(const enum weight_format format, __m512i group, __m512i upper,
                           const int four)
{
    if (format == WEIGHTS_Q8)
        return group;
    const __m512i low = four % 2 == 0 ? group : _mm512_srli_epi16(group, 4);
    if (format == WEIGHTS_Q4)
        return _mm512_and_si512(low, _mm512_set1_epi8(15));
    const __m512i high = four % 4 == 0   ? _mm512_slli_epi16(upper, 4)
                         : four % 4 == 1 ? _mm512_slli_epi16(upper, 2)
                         : four % 4 == 2 ? upper
                                         : _mm512_srli_epi16(upper, 2);
    /* bit by bit: of `high` where the third has none, else of `low`; clang takes no variable */
    enum { LOW_OR_HIGH = 0xe4 };
    return _mm512_and_si512(_mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(15), LOW_OR_HIGH),
                            _mm512_set1_epi8(63));
}

/* The dwords with the upper bits of q6's half of the inputs, of 16 outputs. */
INLINE __m512i upper_dwords(const enum weight_format format, const unsigned char *w, int part,
                            int half)
{
    const void *block = w;
    return format == WEIGHTS_Q6
               ? _mm512_loadu_si512(((const struct q6_block *)block)->halves[part].high[half * 16])
               : _mm512_setzero_si512();
}

/* The sums by digit before the first quant of a part. They compensate that q8's quants are 128 too
 * large, and q6's 32. */
INLINE void start_sums(const enum weight_format format, const int digits, const int m,
                       const int part, __m512i p[MOST_DIGITS][2], const int32_t *x)
{
    const bool offset = !weight_format_minimum(format);
    const int32_t *sums = x + (1 + 2 * part) * m;
    p[0][0] = p[0][1] = offset ? _mm512_set1_epi32(sums[0]) : _mm512_setzero_si512();
    if (digits > 1)
        p[1][0] = p[1][1] = _mm512_setzero_si512();
    if (digits > 2)
        p[2][0] = p[2][1] = offset ? _mm512_set1_epi32(sums[m]) : _mm512_setzero_si512();
}

/* What a block adds to 16 outputs of a row. p: the exact sums by digit; only the sum of the lower
 * two is right. */
INLINE __m512 block_value(const int digits, const __m512i p[MOST_DIGITS][2], int half)
{
    __m512i low = p[0][half];
    if (digits > 1)
        low = _mm512_add_epi32(_mm512_slli_epi32(p[1][half], 8), low);
    if (digits < 3)
        return _mm512_cvtepi32_ps(low);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(p[2][half]), _mm512_set1_ps(65536.0f),
                           _mm512_cvtepi32_ps(low));
}

/* sum += w * the four digits, for every output, in one instruction. Compilers would make two of it.
 */
VNNI static inline __m512i multiply_four(__m512i sum, __m512i w, const int32_t *digits)
{
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*digits));
    return sum;
}

/* sum += what the second digits of the wide four give to 16 outputs of one of m rows. */
VNNI_INLINE __m512i add_wide(__m512i sum, const enum weight_format format, const int m,
                             const int32_t *x, const unsigned char *w, int half)
{
    const int32_t *wide = x + fixed_wide(m);
    __m512i four = _mm512_loadu_si512(w + wide[0] + half * LINE);
    if (format == WEIGHTS_Q4)
        four = _mm512_and_si512(four, _mm512_set1_epi32(wide[2 * m]));
    const __m512i value = multiply_four(_mm512_setzero_si512(), four, wide + m);
    return _mm512_add_epi32(sum, format == WEIGHTS_Q4
                                     ? _mm512_sllv_epi32(value, _mm512_set1_epi32(wide[3 * m]))
                                     : _mm512_slli_epi32(value, 8));
}

/* q6's factors of 16 outputs of a part. */
INLINE __m512 part_factors(const unsigned char *w, const int part, int half)
{
    const int8_t *at = ((const struct q6_block *)(const void *)w)->factors[part] + half * 16;
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
}

/* The same of a part, after `before`, that of the parts before it. */
INLINE __m512 part_value(const enum weight_format format, const int digits, const int part,
                         const __m512i p[MOST_DIGITS][2], const unsigned char *w, int half,
                         __m512 before)
{
    const __m512 value = block_value(digits, p, half);
    if (format != WEIGHTS_Q6)
        return value;
    const __m512 factors = part_factors(w, part, half) * vec_set(FACTORS_VALUE);
    return part == 0 ? _mm512_mul_ps(value, factors) : _mm512_fmadd_ps(value, factors, before);
}

/* What 16 outputs' integer sums of a half of a block count, of inputs of the scale 1. */
INLINE vec half_scales(const unsigned char *w, const int part, int half)
{
    const struct q6_block *block = (const void *)w;
    return part_factors(w, part, half) * vec_load_f16(block->scales + half * 16);
}

/* 16 outputs' sums after such a half of one of m rows. */
INLINE vec end_half(const int m, const int part, __m512i value, const int32_t *x, vec scales,
                    vec sum)
{
    return vec_fma(_mm512_cvtepi32_ps(value), scales * input_number(x + fixed_wide(m) + part * m),
                   sum);
}

/* 16 outputs' sums after a block of one of m rows of x, of the value of its parts. */
INLINE vec end_block(const enum weight_format format, const int m, __m512 value, const int32_t *x,
                     vec scales, vec minima, vec sum)
{
    if (weight_format_minimum(format))
        sum = vec_fma(minima, input_number(x + m), sum);
    return vec_fma(value, scales * input_number(x), sum);
}

INLINE void add_half(const int m, const int part, __m512i value, const int32_t *x, vec scales,
                     bool first, float *sum)
{
    vec_store(sum, end_half(m, part, value, x, scales, first ? vec_set(0.0f) : vec_load(sum)));
}

/* Prefetches line `line` of the block Q8_AHEAD after w. The first line shows the next page to a
 * core that prefetches by itself. */
INLINE void ask_block(const unsigned char *w, int line)
{
    if (ROW_EVERY_LINE || line == 0)
        ask_once((const char *)w + line * LINE + Q8_AHEAD, Q8_AHEAD);
}

enum { GROUP_LINES = PANEL * sizeof(int32_t) / LINE };

/* A group's dwords of 32 outputs, loaded once and in order. */
INLINE void load_group(const enum weight_format format, const unsigned char *w, int group,
                       __m512i dwords[2])
{
    ask_block(w, 2 * group);
    ask_block(w, 2 * group + 1);
    dwords[0] = _mm512_loadu_si512(group_dwords(format, w, group));
    dwords[1] = _mm512_loadu_si512(group_dwords(format, w, group) + 16);
    __asm__ volatile("" : "+v"(dwords[0]), "+v"(dwords[1]));
}

/* p += the digits of a row's x * the quants of a part of a block. */
VNNI_INLINE void multiply_row(const enum weight_format format, const int digits, const int part,
                              const int32_t *x, const unsigned char *w, __m512i p[MOST_DIGITS][2])
{
    const int fours = group_inputs(format) / 4, groups = 8 / fours, parts = block_parts(format);
    __m512i uppers[2] = {upper_dwords(format, w, part, 0), upper_dwords(format, w, part, 1)};
    if (format == WEIGHTS_Q6)
        __asm__ volatile("" : "+v"(uppers[0]), "+v"(uppers[1])); /* before what lies behind */
    const int end = (part + 1) * groups / parts; /* not in the loop: sanitizers add checks to it */
#pragma GCC unroll 8
    for (int group = part * groups / parts; group < end; group++) {
        __m512i dwords[2];
        load_group(format, w, group, dwords);
#pragma GCC unroll 2
        for (int four = group * fours; four < (group + 1) * fours; four++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                const __m512i quants = four_quants(format, dwords[half], uppers[half], four);
#pragma GCC unroll 3
                for (int d = 0; d < digits; d++)
                    p[d][half] = multiply_four(p[d][half], quants, x + fixed_four(1, d, four));
            }
    }
}

/* The same in q4. The upper four bits count 16 times until the end, which saves their shifts. */
VNNI_INLINE void multiply_row_q4(const int digits, const int32_t *x, const unsigned char *w,
                                 __m512i p[MOST_DIGITS][2])
{
    const __m512i lower = _mm512_set1_epi8(15), upper = _mm512_set1_epi8((char)0xf0);
    __m512i uppers[MOST_DIGITS][2];
#pragma GCC unroll 6
    for (int i = 0; i < 2 * digits; i++)
        uppers[i / 2][i % 2] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int group = 0; group < 4; group++) {
        __m512i dwords[2];
        load_group(WEIGHTS_Q4, w, group, dwords);
#pragma GCC unroll 6
        for (int i = 0; i < 2 * digits; i++) {
            const int d = i / 2, half = i % 2;
            p[d][half] = multiply_four(p[d][half], _mm512_and_si512(dwords[half], lower),
                                       x + fixed_four(1, d, 2 * group));
            uppers[d][half] = multiply_four(uppers[d][half], _mm512_and_si512(dwords[half], upper),
                                            x + fixed_four(1, d, 2 * group + 1));
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < 2 * digits; i++)
        p[i / 2][i % 2] =
            _mm512_add_epi32(p[i / 2][i % 2], _mm512_srai_epi32(uppers[i / 2][i % 2], 4));
}

/* The ends of vnni_row, of the sums of a block's parts. */
VNNI_INLINE void end_halves(const int32_t *x, const unsigned char *w, __m512i p[2][MOST_DIGITS][2],
                            struct row *row)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        row->sums[i % 2] = end_half(1, i / 2, p[i / 2][0][i % 2], x, half_scales(w, i / 2, i % 2),
                                    row->sums[i % 2]);
}

VNNI_INLINE void end_row(const enum weight_format format, const int digits, const int32_t *x,
                         const unsigned char *w, __m512i p[2][MOST_DIGITS][2], struct row *row)
{
    const int parts = block_parts(format);
    __m512 value[2] = {0};
    if (parts > 1) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            value[half] = part_value(format, digits, 1, p[1], w, half,
                                     part_value(format, digits, 0, p[0], w, half, value[half]));
    }
    vec scales[2] = {weight_scales(format, w, 0), weight_scales(format, w, 1)};
    __asm__ volatile("" : "+v"(scales[0]), "+v"(scales[1]));
    vec minima[2] = {weight_minima(format, w, 0), weight_minima(format, w, 1)};
    __asm__ volatile("" : "+v"(minima[0]), "+v"(minima[1]));
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        if (has_wide(format, digits))
            p[0][0][half] = add_wide(p[0][0][half], format, 1, x, w, half);
        if (parts == 1)
            value[half] = part_value(format, digits, 0, p[0], w, half, value[half]);
        row->sums[half] =
            end_block(format, 1, value[half], x, scales[half], minima[half], row->sums[half]);
    }
}

/* Adds a block to the sums of one row. Such a row waits for memory, so it prefetches, and takes
 * each line for the first time in the order in which they lie: a Zen 4 foresees that, and little
 * else (loadtest/FIGURES.md, "Kernels"). */
VNNI_INLINE void vnni_row(const enum weight_format format, const int digits, const int32_t *x,
                          const unsigned char *w, struct row *row)
{
    __m512i p[2][MOST_DIGITS][2];
#pragma GCC unroll 8
    for (int line = 32 / group_inputs(format) * GROUP_LINES; line < (int)row_bytes(format) / LINE;
         line++)
        ask_block(w, line); /* its upper bits and scales */
#pragma GCC unroll 2
    for (int part = 0; part < block_parts(format); part++) {
        start_sums(format, digits, 1, part, p[part], x);
        if (format == WEIGHTS_Q4)
            multiply_row_q4(digits, x, w, p[part]);
        else
            multiply_row(format, digits, part, x, w, p[part]);
    }
    use_memory();
    if (has_halves(format, digits))
        end_halves(x, w, p, row);
    else
        end_row(format, digits, x, w, p, row);
}

/* One row, whose panels come in pairs. */
VNNI_INLINE void product_row_vnni(const int digits, const enum weight_format format,
                                  const struct product *p)
{
    const int64_t blocks = (p->weight->in + 31) / 32;
    const int32_t *x = (const int32_t *)(const void *)p->x;
    for (int64_t panel = p->first; panel < p->first + p->count; panel += PANEL_PAIR) {
        const unsigned char *w = panel_at(p->weight, panel_number(p, panel));
        struct row rows[PANEL_PAIR];
#pragma GCC unroll 2
        for (int i = 0; i < PANEL_PAIR; i++) {
            prepare_finish(p, panel + i);
            rows[i] = zero_row();
        }
        for (int64_t b = 0; b < blocks; b++)
#pragma GCC unroll 2
            for (int i = 0; i < PANEL_PAIR; i++, w += row_bytes(format))
                vnni_row(format, digits, x + b * fixed_words(digits), w, &rows[i]);
#pragma GCC unroll 2
        for (int i = 0; i < PANEL_PAIR; i++)
            finish_sums(p, panel + i, &rows[i]);
    }
}

/* sums [m, 32] (+)= x [m] * w, a block each; format, digits and m are constants at each call. */
VNNI_INLINE void vnni_block(const enum weight_format format, const int digits, const int m,
                            const int32_t *x, const unsigned char *w, bool first, float *sums)
{
    const int fours = group_inputs(format) / 4, parts = block_parts(format);
    const vec scales[2] = {weight_scales(format, w, 0), weight_scales(format, w, 1)};
    const vec minima[2] = {weight_minima(format, w, 0), weight_minima(format, w, 1)};
    __m512 values[FIXED_ROWS][2];
#pragma GCC unroll 2
    for (int part = 0; part < parts; part++) {
        __m512i p[FIXED_ROWS][MOST_DIGITS][2];
        const __m512i uppers[2] = {upper_dwords(format, w, part, 0),
                                   upper_dwords(format, w, part, 1)};
#pragma GCC unroll 12
        for (int i = 0; i < m; i++)
            start_sums(format, digits, m, part, p[i], x + i);
        const int end = (part + 1) * 8 / parts;
#pragma GCC unroll 8
        for (int four = part * 8 / parts; four < end; four++) {
            const uint8_t(*group)[4] = group_dwords(format, w, four / fours);
            __m512i low = four_quants(format, _mm512_loadu_si512(group), uppers[0], four);
            __m512i high = four_quants(format, _mm512_loadu_si512(group + 16), uppers[1], four);
#pragma GCC unroll 12
            for (int i = 0; i < m; i++)
#pragma GCC unroll 3
                for (int d = 0; d < digits; d++) {
                    __m512i input = _mm512_set1_epi32(x[fixed_four(m, d, four) + i]);
                    p[i][d][0] = _mm512_dpbusd_epi32(p[i][d][0], low, input);
                    p[i][d][1] = _mm512_dpbusd_epi32(p[i][d][1], high, input);
                }
        }
        vec ends[2] = {{0}};
        if (has_halves(format, digits)) {
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++)
                ends[half] = half_scales(w, part, half);
        }
#pragma GCC unroll 12
        for (int i = 0; i < m; i++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                const __m512 before = part == 0 ? _mm512_setzero_ps() : values[i][half];
                if (has_wide(format, digits))
                    p[i][0][half] = add_wide(p[i][0][half], format, m, x + i, w, half);
                if (has_halves(format, digits))
                    add_half(m, part, p[i][0][half], x + i, ends[half], first && part == 0,
                             sums + i * PANEL + half * 16);
                else
                    values[i][half] = part_value(format, digits, part, p[i], w, half, before);
            }
    }
    if (!has_halves(format, digits)) {
#pragma GCC unroll 12
        for (int i = 0; i < m; i++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                float *sum = sums + i * PANEL + half * 16;
                vec start = first ? vec_set(0.0f) : vec_load(sum);
                vec_store(sum, end_block(format, m, values[i][half], x + i, scales[half],
                                         minima[half], start));
            }
    }
}

/* sum += w * input, in this order, as use_memory has it. */
VNNI_INLINE __m512i multiply_input(__m512i sum, __m512i w, __m512i input)
{
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(input));
    return sum;
}

typedef __m512i integer_sums[FIXED_ROWS][2]; /* of a tile of rows: 24 registers */

/* p += digit d of x [m] * the quants of a block. With one digit the second digits of wide fours,
 * too: among the others, since shifts and additions take other units than multiplications. */
VNNI_INLINE void multiply_digit(const enum weight_format format, const int digits, const int m,
                                const int d, const int32_t *x, const unsigned char *w,
                                integer_sums p)
{
    const int fours = group_inputs(format) / 4;
    const __m512i upper = _mm512_setzero_si512();
    use_memory();
#pragma GCC unroll 8
    for (int four = 0; four < 8; four++) {
        const uint8_t(*group)[4] = group_dwords(format, w, four / fours);
        __m512i low = four_quants(format, _mm512_loadu_si512(group), upper, four);
        __m512i high = four_quants(format, _mm512_loadu_si512(group + 16), upper, four);
#pragma GCC unroll 12
        for (int i = 0; i < m; i++) {
            const __m512i input = _mm512_set1_epi32(x[fixed_four(m, d, four) + i]);
            p[i][0] = multiply_input(p[i][0], low, input);
            p[i][1] = multiply_input(p[i][1], high, input);
            if (digits > 1 || i * 8 / m != four)
                continue;
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++)
                p[i][half] = add_wide(p[i][half], format, m, x + i, w, half);
        }
    }
}

/* vnni_block with one digit after the other, for formats of one part: 24 sums are those of twice or
 * three times as many rows, which share what becomes of a block's quants, scales and minima. */
VNNI_INLINE void vnni_digits(const enum weight_format format, const int digits, const int m,
                             const int32_t *x, const unsigned char *w, bool first, float *sums)
{
    const bool minima = weight_format_minimum(format);
    integer_sums p;
    __m512 top[FIXED_ROWS][2]; /* of the third digit */
    if (first)
        memset(sums, 0, (size_t)m * PANEL * sizeof(float));
#pragma GCC unroll 3
    for (int d = digits - 1; d >= 0; d--) {
#pragma GCC unroll 24
        for (int i = 0; i < 2 * m; i++)
            p[i / 2][i % 2] = d == 0 && digits > 1 ? _mm512_slli_epi32(p[i / 2][i % 2], 8)
                              : minima             ? _mm512_setzero_si512()
                                                   : _mm512_set1_epi32(x[m + i / 2]);
        multiply_digit(format, digits, m, d, x, w, p);
#pragma GCC unroll 24
        for (int i = 0; i < 2 * m; i++)
            if (d == 2)
                top[i / 2][i % 2] = _mm512_cvtepi32_ps(p[i / 2][i % 2]);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        use_memory();
        vec scales = weight_scales(format, w, half), least = weight_minima(format, w, half);
        __asm__ volatile("" : "+v"(scales), "+v"(least)); /* loaded once */
#pragma GCC unroll 12
        for (int i = 0; i < m; i++) {
            float *sum = sums + i * PANEL + half * 16;
            vec value = _mm512_cvtepi32_ps(p[i][half]), start = vec_load(sum);
            if (digits > 2)
                value = vec_fma(top[i][half], vec_set(65536.0f), value);
            if (minima)
                start = vec_fma(least, input_number(x + m + i), start);
            vec_store(sum, vec_fma(value, scales * input_number(x + i), start));
        }
    }
}

/* Whether tiles of more than a few rows take one digit after the other. */
INLINE bool in_digits(const enum weight_format format, const int digits)
{
    return weight_format_minimum(format) || (format == WEIGHTS_Q8 && digits == 1);
}

/* m rows of sums [panels, BLOCK_ROWS, 32]: x [m, n blocks] * w [n, PANEL_PAIR], one panel or both
 * of the pair. format, digits and m are constants at each call. Prefetches `ahead` bytes ahead, if
 * not 0. */
VNNI_INLINE void vnni_tile(const enum weight_format format, const int digits, const int m,
                           const int32_t *x, int64_t n, const unsigned char *pair, int panels,
                           int64_t ahead, float *sums)
{
    const size_t bytes = row_bytes(format);
    for (int64_t b = 0; b < n; b++, x += m * fixed_words(digits))
        for (int panel = 0; panel < panels; panel++) {
            const unsigned char *w = pair + (size_t)(b * PANEL_PAIR + panel) * bytes;
            for (size_t line = 0; ahead != 0 && line < bytes; line += 64)
                __builtin_prefetch(w + ahead + line, 0, TILE_CACHES);
            if (m > FEW_FIXED && in_digits(format, digits))
                vnni_digits(format, digits, m, x, w, b == 0, sums + panel * PANEL_SUMS);
            else
                vnni_block(format, digits, m, x, w, b == 0, sums + panel * PANEL_SUMS);
        }
}

VNNI_INLINE void vnni_rows(const enum weight_format format, const int digits, int m,
                           const int32_t *x, int64_t n, const unsigned char *pair, int panels,
                           int64_t ahead, float *sums)
{
    FOR_ROWS(m, 1, TILE_ROWS,
             if (M <= fixed_rows_of(format, digits))
                 vnni_tile(format, digits, M, x, n, pair, panels, ahead, sums))
}

/* The first tile of rows loads both panels as one stream; the others find each panel in the first
 * cache. */
VNNI_INLINE void product_rows_vnni(const int digits, const enum weight_format format,
                                   const struct product *p)
{
    const int most = fixed_rows_of(format, digits), rows = p->num_rows,
              m = rows < most ? rows : most;
    const int32_t *x = (const int32_t *)(const void *)p->x;
    _Alignas(LINE) float sums[PANEL_PAIR][PANEL_SUMS];
    int64_t blocks = (p->weight->in + 31) / 32;
    for (int64_t panel = p->first; panel < p->first + p->count; panel += PANEL_PAIR) {
        const unsigned char *w = panel_at(p->weight, panel_number(p, panel));
        prepare_rows(p, panel, PANEL_PAIR);
        vnni_rows(format, digits, m, x, blocks, w, PANEL_PAIR, TILE_AHEAD, sums[0]);
        for (int j = 0; j < PANEL_PAIR; j++, w += row_bytes(format))
            for (int i = m; i < rows; i += most)
                vnni_rows(format, digits, rows - i < most ? rows - i : most, x + i * p->x_stride,
                          blocks, w, 1, 0, sums[j] + i * PANEL);
        for (int i = 0; i < PANEL_PAIR; i++)
            finish_panel(p, panel + i, sums[i]);
    }
}

VNNI static void product_q8_vnni(const struct product *p)
{
    if (p->num_rows == 1)
        FOR_DIGITS(product_row_vnni, p->weight, WEIGHTS_Q8, p)
    else
        FOR_DIGITS(product_rows_vnni, p->weight, WEIGHTS_Q8, p)
}

VNNI static void product_q6_vnni(const struct product *p)
{
    if (p->num_rows == 1)
        FOR_DIGITS(product_row_vnni, p->weight, WEIGHTS_Q6, p)
    else
        FOR_DIGITS(product_rows_vnni, p->weight, WEIGHTS_Q6, p)
}

VNNI static void product_q4_vnni(const struct product *p)
{
    if (p->num_rows == 1)
        FOR_DIGITS(product_row_vnni, p->weight, WEIGHTS_Q4, p)
    else
        FOR_DIGITS(product_rows_vnni, p->weight, WEIGHTS_Q4, p)
}

VNNI static void kernel_product_vnni(const struct product *p)
{
    if (p->weight->format == WEIGHTS_Q8)
        product_q8_vnni(p);
    else if (p->weight->format == WEIGHTS_Q6)
        product_q6_vnni(p);
    else if (p->weight->format == WEIGHTS_Q4)
        product_q4_vnni(p);
    else if (p->weight->activations == ACTIVATIONS_16BIT)
        product_pairs(p);
    else
        kernel_product(p);
}

#endif
