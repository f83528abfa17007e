#include "engine/base/bytes.h"

float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t exponent = (bits >> 10) & 0x1F;
    uint32_t mantissa = bits & 0x3FF;
    if (exponent == 0x1F)
        return float_of_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent == 0) {
        /* a subnormal is mantissa * 2^-24; the product is exact and normal in f32 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}
