/* SPDX-License-Identifier: Apache-2.0 */
/* simd_avx512.c once more with what a Zen 5 asks memory for (ahead.h): the same bits. */
#define FOR_ZEN5 1
#include "engine/cpu/simd_avx512.c"
