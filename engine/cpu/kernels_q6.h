/* SPDX-License-Identifier: Apache-2.0 */
/* q6 weights on CPUs that do not multiply bytes by fours: how quants become f32 (kernels_blocks.h
 * multiplies them). kernels.h says how x and scales are scaled. */
#ifndef ENGINE_CPU_KERNELS_Q6_H
#define ENGINE_CPU_KERNELS_Q6_H

#include "engine/cpu/kernels_panel.h"

/* LANES quants of input i of each eight, times their factors: exact, at most 4,096. */
static inline __attribute__((always_inline)) vec
q6_quants(const struct q6_block *block, const int eights, int column, const int i)
{
    typedef int8_t bytes __attribute__((vector_size(LANES)));
    const int half = eights / 2, four = eights % 2 * 2 + i / 4; /* of the half's */
    vec_ints low, high;
    bytes factors;
    memcpy(&low, block->halves[half].low[eights % 2][column], sizeof low);
    memcpy(&high, block->halves[half].high[column], sizeof high);
    memcpy(&factors, block->factors[half] + column, sizeof factors);
    low = low >> (i < 4 ? 8 * i : 8 * (i - 4) + 4) & 15;
    high = high >> (8 * (i % 4) + 2 * four) & 3;
    return __builtin_convertvector((low | high << 4) - 32, vec) *
           __builtin_convertvector(factors, vec);
}

static inline vec q6_scales(const struct q6_block *block, int column)
{
    return vec_load_f16(block->scales + column) * vec_set(Q6_SCALE);
}

#endif
