/* SPDX-License-Identifier: Apache-2.0 */
/* q8 weights on CPUs that do not multiply bytes by fours: how quants become f32 (kernels_blocks.h
 * multiplies them). kernels.h says how x, quants and scales are scaled. */
#ifndef ENGINE_CPU_KERNELS_Q8_H
#define ENGINE_CPU_KERNELS_Q8_H

#include "engine/cpu/kernels_panel.h"

/* LANES quants times 2^24: those of input i of each four. */
static inline __attribute__((always_inline)) vec q8_quants(const uint8_t (*fours)[4], const int i)
{
    vec_ints bytes;
    memcpy(&bytes, fours, sizeof bytes);
    bytes ^= INT32_C(-0x7f7f7f80); /* 128 less, in each byte */
    return __builtin_convertvector(vec_raise_byte(bytes, i), vec);
}

static inline vec q8_scales(const struct q8_block *w, int column)
{
    return vec_load_f16(w->scales + column) * vec_set(Q8_SCALE);
}

#endif
