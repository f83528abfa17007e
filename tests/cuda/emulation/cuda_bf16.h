/* SPDX-License-Identifier: Apache-2.0 */
/* The conversions of bf16 that engine/cuda/ uses. */
#ifndef TESTS_CUDA_EMULATION_CUDA_BF16_H
#define TESTS_CUDA_EMULATION_CUDA_BF16_H

#include "lib/base/half.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return {f32_to_bf16(x)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif
