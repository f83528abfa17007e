/* Checked size arithmetic, little-endian reads and half-precision numbers.
 *
 * Files are little-endian and so is every machine we build for; reads go through memcpy, since data
 * in a file may be unaligned. */
#ifndef ENGINE_BASE_BYTES_H
#define ENGINE_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "big-endian machines are not supported");

/* *out = a * b or a + b; false when that overflows (then *out is not to be used). */
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline uint16_t read_u16(const void *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t read_u32(const void *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t read_u64(const void *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bfloat16 is the upper half of a float. */
static inline float bf16_to_f32(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

/* IEEE 754 binary16, exactly: subnormals, infinities and NaNs included. */
float f16_to_f32(uint16_t bits);

#endif
