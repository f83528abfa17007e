/* SPDX-License-Identifier: Apache-2.0 */
/* CMakeLists.txt gives this file the compiler flags of neondot, on 64-bit Arm. */
#ifdef __ARM_FEATURE_DOTPROD
#define FOR_NEON 1
#include "engine/cpu/kernels_dot.h"
#include "engine/cpu/simd.h"

#if FOR_MATRICES
static const struct kernels table =
    KERNELS_TABLE("neonmm", kernel_product_dot, kernel_arrange_dot, DOT_FORMATS);
const struct kernels *const kernels_neonmm = &table;
#else
static const struct kernels table =
    KERNELS_TABLE("neondot", kernel_product_dot, kernel_arrange_dot, DOT_FORMATS);
const struct kernels *const kernels_neondot = &table;
#endif
#else
#include "engine/cpu/kernels.h"

#if defined(FOR_MATRICES)
const struct kernels *const kernels_neonmm = NULL;
#else
const struct kernels *const kernels_neondot = NULL;
#endif
#endif
