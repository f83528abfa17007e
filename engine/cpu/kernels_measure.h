/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the machine's peaks, with which `regla bench` compares. kernel_measure_read reads every
 * byte once and does almost nothing with it. kernel_measure_multiply keeps enough independent
 * multiply-adds in registers to fill the units. They return results only so that the compiler
 * cannot remove them.
 *
 * A call of kernel_measure_read moves 4 * count bytes and does count operations. A call of
 * kernel_measure_multiply moves none and does rounds * MEASURE_ROUND_OPERATIONS operations. */
#ifndef ENGINE_CPU_KERNELS_MEASURE_H
#define ENGINE_CPU_KERNELS_MEASURE_H

#include "engine/cpu/ahead.h"
#include "engine/cpu/kernels.h"

enum {
    MEASURE_CHAINS = 12, /* at least latency * units; at most the registers less two */
    MEASURE_ROUND_OPERATIONS = 2 * MEASURE_CHAINS * LANES
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

static float kernel_measure_multiply(float factor, int64_t rounds)
{
    vec sums[MEASURE_CHAINS], factors = vec_set(factor), addend = vec_set(1 - factor);
    for (int i = 0; i < MEASURE_CHAINS; i++)
        sums[i] = vec_set((float)i);
    for (int64_t round = 0; round < rounds; round++)
        for (int i = 0; i < MEASURE_CHAINS; i++)
            sums[i] = vec_fma(sums[i], factors, addend);
    for (int i = 1; i < MEASURE_CHAINS; i++)
        sums[0] = sums[0] + sums[i];
    return lanes_sum(sums[0]);
}

#endif
