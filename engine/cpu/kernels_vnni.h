/* Products with q8 weights on CPUs that multiply bytes by fours (AVX-512 VNNI), in exact integers.
 *
 * A row of x becomes fixed point of three digits base 256 per block of 32 inputs (struct
 * fixed_block), so a block's sum of quant * digit is exact; per output, over the blocks in order:
 *   acc = fma(fma(p2, 65536, p1 * 256 + p0), weight scale * x scale, acc)
 * 48 multiplications of 64 bytes for 1,024 weights and a row, where f32 takes 64 of 16 numbers;
 * 34/32 bytes a weight once per BLOCK_ROWS rows, and 108 bytes for 32 numbers of x once per panel
 * (kernels_product.h says what share of the limit that reaches).
 *
 * The error is at most that of x in fixed point, 2^-24 of a block's largest |x| times the sum of
 * its |w|, and of 5 roundings a block. */
#ifndef ENGINE_CPU_KERNELS_VNNI_H
#define ENGINE_CPU_KERNELS_VNNI_H

#include "engine/cpu/kernels_product.h"

#include <immintrin.h>

#define VNNI __attribute__((target("avx512vnni")))

enum {
    FIXED_LARGEST = 8355711, /* 127 * (65536 + 256 + 1) */
    VNNI_ROWS = 4,           /* of a tile: 24 sums in registers */
    PAGE_AHEAD = 4096        /* bytes */
};

/* The lowest digit, -128..127, of each number, which becomes the rest. */
static inline __m512i take_digit(__m512i *number)
{
    __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(*number, 24), 24);
    *number = _mm512_srai_epi32(_mm512_sub_epi32(*number, digit), 8);
    return digit;
}

/* x: numbers 0..15 and 16..31 of a block. */
static void fix_block(const __m512 x[2], struct fixed_block *out)
{
    __m512i positive = _mm512_set1_epi32(INT32_MAX); /* all but the sign */
    __m512i bits = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x[0]), positive),
                                    _mm512_and_si512(_mm512_castps_si512(x[1]), positive));
    float largest = float_of_bits((uint32_t)_mm512_reduce_max_epu32(bits));
    bool finite = largest < INFINITY;
    float inverse = finite && largest >= 0x1p-100f ? (float)FIXED_LARGEST / largest : 0.0f;
    __m512i top = _mm512_set1_epi32(FIXED_LARGEST), numbers[2];
    for (int i = 0; i < 2; i++) {
        __m512 scaled = _mm512_mul_ps(x[i], _mm512_set1_ps(inverse));
        numbers[i] = finite ? _mm512_cvtps_epi32(scaled) : _mm512_setzero_si512();
        numbers[i] = _mm512_min_epi32(numbers[i], top);
        numbers[i] = _mm512_max_epi32(numbers[i], _mm512_sub_epi32(_mm512_setzero_si512(), top));
    }
    __m512i sum = _mm512_add_epi32(numbers[0], numbers[1]), top_sum;
    for (int d = 0; d < 3; d++) {
        __m512i low = take_digit(&numbers[0]), high = take_digit(&numbers[1]);
        top_sum = _mm512_add_epi32(low, high);
        _mm_storeu_si128((__m128i *)(void *)out->digits[d], _mm512_cvtepi32_epi8(low));
        _mm_storeu_si128((__m128i *)(void *)(out->digits[d] + 16), _mm512_cvtepi32_epi8(high));
    }
    sum = _mm512_sub_epi32(sum, _mm512_slli_epi32(top_sum, 16));
    out->low_start = -128 * _mm512_reduce_add_epi32(sum);
    out->top_start = -128 * _mm512_reduce_add_epi32(top_sum);
    out->scale = !finite ? NAN : inverse == 0.0f ? 0.0f : largest / (float)FIXED_LARGEST;
}

/* Other threads have just written x and read the blocks of the product before: lines that come one
 * by one where a block's many stores wait for each. So all of them are asked for first, x by
 * prefetches and the blocks by stores: a prefetch for writing made no difference. */
static void claim_lines(const float *x, int64_t n, struct fixed_block *out)
{
    enum { LINE = 64 };
    for (int64_t k = 0; k < n; k += LINE / (int64_t)sizeof *x)
        __builtin_prefetch(x + k);
    volatile char *bytes = (volatile char *)out;
    for (int64_t at = 0; at < (n + 31) / 32 * (int64_t)sizeof *out; at += LINE)
        bytes[at] = 0;
}

static void kernel_fix(const float *x, int64_t n, struct fixed_block *out)
{
    claim_lines(x, n, out);
    for (int64_t k = 0; k < n; k += 32, out++) {
        uint32_t present = n - k >= 32 ? UINT32_MAX : (1u << (n - k)) - 1;
        __m512 numbers[2];
        for (int i = 0; i < 2; i++)
            numbers[i] = _mm512_maskz_loadu_ps((__mmask16)(present >> 16 * i), x + k + 16 * i);
        fix_block(numbers, out);
    }
}

static inline vec block_scale(const struct q8_block *w, const struct fixed_block *x, int half)
{
    return vec_load_f16(w->scales + half * 16) * vec_set(x->scale);
}

/* The sums by digit before the first quant, which is 128 too large. */
static inline __attribute__((always_inline)) void start_sums(__m512i p[3][2],
                                                             const struct fixed_block *x)
{
    p[0][0] = p[0][1] = _mm512_set1_epi32(x->low_start);
    p[1][0] = p[1][1] = _mm512_setzero_si512();
    p[2][0] = p[2][1] = _mm512_set1_epi32(x->top_start);
}

/* What a block adds to 16 outputs of a row: p [3] the exact sums by digit, the lower two
 * of which are right together. */
static inline __m512 block_value(const __m512i p[3][2], int half)
{
    __m512i low = _mm512_add_epi32(_mm512_slli_epi32(p[1][half], 8), p[0][half]);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(p[2][half]), _mm512_set1_ps(65536.0f),
                           _mm512_cvtepi32_ps(low));
}

/* sum += w * the four digits, for every output: one instruction, which compilers make two of. */
VNNI static inline __m512i multiply_four(__m512i sum, __m512i w, const int8_t digits[4])
{
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0"
                     : "+v"(sum)
                     : "v"(w), "m"(*(const int8_t(*)[4])(const void *)digits));
    return sum;
}

/* The same for one row, which waits for memory. The lines of the panel that come next are asked for
 * as far ahead as a core looks, and that is so many instructions: so there are few. The hardware
 * sees the stream and runs ahead of it, but only to the end of a page of 4 KiB: a line of the next
 * one shows it the way. */
VNNI static inline __attribute__((always_inline)) struct row
vnni_row(const struct fixed_block *x, int64_t n, const struct q8_block *w)
{
    struct row row = load_row(NULL);
    for (int64_t b = 0; b < n; b++) {
        __m512i p[3][2];
        start_sums(p, &x[b]);
        __builtin_prefetch((const char *)&w[b] + PAGE_AHEAD, 0, 2);
#pragma GCC unroll 8
        for (int four = 0; four < 8; four++) {
            __m512i low = _mm512_loadu_si512(w[b].quants[four][0]);
            __m512i high = _mm512_loadu_si512(w[b].quants[four][16]);
            __asm__ volatile("" : "+v"(low), "+v"(high)); /* loaded once, in order */
#pragma GCC unroll 3
            for (int d = 0; d < 3; d++) {
                p[d][0] = multiply_four(p[d][0], low, x[b].digits[d] + 4 * four);
                p[d][1] = multiply_four(p[d][1], high, x[b].digits[d] + 4 * four);
            }
        }
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            row.sums[half] =
                vec_fma(block_value(p, half), block_scale(&w[b], &x[b], half), row.sums[half]);
    }
    return row;
}

/* sums [m, 32] = x [m, n blocks] * w [n]; m is a constant at each call. Asks for what lies `ahead`
 * bytes further. */
VNNI static inline __attribute__((always_inline)) void
vnni_tile(const int m, const struct fixed_block *x, int64_t x_stride, int64_t n,
          const struct q8_block *w, int64_t ahead, float *sums)
{
    for (int64_t b = 0; b < n; b++) {
        const char *next = (const char *)&w[b] + ahead;
#pragma GCC unroll 17
        for (size_t line = 0; line < sizeof w[b]; line += 64)
            __builtin_prefetch(next + line, 0, 2);
        __m512i p[VNNI_ROWS][3][2];
#pragma GCC unroll 4
        for (int i = 0; i < m; i++)
            start_sums(p[i], &x[i * x_stride + b]);
#pragma GCC unroll 8
        for (int four = 0; four < 8; four++) {
            __m512i low = _mm512_loadu_si512(w[b].quants[four][0]);
            __m512i high = _mm512_loadu_si512(w[b].quants[four][16]);
#pragma GCC unroll 4
            for (int i = 0; i < m; i++)
#pragma GCC unroll 3
                for (int d = 0; d < 3; d++) {
                    int32_t digits;
                    memcpy(&digits, x[i * x_stride + b].digits[d] + 4 * four, sizeof digits);
                    __m512i input = _mm512_set1_epi32(digits);
                    p[i][d][0] = _mm512_dpbusd_epi32(p[i][d][0], low, input);
                    p[i][d][1] = _mm512_dpbusd_epi32(p[i][d][1], high, input);
                }
        }
#pragma GCC unroll 4
        for (int i = 0; i < m; i++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                float *at = sums + i * PANEL + half * 16;
                vec scale = block_scale(&w[b], &x[i * x_stride + b], half);
                vec start = b > 0 ? vec_load(at) : vec_set(0.0f);
                vec_store(at, vec_fma(block_value(p[i], half), scale, start));
            }
    }
}

static const struct q8_block *blocks_at(const struct product *p, int64_t panel)
{
    return (const struct q8_block *)(const void *)panel_at(p, panel);
}

VNNI static void product_row_vnni(const struct product *p)
{
    int64_t blocks = (p->weight->in + 31) / 32;
    for (int64_t panel = p->first; panel < p->first + p->count; panel++) {
        prepare_finish(p, panel);
        struct row row = vnni_row(p->fixed, blocks, blocks_at(p, panel));
        finish_sums(p, panel, &row);
    }
}

VNNI static void vnni_rows(int m, const struct fixed_block *x, int64_t x_stride, int64_t n,
                           const struct q8_block *w, int64_t ahead, float *sums)
{
    switch (m) {
    case 1: {
        struct row row = vnni_row(x, n, w);
        store_row(&row, sums);
        break;
    }
    case 2:
        vnni_tile(2, x, x_stride, n, w, ahead, sums);
        break;
    case 3:
        vnni_tile(3, x, x_stride, n, w, ahead, sums);
        break;
    default:
        vnni_tile(VNNI_ROWS, x, x_stride, n, w, ahead, sums);
        break;
    }
}

static void kernel_product_vnni(const struct product *p)
{
    if (p->weight->format != WEIGHTS_Q8) {
        kernel_product(p);
        return;
    }
    if (p->num_rows == 1) {
        product_row_vnni(p);
        return;
    }
    float sums[BLOCK_ROWS * PANEL];
    int64_t blocks = (p->weight->in + 31) / 32;
    for (int r = 0, rows; r < p->num_rows; r += rows) {
        rows = p->num_rows - r < BLOCK_ROWS ? p->num_rows - r : BLOCK_ROWS;
        for (int64_t panel = p->first; panel < p->first + p->count; panel++) {
            const struct q8_block *w = blocks_at(p, panel);
            for (int i = 0; i < rows; i += VNNI_ROWS)
                vnni_rows(rows - i < VNNI_ROWS ? rows - i : VNNI_ROWS,
                          p->fixed + (r + i) * p->fixed_stride, p->fixed_stride, blocks, w,
                          i == 0 ? TILE_AHEAD : 0, sums + i * PANEL);
            finish_panel(p, r, rows, panel, sums);
        }
    }
}

#endif
