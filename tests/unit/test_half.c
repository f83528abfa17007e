/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of two bytes, all of them, against arithmetic in float64. */
#include "lib/base/half.h"

#include "lib/base/threads.h"

#include <criterion/criterion.h>
#include <math.h>

/* What 16 bits with `fraction_bits` of fraction stand for. */
static double value_of(uint32_t bits, int fraction_bits)
{
    int exponent_bits = 15 - fraction_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits & 0x7fff) >> fraction_bits;
    double fraction = (double)(bits & ((1u << fraction_bits) - 1)) / (1 << fraction_bits);
    double value = exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias);
    if (exponent == (1 << exponent_bits) - 1)
        value = fraction == 0 ? INFINITY : NAN;
    return bits & 0x8000 ? -value : value;
}

static void check_format(const char *name, int fraction_bits, float (*wide)(uint16_t),
                         uint16_t (*narrow)(float))
{
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        double value = value_of(bits, fraction_bits);
        float got = wide((uint16_t)bits);
        if (isnan(value)) {
            cr_assert(isnan(got) && isnan(wide(narrow(got))), "%s 0x%04x", name, bits);
            continue;
        }
        cr_assert((double)got == value && !signbit(got) == !(bits & 0x8000), "%s 0x%04x: %g", name,
                  bits, (double)got);
        cr_assert(narrow(got) == bits, "%s 0x%04x: back as 0x%04x", name, bits, narrow(got));
        uint32_t even = bits + (bits & 1);
        if (isinf(value))
            continue;
        /* Half way to the next one (past the largest: where that one would be), exact in f32. */
        double next = isinf(value_of(bits + 1, fraction_bits))
                          ? 2 * value - value_of(bits - 1, fraction_bits)
                          : value_of(bits + 1, fraction_bits);
        float middle = (float)((value + next) / 2);
        cr_assert((double)middle == (value + next) / 2);
        cr_assert(narrow(middle) == even, "%s, half way from 0x%04x: 0x%04x", name, bits,
                  narrow(middle));
        uint16_t below = narrow(nextafterf(middle, (float)value));
        uint16_t above = narrow(nextafterf(middle, signbit(middle) ? -INFINITY : INFINITY));
        cr_assert(below == bits && above == bits + 1, "%s, around half way from 0x%04x: %x %x",
                  name, bits, below, above);
    }
    float largest = 0x1.fffffep127f, least = 0x1p-149f;
    uint16_t infinite = narrow(INFINITY);
    cr_assert(narrow(largest) == infinite && narrow(-largest) == (infinite | 0x8000), "%s", name);
    cr_assert(narrow(least) == 0 && narrow(-least) == 0x8000, "%s", name);
    cr_assert(isnan(wide(narrow(float_of_bits(0x7f800001)))), "%s", name);
}

Test(half, every_f16_is_exact_and_every_middle_goes_to_the_even_one)
{
    check_format("f16", 10, f16_to_f32, f32_to_f16);
}

Test(half, every_bf16_is_exact_and_every_middle_goes_to_the_even_one)
{
    check_format("bf16", 7, bf16_to_f32, f32_to_bf16);
}

/* As in a step. */
Test(half, f16_is_the_same_where_denormals_are_flushed)
{
    uint32_t plain = 0, flushed = 0;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = f16_to_f32((uint16_t)bits);
        plain = plain * 31 + bits_of_float(value) + f32_to_f16(value * 1.0001f);
    }
    unsigned saved = threads_flush_denormals();
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = f16_to_f32((uint16_t)bits);
        flushed = flushed * 31 + bits_of_float(value) + f32_to_f16(value * 1.0001f);
    }
    threads_restore_float(saved);
    cr_assert_eq(plain, flushed);
}

/* 4 bits of exponent; the largest exponent is one of numbers, but for the last fraction. */
Test(half, every_e4m3_is_exact)
{
    for (int bits = 0; bits < 256; bits++) {
        int exponent = bits >> 3 & 15;
        double fraction = (bits & 7) / 8.0;
        double value = exponent == 0 ? ldexp(fraction, -6) : ldexp(1 + fraction, exponent - 7);
        float got = e4m3_to_f32((uint8_t)bits);
        if ((bits & 0x7f) == 0x7f)
            cr_expect(isnan(got), "0x%02x: %g", (unsigned)bits, (double)got);
        else
            cr_expect((double)fabsf(got) == value && !signbit(got) == !(bits & 0x80),
                      "0x%02x: %g, expected %g", (unsigned)bits, (double)got, value);
    }
}
