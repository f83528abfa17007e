/* The conversions of bf16 that engine/cuda/ uses. */
#ifndef TESTS_CUDA_EMULATION_CUDA_BF16_H
#define TESTS_CUDA_EMULATION_CUDA_BF16_H

#include "engine/base/half.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x)
{
    return bf16_to_f32(x.bits);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return {f32_to_bf16(x)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return {bits};
}

#endif
