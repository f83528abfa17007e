/* SPDX-License-Identifier: Apache-2.0 */
/* The number of the bits that the engine computes, by formats. Beside model, formats, instruction
 * set and device it is all that a result's bits depend on, so a state is taken up only by a server
 * that has the number of the one that wrote it. A release that computes the same bits in a state's
 * formats takes it up.
 *
 * A change that makes some result's bits others, on any device, gives the formats that it concerns
 * the next number; for no other reason do they get one. What the CPU computes is held by unit test
 * bits/are_those_of_the_numbers against tests/golden/bits.txt, which is then recorded anew
 * (tests/golden/README.md).
 *
 *   2: 8bit rounds all but four of 32 inputs by the largest of these others (0.3.0)
 *   3: q4's own rounding begins with other scales and minima (0.3.0) */
#ifndef ENGINE_BITS_H
#define ENGINE_BITS_H

#include "engine/ops/formats.h"

/* Formats of an opened engine: never auto, but for weights that the file has in several. */
static inline int engine_bits(enum weight_format weights, enum activation_format activations)
{
    return weight_format_minimum(weights) ? 3 : activations == ACTIVATIONS_8BIT ? 2 : 1;
}

#endif
