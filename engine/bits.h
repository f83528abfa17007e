/* SPDX-License-Identifier: Apache-2.0 */
/* The number of the bits that the engine computes. Beside model, formats, instruction set and
 * device it is all that a result's bits depend on, so a state is taken up only by a server that has
 * the number of the one that wrote it. A release that computes the same bits takes up all states.
 *
 * Raise it by one with the change that makes some result's bits others, on any device; for no other
 * reason. What the CPU computes is held by unit test bits/are_those_of_the_number against
 * tests/golden/bits.txt, which is then recorded anew (tests/golden/README.md). */
#ifndef ENGINE_BITS_H
#define ENGINE_BITS_H

enum { ENGINE_BITS = 1 };

#endif
