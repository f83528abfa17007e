/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/divergence.h"
#include "bench/statistics.h"
#include "lib/base/philox.h"

#include <criterion/criterion.h>
#include <math.h>

enum { MOST = 300 };

/* The definition, term by term, in long double. */
static double defined(const float *p, const float *q, int count)
{
    long double p_sum = 0, q_sum = 0, sum = 0;
    for (int i = 0; i < count; i++) {
        p_sum += expl((long double)p[i]);
        q_sum += expl((long double)q[i]);
    }
    for (int i = 0; i < count; i++) {
        long double of_p = expl((long double)p[i]) / p_sum, of_q = expl((long double)q[i]) / q_sum;
        sum += of_p > 0 ? of_p * logl(of_p / of_q) : 0;
    }
    return (double)sum;
}

/* In [0, 1). */
static double uniform(uint32_t seed, int i)
{
    const struct philox counter = {.word = {(uint32_t)i}};
    return philox4x32_10(counter, seed, 0).word[0] / 4294967296.0;
}

static void draw(float *logits, int count, uint32_t seed, float scale)
{
    for (int i = 0; i < count; i++)
        logits[i] = scale * (float)(uniform(seed, i) - 0.5);
}

Test(divergence, is_the_sum_that_defines_it)
{
    static const int counts[] = {1, 2, 63, 64, 65, MOST};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        float p[MOST], q[MOST];
        draw(p, counts[i], 2 * (uint32_t)i, 20);
        draw(q, counts[i], 2 * (uint32_t)i + 1, 20);
        double expected = defined(p, q, counts[i]);
        /* exponentials are right to 1e-15 each, and weights below 2^-126 left out */
        cr_expect_float_eq(divergence_of(p, q, counts[i]), expected, 1e-12 * (1 + expected), "%d",
                           counts[i]);
        cr_expect_eq(divergence_of(p, p, counts[i]), 0);
    }
}

Test(divergence, is_that_of_the_second_from_the_first)
{
    /* p = 1/2, 1/2; q = 1/4, 3/4 */
    const float p[] = {1, 1}, q[] = {0, logf(3)};
    cr_expect_float_eq(divergence_of(p, q, 2), 0.5 * log(4.0 / 3), 1e-7); /* logf's last bit */
    cr_expect_float_eq(divergence_of(q, p, 2), 0.25 * log(0.5) + 0.75 * log(1.5), 1e-7);
}

/* What rounding moves by 1e-4 has a divergence of some 1e-9: f32 would not see it. */
Test(divergence, sees_small_ones)
{
    float p[MOST], q[MOST];
    draw(p, MOST, 7, 20);
    for (int i = 0; i < MOST; i++)
        q[i] = p[i] + 1e-4f * (float)(uniform(8, i) - 0.5);
    double expected = defined(p, q, MOST);
    cr_expect(expected > 1e-12 && expected < 1e-8, "%g", expected);
    cr_expect_float_eq(divergence_of(p, q, MOST), expected, 1e-4 * expected);
}

Test(divergence, of_what_is_impossible)
{
    const float p[] = {1, -INFINITY, 0}, q[] = {1, 0, 0}, missing[] = {1, NAN, 0};
    cr_expect(isfinite(divergence_of(p, q, 3)));
    cr_expect_eq(divergence_of(q, p, 3), INFINITY);
    cr_expect_eq(divergence_of(p, p, 3), 0);
    cr_expect(isnan(divergence_of(missing, q, 3)) && isnan(divergence_of(q, missing, 3)));
}

Test(divergence, summary_of_positions)
{
    struct divergences all = {0};
    struct error err = ERROR_INIT;
    double sum = 0, worst = 0;
    for (int i = 0; i < 201; i++) {
        /* the likeliest is the second of p, and in every third position of q, too */
        const float p[] = {0, 1}, q[] = {i % 3 == 0 ? 0 : 2, 0.01f * (float)i};
        double nats = divergence_of(p, q, 2);
        sum += nats;
        worst = fmax(worst, nats);
        cr_assert_eq(divergences_add(&all, p, q, 2, &err), 0);
    }
    struct divergence_summary summary = divergences_summary(&all);
    cr_expect_float_eq(summary.mean, sum / 201, 1e-12);
    cr_expect_eq(summary.worst, worst);
    cr_expect_eq(summary.p99, all.items[198]); /* 99 in 100 of the 200 steps between them */
    cr_expect(all.items[197] <= summary.p99 && summary.p99 < worst);
    size_t same = 0;
    for (int i = 0; i < 201; i++)
        same += 0.01f * (float)i > (i % 3 == 0 ? 0.0f : 2.0f);
    cr_expect_eq(summary.same_best, (double)same / 201);
    const float numbers[] = {0, 1}, none[] = {0, NAN};
    cr_expect(divergences_add(&all, numbers, none, 2, &err) == -1 && err.code == ERROR_INTERNAL);
    divergences_clear(&all);
}

Test(divergence, quantiles_lie_between_values)
{
    const double values[] = {1, 2, 4, 8, INFINITY};
    cr_expect_eq(statistics_quantile(values, 5, 0), 1);
    cr_expect_eq(statistics_quantile(values, 5, 0.5), 4);
    cr_expect_float_eq(statistics_quantile(values, 4, 0.5), 3, 1e-12);
    cr_expect_eq(statistics_quantile(values, 5, 0.75), 8);
    cr_expect_eq(statistics_quantile(values, 5, 0.99), INFINITY);
    cr_expect_eq(statistics_quantile(values, 1, 0.99), 1);
}
