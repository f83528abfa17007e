/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which tiles of bf16 add up, with weights in bf16 and in f16, against the same in
 * plain C; and the processor's tiles against their emulation, where it has some. */
#include "engine/cpu/device.h"
#include "engine/model/model.h"
#include "engine/ops/perform.h"
#include "lib/base/half.h"
#include "lib/base/threads.h"
#include "tests/unit/ops_bench.h"

#include <stdio.h>

enum { IN = 333, OUT = 70, ROWS = 35 };

/* y = x W^T. */
static void multiply_in(enum weight_format format, struct backend *backend, const float *w,
                        int rows, float *x, float *y)
{
    const struct matrix matrix = {.rows = OUT, .cols = IN, .data = w};
    struct weight *weight;
    cr_assert(cpu_ops.weight_create(backend, &weight, &matrix, 1, 1, format, NULL) == 0);
    const unsigned saved = threads_flush_denormals();
    perform_matmul(
        &cpu_ops, backend,
        &(struct ops_matmul){.weight = weight, .num_rows = rows, .x = {x, IN}, .y = {y, OUT}});
    threads_restore_float(saved);
    cpu_ops.weight_free(backend, weight);
}

/* One tile's sum of up to 16 pairs: those of the first inputs, of the second, and both. */
static float tile_sum(const float *x, const float *w, int n)
{
    float even = 0.0f, odd = 0.0f;
    for (int k = 0; k < n; k++)
        if (k % 2 == 0)
            even = fmaf(x[k], w[k], even);
        else
            odd = fmaf(x[k], w[k], odd);
    return even + odd;
}

static float upper_part(float x)
{
    return float_of_bits(bits_of_float(x) & 0xffff0000);
}

/* x [n] as parts whose sum it is; or, rounded, in one. */
static int split(const float *x, int n, bool rounded, float parts[3][32])
{
    for (int k = 0; k < n; k++) {
        float rest = x[k];
        if (rounded)
            parts[0][k] = bf16_to_f32(f32_to_bf16(x[k]));
        for (int part = 0; !rounded && part < 3; part++) {
            parts[part][k] = upper_part(rest);
            rest -= parts[part][k];
        }
        cr_assert(rounded || rest == 0.0f, "%a: %a is left", (double)x[k], (double)rest);
    }
    return rounded ? 1 : 3;
}

/* Of weights in bf16, which are one part each, or in f16, which are two. */
static float expected_sum(enum weight_format format, const float *x, const float *w, bool rounded)
{
    float sum = 0.0f;
    const int num_parts = format == WEIGHTS_F16 ? 2 : 1;
    for (int k = 0; k < IN; k += 32) {
        const int n = IN - k < 32 ? IN - k : 32;
        float parts[3][32], weights[32], weight_parts[3][32];
        for (int i = 0; i < n; i++)
            weights[i] = format == WEIGHTS_F16 ? f16_to_f32(f32_to_f16(w[k + i]))
                                               : bf16_to_f32(f32_to_bf16(w[k + i]));
        split(weights, n, false, weight_parts);
        for (int i = 0; i < n; i++)
            cr_assert(weight_parts[num_parts][i] == 0.0f, "%a has more", (double)weights[i]);
        for (int of = num_parts - 1; of >= 0; of--)
            for (int part = split(x + k, n, rounded, parts) - 1; part >= 0; part--)
                sum += tile_sum(parts[part], weight_parts[of], n);
    }
    return sum;
}

static void check_order(const char *set, enum weight_format format,
                        enum activation_format activations)
{
    static const int rows[] = {1, 2, 15, 16, 17, 33, ROWS};
    struct backend *backend = bench_open_rounding(set, 2, format, activations);
    if (backend == NULL)
        cr_skip_test("no %s", set);
    float *x = bench_floats(ROWS * IN, -1, 1, 1), *w = bench_floats(OUT * IN, -1, 1, 2);
    float *expected = bench_nans(ROWS * OUT);
    for (int i = 0; i < ROWS * OUT; i++)
        expected[i] = expected_sum(format, x + i / OUT * IN, w + i % OUT * IN,
                                   activations == ACTIVATIONS_16BIT);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        float *y = bench_nans(ROWS * OUT);
        multiply_in(format, backend, w, rows[r], x, y);
        for (int i = 0; i < rows[r] * OUT; i++)
            cr_assert(bits_of_float(y[i]) == bits_of_float(expected[i]),
                      "%s, %s, %s, %d rows: %d, %d is %a, expected %a", set,
                      weight_format_name(format), activation_format_name(activations), rows[r],
                      i / OUT, i % OUT, (double)y[i], (double)expected[i]);
        cr_assert(rows[r] == ROWS || isnan(y[rows[r] * OUT]), "written past row %d", rows[r]);
        free(y);
    }
    free(x);
    free(w);
    free(expected);
    cpu_ops.close(backend);
}

static void check_orders(const char *set)
{
    check_order(set, WEIGHTS_BF16, ACTIVATIONS_F32);
    check_order(set, WEIGHTS_BF16, ACTIVATIONS_16BIT);
    check_order(set, WEIGHTS_F16, ACTIVATIONS_F32);
    check_order(set, WEIGHTS_F16, ACTIVATIONS_16BIT);
}

Test(tiles, emulated_ones_add_up_as_the_manual_says)
{
    check_orders("amx_emulated");
}

Test(tiles, those_of_the_processor_add_up_as_the_manual_says)
{
    const char *refused = cpu_refused_set();
    cr_assert(refused == NULL || strstr(refused, "other bits") == NULL, "%s", refused);
    check_orders("amx");
}

/* A set agrees with itself, and not with one that has another order: the check can fail. */
Test(tiles, a_processor_that_adds_up_otherwise_is_found)
{
    struct kernels other;
    if (instruction_set_choose("amx_emulated", NULL) == NULL)
        cr_skip_test("no AVX-512 VNNI");
    cr_expect(tiles_agree(kernels_amx_emulated, kernels_amx_emulated));
    other = *kernels_avx512vnni;
    cr_expect(!tiles_agree(&other, kernels_amx_emulated));
}

/* Numbers of all sizes, products under what is normal, infinities and NaN among them; of these not
 * the payload. */
static void check_emulation(enum weight_format format, enum activation_format activations)
{
    static const float scales[] = {1, 1e-20f, 1e-38f, 1e30f, 1e-30f, 1, 1e37f};
    static const float scales_of_f16[] = {1, 1e-7f, 1e-5f, 6e4f, 1e-3f};
    static const int rows[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, ROWS};
    struct backend *one = bench_open_rounding("amx", 1, format, activations);
    if (one == NULL)
        cr_skip_test("no AMX");
    struct backend *other = bench_open_rounding("amx_emulated", 1, format, activations);
    float *x = bench_floats(ROWS * IN, -1, 1, 3), *w = bench_floats(OUT * IN, -1, 1, 4);
    for (int i = 0; i < ROWS * IN; i++)
        x[i] *= scales[i % (sizeof scales / sizeof *scales)];
    for (int i = 0; i < OUT * IN; i++)
        w[i] *= format == WEIGHTS_F16 ? scales_of_f16[i % 5] : scales[i % 5];
    x[4 * IN + 7] = INFINITY;
    x[5 * IN + 40] = NAN;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        float *y = bench_nans(ROWS * OUT), *z = bench_nans(ROWS * OUT);
        multiply_in(format, one, w, rows[r], x, y);
        multiply_in(format, other, w, rows[r], x, z);
        for (int i = 0; i < rows[r] * OUT; i++)
            cr_assert((isnan(y[i]) && isnan(z[i])) || bits_of_float(y[i]) == bits_of_float(z[i]),
                      "%s, %d rows, %d, %d: %a, emulated %a", weight_format_name(format), rows[r],
                      i / OUT, i % OUT, (double)y[i], (double)z[i]);
        free(y);
        free(z);
    }
    free(x);
    free(w);
    cpu_ops.close(one);
    cpu_ops.close(other);
}

Test(tiles, those_of_the_processor_have_the_bits_of_the_emulation)
{
    for (enum weight_format format = WEIGHTS_BF16; format <= WEIGHTS_F16; format++) {
        check_emulation(format, ACTIVATIONS_F32);
        check_emulation(format, ACTIVATIONS_16BIT);
    }
}

/* The sums of bytes are exact, and what ends a block is the same. */
Test(tiles, weights_in_blocks_have_the_bits_of_vnni)
{
    static const int rows[] = {1, 2, 15, 16, 17, 33, ROWS};
    static const enum weight_format formats[] = {WEIGHTS_Q8, WEIGHTS_Q6, WEIGHTS_Q4};
    static const enum activation_format forms[] = {ACTIVATIONS_F32, ACTIVATIONS_16BIT,
                                                   ACTIVATIONS_8BIT};
    float *x = bench_floats(ROWS * IN, -1, 1, 5), *w = bench_floats(OUT * IN, -1, 1, 6);
    for (int kind = 0; kind < 9; kind++) {
        const enum weight_format format = formats[kind / 3];
        const enum activation_format form = forms[kind % 3];
        struct backend *vnni = bench_open_rounding("avx512vnni", 2, format, form);
        if (vnni == NULL)
            cr_skip_test("no AVX-512 VNNI");
        struct backend *tiles = bench_open_rounding("amx_emulated", 2, format, form);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            float *y = bench_nans(ROWS * OUT), *same = bench_nans(ROWS * OUT);
            multiply_in(format, vnni, w, rows[r], x, y);
            multiply_in(format, tiles, w, rows[r], x, same);
            cr_assert(!isnan(y[rows[r] * OUT - 1]));
            cr_expect(memcmp(y, same, ROWS * OUT * sizeof(float)) == 0, "%s, %s, %d rows",
                      weight_format_name(format), activation_format_name(form), rows[r]);
            free(y);
            free(same);
        }
        cpu_ops.close(vnni);
        cpu_ops.close(tiles);
    }
    free(x);
    free(w);
}
