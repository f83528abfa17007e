/* SPDX-License-Identifier: Apache-2.0 */
/* Products with bf16 weights and x rounded to bf16 (ACTIVATIONS_16BIT), on CPUs that multiply pairs
 * of bf16 (AVX-512 BF16, Arm's BF16).
 *
 * Per output, over pairs of inputs, whatever the number of rows: acc = vdpbf16ps(acc, x, w). It
 * adds both products of the pair, rounded to even; denormals of f32 count as zero. Arm's BFDOT
 * rounds to odd, and BFMMLA (kernels_matrices.h) is two of it. This needs half
 * of the multiplications of kernels_product.h and is otherwise like it: weights lie in memory as
 * they do for f32 activations, and two inputs' rows become pairs in registers.
 *
 * The error is that of x in bf16, 2^-8 of each number, and for n inputs n 2^-23 of the sum of the
 * products' absolute values. How fast it is: loadtest/FIGURES.md, "Kernels". */
#ifndef ENGINE_CPU_KERNELS_BF16_H
#define ENGINE_CPU_KERNELS_BF16_H

#include "engine/cpu/kernels_product.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define BF16 __attribute__((target("avx512bf16")))
typedef __m512i vec_pairs;
#else
typedef int32x4_t vec_pairs;
#define BF16 /* the file's flags say it */
#endif
#define BF16_INLINE BF16 INLINE

enum { PAIRS_BLOCK = 128 }; /* inputs of a tile on their way */

/* Packs numbers [n, m] of a tile of x into out [ceil(n / 2), m], dwords of two inputs each. */
BF16 static void round_pairs(int m, int64_t n, const float *numbers, float *out)
{
#if defined(__AVX512F__)
    int64_t k = 0;
    if (m == 1)
        for (; k + 32 <= n; k += 32, out += 16) {
            __m512 low = _mm512_loadu_ps(numbers + k), high = _mm512_loadu_ps(numbers + k + 16);
            __m512bh pairs = _mm512_cvtne2ps_pbh(high, low);
            memcpy(out, &pairs, sizeof pairs);
        }
    __mmask16 present = (__mmask16)((1 << m) - 1);
    for (; k < n; k += 2, out += m) {
        __m512 low = _mm512_maskz_loadu_ps(present, numbers + k * m);
        __m512 high =
            k + 1 < n ? _mm512_maskz_loadu_ps(present, numbers + (k + 1) * m) : _mm512_setzero_ps();
        __m512i pairs = _mm512_or_si512(
            _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(low)),
            _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(high)), 16));
        _mm512_mask_storeu_epi32(out, present, pairs);
    }
#else
    for (int64_t k = 0; k < n; k += 2, out += m)
        for (int i = 0; i < m; i++) {
            const uint32_t low = f32_to_bf16(numbers[k * m + i]);
            const uint32_t high = k + 1 < n ? f32_to_bf16(numbers[(k + 1) * m + i]) : 0;
            out[i] = float_of_bits(high << 16 | low);
        }
#endif
}

#if defined(__AVX512F__)
/* out [16, m] of dwords, of which four rows: 32 inputs of each of those rows of x, which begin at
 * x and are x_stride apart, in pairs. */
BF16_INLINE void pair_fours(const float *x, int64_t x_stride, int m, float *out)
{
    __m512i row[4], two[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const float *at = x + i * x_stride;
        row[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(at + 16), _mm512_loadu_ps(at));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        two[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
        two[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) { /* and those that are 4, 8 and 12 on */
        const __m512i fours = pair % 2 ? _mm512_unpackhi_epi64(two[pair / 2], two[2 + pair / 2])
                                       : _mm512_unpacklo_epi64(two[pair / 2], two[2 + pair / 2]);
#define STORE(lane)                                                      \
    _mm_storeu_si128((__m128i *)(void *)(out + (4 * (lane) + pair) * m), \
                     _mm512_extracti32x4_epi32(fours, lane))
        STORE(0);
        STORE(1);
        STORE(2);
        STORE(3);
#undef STORE
    }
}

/* The inputs of a tile that come in 32; returns how many. */
BF16 static int64_t pair_inputs(const float *x, int64_t x_stride, int m, int64_t n, float *out)
{
    int64_t k = 0;
    if (m < 4)
        return 0;
    claim_lines(x, x_stride, m, n, out, n / 2 * m);
    for (; k + 32 <= n; k += 32, out += 16 * m) {
        for (int i = 0; i + 4 <= m; i += 4)
            pair_fours(x + i * x_stride + k, x_stride, m, out + i);
        if (m % 4 != 0) /* rows once more, and those that are left */
            pair_fours(x + (m - 4) * x_stride + k, x_stride, m, out + m - 4);
    }
    return k;
}
#else
static int64_t pair_inputs(const float *x, int64_t x_stride, int m, int64_t n, float *out)
{
    (void)x, (void)x_stride, (void)m, (void)n, (void)out;
    return 0;
}
#endif

static void kernel_arrange_bf16(const struct weight *weight, const float *x, int64_t x_stride,
                                int rows, int64_t first, int64_t end, float *out)
{
    float numbers[TILE_ROWS * PAIRS_BLOCK];
    if (weight->activations != ACTIVATIONS_16BIT) {
        kernel_arrange(weight, x, x_stride, rows, first, end, out);
        return;
    }
    for (int r = 0, m; r < rows; r += m) {
        m = tile_height(rows - r);
        float *tile = out + r * weight->in;
        for (int64_t k = first, count; k < end; k += count) {
            count = end - k < PAIRS_BLOCK ? end - k : PAIRS_BLOCK;
            const float *from = x + r * x_stride + k;
            int64_t done = pair_inputs(from, x_stride, m, count, tile + m * (k / 2));
            if (done == count)
                continue;
            arrange_tile(from + done, x_stride, m, count - done, 1.0f, numbers);
            round_pairs(m, count - done, numbers, tile + m * ((k + done) / 2));
        }
    }
}

/* The weights of two inputs for columns j and j + 16 of a panel, LANES outputs each, as they lie in
 * memory. The second input is zero past the last. */
struct two_inputs {
    vec_pairs low, high;
};

INLINE struct two_inputs load_two(const unsigned char *row, bool both)
{
    vec_pairs first, second = {0};
    memcpy(&first, row, sizeof first);
    if (both)
        memcpy(&second, row + ROW_BYTES, sizeof second);
#if defined(__AVX512F__)
    const __mmask32 upper = 0xaaaaaaaa;
    return (struct two_inputs){
        _mm512_mask_blend_epi16(upper, first, _mm512_slli_epi32(second, 16)),
        _mm512_mask_blend_epi16(upper, _mm512_srli_epi32(first, 16), second)};
#else
    const int16x8_t one = vreinterpretq_s16_s32(first), two = vreinterpretq_s16_s32(second);
    return (struct two_inputs){vreinterpretq_s32_s16(vtrn1q_s16(one, two)),
                               vreinterpretq_s32_s16(vtrn2q_s16(one, two))};
#endif
}

BF16_INLINE vec multiply_two(vec sum, vec_pairs w, vec_pairs x)
{
#if defined(__AVX512F__)
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
#else
    return vbfdotq_f32(sum, vreinterpretq_bf16_s32(w), vreinterpretq_bf16_s32(x));
#endif
}

/* sum [m][pairs] += two inputs of x [m] * w. both: there is a second input. */
BF16_INLINE void tile_two(const int m, const int pairs, const float *x, const unsigned char *row,
                          int pair, bool both, vec sum[][2])
{
#pragma GCC unroll 2
    for (int j = 0; j < pairs; j++) {
        struct two_inputs w = load_two(row + (pair + j) * (int)sizeof(vec), both);
#pragma GCC unroll 16
        for (int i = 0; i < m; i++) {
            vec_pairs input = (vec_pairs)vec_set(x[i]);
            sum[i * pairs + j][0] = multiply_two(sum[i * pairs + j][0], w.low, input);
            sum[i * pairs + j][1] = multiply_two(sum[i * pairs + j][1], w.high, input);
        }
    }
}

#if defined(__AVX512F__) /* Arm has tiles by BFMMLA */
/* Like panel_tile (kernels_panel.h). */
BF16_INLINE void pair_tile(const int m, const int pairs, const float *x, int64_t n,
                           const unsigned char *w, struct ahead ahead, int pair, float *sums,
                           bool add)
{
    vec sum[2 * TILE_ROWS][2];
    start_tile(m, pairs, pair, sums, add, sum);
    int64_t k = 0;
    for (; k + 2 <= n; k += 2, x += m) {
        ask(ahead, k, 2);
        tile_two(m, pairs, x, w + k * ROW_BYTES, pair, true, sum);
    }
    if (k < n)
        tile_two(m, pairs, x, w + k * ROW_BYTES, pair, false, sum);
    end_tile(m, pairs, pair, sum, (struct block_end){0}, sums, add);
}

/* Like panel_rows. */
BF16 static void pair_rows(int m, const float *x, int64_t n, const unsigned char *w,
                           struct ahead ahead, float *sums, bool add)
{
    const int pairs = pairs_at_once(WEIGHTS_BF16, m);
    ahead.once = false; /* in two steps it has not been measured */
    ahead.step = ahead.step * pairs / PANEL_PAIR;
    for (int p = 0; p < PANEL_PAIR; p += pairs, ahead.at += n * ahead.step)
        FOR_ROWS(m, 2, TILE_ROWS,
                 pair_tile(M, pairs_at_once(WEIGHTS_BF16, M), x, n, w, ahead, p, sums, add))
}

#endif

/* A pair of the sums of one row [2], as a tile has them. */
static inline vec (*row_sums(struct row *rows, int pair))[2]
{
    return (vec(*)[2])(void *)&rows[pair / PAIRS].sums[pair % PAIRS * 2];
}

/* Like product_row. */
BF16 static void pair_row(const struct product *p)
{
    enum { AT_ONCE = ONE_ROW_INPUTS < 2 ? 2 : ONE_ROW_INPUTS };
    const int pairs = PANEL_PAIR * PAIRS;
    const int64_t n = p->weight->in;
    for (int64_t panel = p->first; panel < p->first + p->count; panel += PANEL_PAIR) {
        struct row rows[PANEL_PAIR];
#pragma GCC unroll 2
        for (int i = 0; i < PANEL_PAIR; i++) {
            rows[i] = zero_row();
            prepare_finish(p, panel + i);
        }
        const unsigned char *w = panel_at(p->weight, panel_number(p, panel));
        int64_t k = 0;
        for (; k + AT_ONCE <= n; k += AT_ONCE) {
            ask_rows(WEIGHTS_BF16, w + k * ROW_BYTES);
#pragma GCC unroll 8
            for (int u = 0; u < AT_ONCE / 2 * pairs; u++)
                tile_two(1, 1, p->x + k / 2 + u / pairs, w + (k + u / pairs * 2) * ROW_BYTES,
                         u % pairs, true, row_sums(rows, u % pairs));
        }
        for (; k < n; k += 2)
#pragma GCC unroll 8
            for (int u = 0; u < pairs; u++)
                tile_two(1, 1, p->x + k / 2, w + k * ROW_BYTES, u, k + 1 < n, row_sums(rows, u));
#pragma GCC unroll 2
        for (int i = 0; i < PANEL_PAIR; i++)
            finish_sums(p, panel + i, &rows[i]);
    }
}

#if defined(__AVX512F__)
static void product_pairs(const struct product *p)
{
    static const struct product_way way = {pair_row, 2, .rows = pair_rows};
    product_by(&way, p);
}
#endif

#endif
