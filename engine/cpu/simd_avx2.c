/* SPDX-License-Identifier: Apache-2.0 */
/* CMakeLists.txt gives this file the compiler flags of avx2, on x86-64. */
#ifdef __AVX2__
#include "engine/cpu/simd.h"

static const struct kernels table = KERNELS_TABLE("avx2", kernel_product, kernel_arrange, 0);
const struct kernels *const kernels_avx2 = &table;
#else
#include "engine/cpu/kernels.h"

const struct kernels *const kernels_avx2 = NULL;
#endif
