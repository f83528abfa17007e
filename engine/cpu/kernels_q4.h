/* SPDX-License-Identifier: Apache-2.0 */
/* q4 weights on CPUs that do not multiply bytes by fours: how quants become f32 (kernels_blocks.h
 * multiplies them). kernels.h says how x, scales and minima are scaled. */
#ifndef ENGINE_CPU_KERNELS_Q4_H
#define ENGINE_CPU_KERNELS_Q4_H

#include "engine/cpu/kernels_panel.h"

/* LANES quants: those of input i of each eight. */
static inline __attribute__((always_inline)) vec q4_quants(const uint8_t (*eights)[4], const int i)
{
    vec_ints dwords;
    memcpy(&dwords, eights, sizeof dwords);
    return vec_nibbles(dwords, i);
}

static inline vec q4_scales(const uint16_t *scales, int column)
{
    return vec_load_f16(scales + column) * vec_set(Q4_SCALE);
}

#endif
