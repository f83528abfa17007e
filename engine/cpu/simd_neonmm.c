/* SPDX-License-Identifier: Apache-2.0 */
/* simd_neondot.c once more for cores that multiply matrices of bytes and of bf16 as well. */
#define FOR_MATRICES 1
#include "engine/cpu/simd_neondot.c"
