/* SPDX-License-Identifier: Apache-2.0 */
/* How numbers of weights are read and rounded, and how blocks become integers: that the search for
 * scales and minima finds good ones. */
#include "engine/ops/packing.h"
#include "lib/base/half.h"
#include "tests/unit/ops_bench.h"

static double squared_error(const float *from, int n, float scale, float minimum)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        const double quant = fmin(fmax(rint(((double)from[i] - minimum) / scale), 0.0), 15.0);
        const double error = quant * scale + minimum - from[i];
        sum += error * error;
    }
    return sum;
}

/* The error is that of the scale and minimum, and not above that of the range as it is. */
static double check_q4(const float *from, int n, double *plain)
{
    struct quantized_integers q;
    float lowest = INFINITY, highest = -INFINITY;
    double sum = 0.0;
    cr_assert(packing_quantize(WEIGHTS_Q4, from, n, &q));
    const float scale = f16_to_f32(q.scale), minimum = f16_to_f32(q.minimum);
    for (int i = 0; i < n; i++) {
        const double error = (double)q.quants[i] * scale + minimum - from[i];
        cr_assert(q.quants[i] >= 0 && q.quants[i] <= 15);
        sum += error * error;
        lowest = fminf(lowest, from[i]);
        highest = fmaxf(highest, from[i]);
    }
    *plain = squared_error(from, n, f16_to_f32(f32_to_f16((highest - lowest) / 15)),
                           f16_to_f32(f32_to_f16(lowest)));
    /* where n divides 32 not, some numbers count twice in the search */
    cr_assert(sum <= *plain * (32 % n == 0 ? 1.001 : 2.0), "%d: %g, plain %g", n, sum, *plain);
    cr_assert(fabs(sum - squared_error(from, n, scale, minimum)) <= sum * 1e-3 + 1e-12);
    return sum;
}

/* Numbers that are about normal, as weights are; whole blocks and shorter ones. */
Test(packing, q4_searches_for_the_least_error)
{
    double all = 0.0, all_plain = 0.0;
    float *numbers = bench_floats(20000 * 4, -1, 1, 19);
    for (int block = 0; block < 600; block++) {
        const int n = block % 4 == 3 ? 1 + block % 32 : 32;
        float from[PACKING_BLOCK];
        double plain;
        for (int i = 0; i < n; i++) {
            const float *four = numbers + (block * 32 + i) * 4;
            from[i] = four[0] + four[1] + four[2] + four[3];
        }
        all += check_q4(from, n, &plain);
        all_plain += plain;
    }
    cr_expect(all < 0.9 * all_plain, "%g, without a search %g", all, all_plain);
    free(numbers);
}

/* Half a quant of the outermost number each would be the worst; the search is better than 31 even
 * steps around 0. */
Test(packing, q6_searches_for_the_least_error)
{
    double all = 0.0, plain = 0.0;
    float *numbers = bench_floats(600 * PACKING_BLOCK * 4, -1, 1, 23);
    for (int block = 0; block < 600; block++) {
        const float size = ldexpf(1.0f, -(block % 12));
        struct quantized_integers q;
        float from[PACKING_BLOCK];
        for (int i = 0; i < PACKING_BLOCK; i++) {
            const float *four = numbers + (block * PACKING_BLOCK + i) * 4;
            from[i] = (four[0] + four[1] + four[2] + four[3]) * size;
        }
        cr_assert(packing_quantize(WEIGHTS_Q6, from, PACKING_BLOCK, &q));
        for (int half = 0; half < 2; half++) {
            double outermost = 0.0;
            for (int i = half * 16; i < half * 16 + 16; i++)
                outermost = fmax(outermost, fabs((double)from[i]));
            for (int i = half * 16; i < half * 16 + 16; i++) {
                const double wrong = fabs((double)packing_quant_value(WEIGHTS_Q6, &q, i) - from[i]);
                const double even = remainder(from[i], outermost / 31);
                cr_assert(q.quants[i] >= -32 && q.quants[i] <= 31);
                cr_assert(wrong <= outermost / 16 + 0x1p-24 * 32, "%g of %g", wrong, outermost);
                all += wrong * wrong / (size * size);
                plain += even * even / (size * size);
            }
        }
    }
    cr_expect(all < 0.95 * plain, "%g, without a search %g", all, plain);
    free(numbers);
}

Test(packing, q6_keeps_what_it_can_say)
{
    float from[PACKING_BLOCK];
    struct quantized_integers q;
    for (int i = 0; i < PACKING_BLOCK; i++) /* a factor of 127 and one of 2, if it is found */
        from[i] = i < 16 ? (float)(i * 9 % 64 - 32) * 127 * 0x1p-10f : (float)(i % 3 - 1) * 0x1p-3f;
    cr_assert(packing_quantize(WEIGHTS_Q6, from, PACKING_BLOCK, &q));
    for (int i = 0; i < 16; i++)
        cr_assert_eq(packing_quant_value(WEIGHTS_Q6, &q, i), from[i]);
    for (int i = 16; i < PACKING_BLOCK; i++)
        cr_assert(fabsf(packing_quant_value(WEIGHTS_Q6, &q, i) - from[i]) <= 0x1p-3f / 32);
    memset(from, 0, sizeof from);
    cr_assert(packing_quantize(WEIGHTS_Q6, from, PACKING_BLOCK, &q));
    for (int i = 0; i < PACKING_BLOCK; i++)
        cr_assert_eq(packing_quant_value(WEIGHTS_Q6, &q, i), 0.0f);
}

/* Also where squared errors overflow. */
Test(packing, what_is_past_every_scale_is_refused)
{
    const enum weight_format formats[] = {WEIGHTS_Q8, WEIGHTS_Q6, WEIGHTS_Q4};
    const float sizes[] = {1e9f, 1e12f, 1e15f, 1e18f, 1e19f, 1e21f, 1e25f, 1e30f, 3e38f, INFINITY};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            float from[PACKING_BLOCK];
            struct quantized_integers q;
            for (int i = 0; i < PACKING_BLOCK; i++)
                from[i] = sizes[s] * ((float)((i * 37 + 11) % 101 - 50) / 51.3f);
            cr_expect_not(packing_quantize(formats[f], from, PACKING_BLOCK, &q), "%s of %g",
                          weight_format_name(formats[f]), sizes[s]);
        }
}

/* What four bits can say is kept: equal numbers, and steps of a scale. */
Test(packing, q4_keeps_what_it_can_say)
{
    float equal[PACKING_BLOCK], steps[PACKING_BLOCK];
    struct quantized_integers q;
    for (int i = 0; i < PACKING_BLOCK; i++) {
        equal[i] = 0.375f;
        steps[i] = (float)(i * 7 % 16) * 0.25f - 3.0f;
    }
    cr_assert(packing_quantize(WEIGHTS_Q4, equal, PACKING_BLOCK, &q));
    for (int i = 0; i < PACKING_BLOCK; i++)
        cr_assert_eq((float)q.quants[i] * f16_to_f32(q.scale) + f16_to_f32(q.minimum), 0.375f);
    cr_assert(packing_quantize(WEIGHTS_Q4, steps, PACKING_BLOCK, &q));
    for (int i = 0; i < PACKING_BLOCK; i++)
        cr_assert_eq((float)q.quants[i] * f16_to_f32(q.scale) + f16_to_f32(q.minimum), steps[i]);
}

/* Of blocks as of single numbers, and of q8 as rintf rounds. */
Test(packing, blocks_are_rounded_as_numbers_are)
{
    float from[PACKING_BLOCK];
    uint32_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < PACKING_BLOCK; i++) {
            seed = seed * 1664525 + 1013904223;
            const uint32_t exponent = round % 3 == 0 ? 0 : 0x3f800000;
            from[i] = float_of_bits(exponent == 0 ? seed : exponent | (seed & 0x807fffff));
            if (round % 3 == 1) /* halves of a scale: ties */
                from[i] = (float)(int)(seed >> 24) / 2;
        }
        for (enum weight_format format = WEIGHTS_BF16; format <= WEIGHTS_F16; format++) {
            uint16_t all[PACKING_BLOCK], one;
            bool fits = true;
            const bool all_fit = packing_halves(format, from, all);
            for (int i = 0; i < PACKING_BLOCK; i++) {
                fits = packing_half(format, from[i], &one) && fits;
                cr_assert_eq(all[i], one);
            }
            cr_assert_eq(all_fit, fits);
        }
        struct quantized_integers q;
        if (round % 3 == 0 || !packing_quantize(WEIGHTS_Q8, from, PACKING_BLOCK, &q))
            continue;
        const float scale = f16_to_f32(q.scale);
        for (int i = 0; i < PACKING_BLOCK; i++) {
            const float quant = rintf(from[i] / scale);
            cr_assert_eq(q.quants[i], (int)(quant > 127 ? 127 : quant < -127 ? -127 : quant));
        }
    }
}

Test(packing, halves_are_read_exactly)
{
    static const uint16_t half[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x0001,
                                    0x03ff, 0x0400, 0x7bff, 0x3555, 0x7c00};
    static const float half_values[] = {
        0.0f,     -0.0f,    1.0f,        -2.0f,   0x1p-24f, 1023e0f * 0x1p-24f,
        0x1p-14f, 65504.0f, 0x1.554p-2f, INFINITY};
    static const uint16_t brain[] = {0x3f80, 0xbf80, 0x4049, 0x0080};
    static const float brain_values[] = {1.0f, -1.0f, 3.140625f, 0x1p-126f};
    float out[10];
    const struct matrix f16 = {.rows = 1, .cols = 10, .dtype = DTYPE_F16, .data = half};
    packing_numbers(&f16, 0, 10, out);
    cr_expect(memcmp(out, half_values, sizeof half_values) == 0);
    const struct matrix bf16 = {.rows = 1, .cols = 4, .dtype = DTYPE_BF16, .data = brain};
    packing_numbers(&bf16, 0, 4, out);
    cr_expect(memcmp(out, brain_values, sizeof brain_values) == 0);
}
