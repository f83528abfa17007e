/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of matrices packed for the device, in the order in which the lanes of a warp load them:
 * [heads][panels][blocks].
 *
 * A panel is 16 outputs (f32: 32), a block of it 32 inputs; past the last there are zeros. The
 * table says what a lane has of a block, with g = lane / 4 and t = lane % 4.
 *
 * The inputs of a step are permuted, which a sum does not mind, so that lane t of a fragment `b`
 * needs inputs [8t, 8t + 8) of a block of x: 32 bytes beside each other. */
#ifndef ENGINE_CUDA_WEIGHT_BLOCKS_H
#define ENGINE_CUDA_WEIGHT_BLOCKS_H

#include "engine/ops/formats.h"

#include <stddef.h>

/* clang-format off */
/* format     a block                       what lies there
 * ---------  ----------------------------  -----------------------------------------------------
 * bf16, f16  [2 steps][32 lanes][4][2]     the fragments `a` of two mma (common.cuh): element e
 *                                          of register r in step s is output g + 8 (r % 2),
 *                                          input 8t + 4s + 2 (r / 2) + e
 * q8         [32 lanes][2 steps][4][2],    the same as bytes, 128 + quant;
 *            then [8][2] in f16            scales of outputs g and g + 8
 * q6         [32 lanes][2 steps][4] in    four bits of the same, 32 + quant, in q4's place;
 *            16 bits, [32 lanes] in 32,   the upper two of register r of step s in bits 8s + 2r
 *            [8][2][2] bytes,             and 16 more; factors of outputs g and g + 8, for both
 *            then [8][2] in f16           halves of the inputs; scales of the outputs
 * q4         [32 lanes][2 steps] in 32    quants: element e of register r in bits 4r + 16e of a
 *            bits, then [2][8][2] in f16  step; scales of outputs g and g + 8, and minima
 * f32        [8][32 lanes][4]              for each four of inputs; lanes are outputs */
/* clang-format on */

enum { BLOCK_INPUTS = 32, F32_OUTPUTS = 32, FRAGMENT_OUTPUTS = 16, Q8_SCALES = 512 };
enum { Q6_HIGH = 256, Q6_FACTORS = 384, Q6_SCALES = 416, Q4_SCALES = 256, Q4_MINIMA = 288 };

constexpr bool is_f16(enum weight_format format)
{
    return weight_format_kind(format) == WEIGHT_HALVES &&
           !weight_format_has(format, HAS_WIDE_EXPONENT);
}

constexpr int panel_outputs(enum weight_format format)
{
    return weight_format_kind(format) == WEIGHT_FLOATS ? F32_OUTPUTS : FRAGMENT_OUTPUTS;
}

/* A multiple of 32: the sectors of a load are full. */
constexpr size_t block_bytes(enum weight_format format)
{
    return (size_t)(panel_outputs(format) * (BLOCK_INPUTS / weight_format_block(format)) *
                    weight_format_bytes(format));
}

template <enum weight_format format> constexpr size_t BLOCK_BYTES = block_bytes(format);

#endif
