/* SPDX-License-Identifier: Apache-2.0 */
/* Converts numbers of two bytes, f16 (IEEE 754 binary16) and bf16 (the upper half of an f32), to
 * f32 and back; and those of one byte, e4m3, to f32.
 *
 * To f32 every value converts exactly: subnormals, infinities and NaNs (which become quiet). To two
 * bytes it is rounded to nearest, ties to even; too large becomes infinite. Nothing branches on
 * data, so compilers turn loops over these into vector loops. Flushing denormals changes results
 * only for values that are denormals in f32, which no f16 value is. */
#ifndef LIB_BASE_HALF_H
#define LIB_BASE_HALF_H

#include "lib/base/bytes.h"

static inline float bf16_to_f32(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

static inline uint16_t f32_to_bf16(float value)
{
    uint32_t bits = bits_of_float(value);
    uint32_t quiet = bits >> 16 | 0x40;
    uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : nearest);
}

static inline float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = (uint32_t)(bits & 0x7fff) << 13;
    uint32_t normal = rest + (112u << 23), special = rest | 0x7f800000;
    /* 2^-14 (1 + f) - 2^-14: subnormals of f16 are normal in f32 */
    uint32_t subnormal = bits_of_float(float_of_bits(rest + (113u << 23)) - 0x1p-14f);
    special |= rest > 0x0f800000 ? 0x400000u : 0;
    normal = rest >= 0x0f800000 ? special : normal;
    return float_of_bits(sign | (rest < 0x00800000 ? subnormal : normal));
}

static inline uint16_t f32_to_f16(float value)
{
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    uint32_t quiet = 0x7e00 | (rest >> 13 & 0x3ff);
    uint32_t normal = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    /* the last place of 0.5f is 2^-24, as of f16's subnormals */
    uint32_t subnormal = bits_of_float(float_of_bits(rest) + 0.5f) - bits_of_float(0.5f);
    normal = rest < 0x38800000 ? subnormal : normal;
    normal = rest >= 0x47800000 ? 0x7c00 : normal;
    return (uint16_t)(sign | (rest > 0x7f800000 ? quiet : normal));
}

/* OCP's 8-bit float with 4 bits of exponent: no infinities, and 0x7f is the only NaN. */
static inline float e4m3_to_f32(uint8_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x80) << 24, rest = (uint32_t)(bits & 0x7f) << 20;
    uint32_t normal = rest + (120u << 23), nan = 0x7fc00000;
    /* 2^-6 (1 + f) - 2^-6 */
    uint32_t subnormal = bits_of_float(float_of_bits(rest + (121u << 23)) - 0x1p-6f);
    normal = rest < 0x00800000 ? subnormal : normal;
    return float_of_bits(sign | (rest == 0x07f00000 ? nan : normal));
}

#endif
