/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding to four bits by what inputs do: factors, and errors against those of plain rounding. */
#include "engine/quantize/cholesky.h"
#include "engine/quantize/rounding.h"
#include "lib/base/half.h"
#include "tests/unit/ops_bench.h"

#include <stdlib.h>

static struct threads *threads_of(int count)
{
    struct threads *threads;
    struct error err = ERROR_INIT;
    cr_assert(threads_open(&threads, count, &err) == 0, "%s", err.message);
    return threads;
}

/* Sums of x xᵀ of `tokens` inputs, which have neighbours in common, [n, n]. */
static float *sums_of(int64_t n, int tokens, unsigned seed)
{
    float *x = bench_floats(tokens * n, -1, 1, seed), *sums = calloc((size_t)(n * n), sizeof *sums);
    for (int t = 0; t < tokens; t++)
        for (int64_t i = 1; i < n; i++)
            x[t * n + i] += 0.7f * x[t * n + i - 1];
    for (int t = 0; t < tokens; t++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                sums[i * n + j] += x[t * n + i] * x[t * n + j];
    free(x);
    return sums;
}

/* Sizes around the columns that are finished together, on one thread and on several. */
Test(rounding, cholesky_factors)
{
    static const int64_t sizes[] = {1, 2, 63, 64, 65, 150, 259};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int count = 1; count <= 3; count += 2) {
            const int64_t n = sizes[s];
            float *sums = sums_of(n, 2 * (int)n + 3, 5);
            double *a = calloc((size_t)(n * n), sizeof *a);
            struct threads *threads = threads_of(count);
            for (int64_t i = 0; i < n * n; i++)
                a[i] = i % n <= i / n ? (double)sums[i] : NAN; /* what is above is not read */
            cr_assert(cholesky_factor(a, n, threads));
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j <= i; j++) {
                    double sum = 0.0;
                    for (int64_t k = 0; k <= j; k++)
                        sum += a[i * n + k] * a[j * n + k];
                    cr_assert_float_eq(sum, (double)sums[i * n + j],
                                       1e-9 * (double)sums[i * n + i] + 1e-9);
                }
            threads_close(threads);
            free(a);
            free(sums);
        }
}

Test(rounding, cholesky_refuses_what_is_not_positive)
{
    struct threads *threads = threads_of(1);
    double indefinite[4] = {1, 0, 2, 1}, nan[4] = {1, 0, 0, NAN}, zero[1] = {0};
    cr_assert_not(cholesky_factor(indefinite, 2, threads));
    cr_assert_not(cholesky_factor(nan, 2, threads));
    cr_assert_not(cholesky_factor(zero, 1, threads));
    threads_close(threads);
}

/* (w - q) H (w - q)ᵀ, summed over the rows. */
static double error_of(const float *w, const float *q, const float *sums, int64_t rows, int64_t n)
{
    double error = 0.0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                error += (double)(w[r * n + i] - q[r * n + i]) *
                         (double)(w[r * n + j] - q[r * n + j]) * (double)sums[i * n + j];
    return error;
}

struct taken {
    float *numbers; /* [rows, n] */
    int64_t n;
    int *times; /* [rows]: blocks of each */
};

static void take(void *context, int64_t row, int64_t k, const struct quantized_integers *block)
{
    const struct taken *taken = context;
    taken->times[row]++;
    for (int i = 0; i < PACKING_BLOCK; i++) {
        cr_assert(block->quants[i] >= 0 && block->quants[i] <= 15);
        taken->numbers[row * taken->n + k + i] = packing_quant_value(WEIGHTS_Q4, block, i);
    }
}

/* The matrix rounded with the sums, of which it keeps a copy, and by itself. */
static void round_both(const float *w, int64_t rows, int64_t n, const float *sums, int count,
                       float *by_inputs, float *plain)
{
    struct error err = ERROR_INIT;
    struct threads *threads = threads_of(count);
    float *factor = malloc((size_t)(n * n) * sizeof *factor);
    memcpy(factor, sums, (size_t)(n * n) * sizeof *factor);
    const struct matrix matrix = {.rows = rows, .cols = n, .dtype = DTYPE_F32, .data = w};
    struct taken taken = {by_inputs, n, calloc((size_t)rows, sizeof(int))};
    const struct rounding_taker taker = {&taken, take};
    cr_assert(rounding_factor(factor, n, threads, &err) == 0, "%s", err.message);
    cr_assert(rounding_run(&matrix, factor, threads, &taker, &err) == 0, "%s", err.message);
    for (int64_t r = 0; r < rows; r++) {
        cr_assert(taken.times[r] == n / PACKING_BLOCK);
        for (int64_t k = 0; k < n; k += PACKING_BLOCK) {
            struct quantized_integers block;
            cr_assert(packing_quantize(WEIGHTS_Q4, w + r * n + k, PACKING_BLOCK, &block));
            for (int i = 0; i < PACKING_BLOCK; i++)
                plain[r * n + k + i] = packing_quant_value(WEIGHTS_Q4, &block, i);
        }
    }
    free(taken.times);
    free(factor);
    threads_close(threads);
}

Test(rounding, errs_less_where_inputs_go_together)
{
    enum { ROWS = 19, N = 128 };
    float *w = bench_floats(ROWS * N, -1, 1, 7), *sums = sums_of(N, 1000, 11);
    static float by_inputs[ROWS * N], plain[ROWS * N], again[ROWS * N];
    round_both(w, ROWS, N, sums, 3, by_inputs, plain);
    const double error = error_of(w, by_inputs, sums, ROWS, N);
    const double before = error_of(w, plain, sums, ROWS, N);
    cr_expect(error < 0.6 * before, "%g, plain %g", error, before);
    /* each number is near its own: what makes up for others' errors is small */
    for (int i = 0; i < ROWS * N; i++)
        cr_assert(fabsf(by_inputs[i] - w[i]) < 0.6f, "%d: %g, was %g", i, (double)by_inputs[i],
                  (double)w[i]);
    round_both(w, ROWS, N, sums, 1, again, plain);
    cr_assert(memcmp(by_inputs, again, sizeof again) == 0, "the threads change numbers");
    free(w);
    free(sums);
}

/* Of which no text says anything, and of which all texts say the same of each input. */
Test(rounding, without_sums_it_is_plain)
{
    enum { ROWS = 40, N = 64 };
    float *w = bench_floats(ROWS * N, -1, 1, 3);
    static float zero[N * N], one[N * N], by_inputs[ROWS * N], plain[ROWS * N];
    for (int i = 0; i < N; i++)
        one[i * N + i] = 1.0f;
    for (int c = 0; c < 2; c++) {
        round_both(w, ROWS, N, c == 0 ? zero : one, 2, by_inputs, plain);
        const double error = error_of(w, by_inputs, one, ROWS, N);
        const double before = error_of(w, plain, one, ROWS, N);
        cr_expect(error < 1.01 * before, "%g, plain %g", error, before);
    }
    free(w);
}

Test(rounding, equal_numbers_and_those_too_large)
{
    enum { N = 32 };
    struct error err = ERROR_INIT;
    struct threads *threads = threads_of(1);
    float *factor = calloc(N * N, sizeof *factor);
    float w[3 * N], numbers[3 * N];
    int times[3] = {0};
    struct taken taken = {numbers, N, times};
    const struct rounding_taker taker = {&taken, take};
    const struct matrix matrix = {.rows = 3, .cols = N, .dtype = DTYPE_F32, .data = w};
    cr_assert(rounding_factor(factor, N, threads, &err) == 0);
    for (int i = 0; i < 3 * N; i++)
        w[i] = i < N ? 0.0f : i < 2 * N ? -0.25f : (float)(i % 16);
    cr_assert(rounding_run(&matrix, factor, threads, &taker, &err) == 0, "%s", err.message);
    cr_assert(memcmp(numbers, w, sizeof w) == 0, "what four bits can say stays as it is");
    for (int c = 0; c < 3; c++) { /* too far from the others, too large, and both */
        const float large[] = {999424.0f, -70000.0f, 1e9f};
        error_clear(&err);
        for (int i = 0; i < N; i++)
            w[i] = c == 1 ? large[c] + (float)i : 0.0f;
        w[5] = large[c];
        cr_assert(rounding_run(&matrix, factor, threads, &taker, &err) == -1);
        cr_assert(err.code == ERROR_INVALID && strstr(err.message, "too large for q4"), "%s",
                  err.message);
    }
    threads_close(threads);
    free(factor);
}

Test(rounding, sums_that_are_not_finite)
{
    struct threads *threads = threads_of(2);
    for (int c = 0; c < 2; c++) {
        struct error err = ERROR_INIT;
        float *sums = sums_of(40, 100, 1);
        sums[c == 0 ? 0 : 39 * 40] = c == 0 ? INFINITY : NAN; /* below the diagonal */
        cr_assert(rounding_factor(sums, 40, threads, &err) == -1);
        cr_assert(err.code == ERROR_INVALID && strstr(err.message, "finite"), "%s", err.message);
        free(sums);
    }
    threads_close(threads);
}
