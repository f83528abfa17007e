/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the machine's peaks, with which `regla bench` compares. kernel_measure_read reads every
 * byte once and does almost nothing with it. The others keep enough independent multiply-adds in
 * registers to fill a unit (enum unit). They return results only so that the compiler cannot remove
 * them.
 *
 * A call of kernel_measure_read moves 4 * count bytes and does count operations. A call of the
 * others moves none and does as many operations as MEASURED_UNITS says of a round. */
#ifndef ENGINE_CPU_KERNELS_MEASURE_H
#define ENGINE_CPU_KERNELS_MEASURE_H

#include "engine/cpu/ahead.h"
#include "engine/cpu/kernels.h"

enum {
    MEASURE_CHAINS = 12, /* at least latency * units; at most the registers less two */
    MEASURE_ROUND_OPERATIONS = 2 * MEASURE_CHAINS * LANES /* of f32 */
};

static float lanes_sum(vec v)
{
    float lanes[LANES], sum = 0;
    vec_store(lanes, v);
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

/* data: [count], a multiple of 8 * LANES. Where products prefetch in two steps, it does so too
 * (Intel: 1.01 times as fast). */
static float kernel_measure_read(const float *data, size_t count)
{
    vec sums[8];
    for (int i = 0; i < 8; i++)
        sums[i] = vec_set(0);
    for (size_t at = 0; at < count; at += 8 * LANES)
        for (int i = 0; i < 8; i++) {
            if (TWO_STEPS)
                ask_once((const char *)(data + at + i * LANES) + ROW_AHEAD, ROW_AHEAD);
            sums[i] = sums[i] + vec_load(data + at + i * LANES);
        }
    for (int i = 1; i < 8; i++)
        sums[0] = sums[0] + sums[i];
    return lanes_sum(sums[0]);
}

/* A function that does rounds of sum = MULTIPLY(sum, x), x of the same bits in every dword. */
#define MEASURE(name, target, bits, MULTIPLY)                 \
    target static float kernel_measure_##name(int64_t rounds) \
    {                                                         \
        const vec x = (vec)((vec_ints){0} + (bits));          \
        vec sums[MEASURE_CHAINS];                             \
        for (int i = 0; i < MEASURE_CHAINS; i++)              \
            sums[i] = x * (float)i;                           \
        for (int64_t round = 0; round < rounds; round++)      \
            for (int i = 0; i < MEASURE_CHAINS; i++)          \
                sums[i] = MULTIPLY(sums[i], x);               \
        for (int i = 1; i < MEASURE_CHAINS; i++)              \
            sums[0] = sums[0] + sums[i];                      \
        return lanes_sum(sums[0]);                            \
    }

#define HALF 0x3f000000
#define MULTIPLY_FLOATS(sum, x) vec_fma(sum, x, x)
MEASURE(floats, , HALF, MULTIPLY_FLOATS)
#define MEASURED_FLOATS .units[UNIT_FLOATS] = {kernel_measure_floats, MEASURE_ROUND_OPERATIONS}
#define MEASURED(unit, name, times) \
    .units[unit] = {kernel_measure_##name, (times)*MEASURE_ROUND_OPERATIONS}

#if defined(__AVX512F__)
#define MULTIPLY_PAIRS(sum, x) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(x))
#define MULTIPLY_BYTES(sum, x) (vec) _mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(x), (__m512i)(x))
MEASURE(pairs, __attribute__((target("avx512bf16"))), HALF, MULTIPLY_PAIRS)
MEASURE(bytes, __attribute__((target("avx512vnni"))), HALF, MULTIPLY_BYTES)
#define MEASURED_UNITS \
    MEASURED_FLOATS, MEASURED(UNIT_PAIRS, pairs, 2), MEASURED(UNIT_BYTES, bytes, 4)
#elif defined(__ARM_FEATURE_DOTPROD)
#define BYTES(x) vreinterpretq_s8_f32(x)
#if FOR_MATRICES
#define PAIRS(x) vreinterpretq_bf16_f32(x)
#define MULTIPLY_PAIRS(sum, x) vbfmmlaq_f32(sum, PAIRS(x), PAIRS(x))
#define MULTIPLY_BYTES(sum, x) (vec) vmmlaq_s32((int32x4_t)(sum), BYTES(x), BYTES(x))
MEASURE(pairs, , HALF, MULTIPLY_PAIRS)
MEASURE(bytes, , HALF, MULTIPLY_BYTES)
#define MEASURED_UNITS \
    MEASURED_FLOATS, MEASURED(UNIT_PAIRS, pairs, 4), MEASURED(UNIT_BYTES, bytes, 8)
#else
#define MULTIPLY_BYTES(sum, x) (vec) vdotq_s32((int32x4_t)(sum), BYTES(x), BYTES(x))
MEASURE(bytes, , HALF, MULTIPLY_BYTES)
#define MEASURED_UNITS MEASURED_FLOATS, MEASURED(UNIT_BYTES, bytes, 4)
#endif
#else
#define MEASURED_UNITS MEASURED_FLOATS
#endif

#endif
