/* SPDX-License-Identifier: Apache-2.0 */
/* What every 64-bit Arm has. */
#ifdef __aarch64__
#define FOR_NEON 1
#include "engine/cpu/simd.h"

static const struct kernels table = KERNELS_TABLE("neon", kernel_product, kernel_arrange, 0);
const struct kernels *const kernels_neon = &table;
#else
#include "engine/cpu/kernels.h"

const struct kernels *const kernels_neon = NULL;
#endif
