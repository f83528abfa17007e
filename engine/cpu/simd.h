/* SPDX-License-Identifier: Apache-2.0 */
/* The body of every simd_*.c: all kernels, for the instruction set that the file is compiled for.
 */
#ifndef ENGINE_CPU_SIMD_H
#define ENGINE_CPU_SIMD_H

#include "engine/cpu/kernels_attention.h"
#include "engine/cpu/kernels_conv.h"
#include "engine/cpu/kernels_elementwise.h"
#include "engine/cpu/kernels_measure.h"
#include "engine/cpu/kernels_product.h"
#include "engine/cpu/kernels_recurrence.h"
#include "engine/cpu/kernels_window.h"

#define KERNELS_MEMBERS(name_string, product_kernel, arrange_kernel, attention_kernel, fixes_x) \
    .name = (name_string), .product = (product_kernel), .arrange = (arrange_kernel),            \
    .fixes = (fixes_x), .norm = kernel_norm, .map = kernel_map, .conv = kernel_conv,            \
    .angles = kernel_angles, .positions = kernel_positions, .recurrence = kernel_recurrence,    \
    .append = kernel_append, .attention = attention_kernel, .segments = kernel_segments,        \
    .window = kernel_window, .measure_read = kernel_measure_read, MEASURED_UNITS

#define KERNELS_TABLE(name_string, product_kernel, arrange_kernel, fixes_x)                     \
    {                                                                                           \
        KERNELS_MEMBERS(name_string, product_kernel, arrange_kernel, kernel_attention, fixes_x) \
    }

#endif
