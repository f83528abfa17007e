/* SPDX-License-Identifier: Apache-2.0 */
/* The conversions of f16 that engine/cuda/ uses. */
#ifndef TESTS_CUDA_EMULATION_CUDA_FP16_H
#define TESTS_CUDA_EMULATION_CUDA_FP16_H

#include "lib/base/half.h"

struct __half {
    uint16_t bits;
};
inline float __half2float(__half x)
{
    return f16_to_f32(x.bits);
}
inline __half __float2half_rn(float x)
{
    return {f32_to_f16(x)};
}
inline unsigned short __half_as_ushort(__half x)
{
    return x.bits;
}
inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}
struct __half2 {
    __half x, y;
};
inline __half2 __floats2half2_rn(float x, float y)
{
    return {__float2half_rn(x), __float2half_rn(y)};
}

#endif
