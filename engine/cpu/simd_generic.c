/* SPDX-License-Identifier: Apache-2.0 */
/* The portable kernels: vectors of four, no fused multiply-add. */
#include "engine/cpu/simd.h"

static const struct kernels table = KERNELS_TABLE("generic", kernel_product, kernel_arrange, 0);
const struct kernels *const kernels_generic = &table;
