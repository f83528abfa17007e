/* SPDX-License-Identifier: Apache-2.0 */
/* engine/ops/formulas.h against float64, and its vector form against its scalar form. */
#include "engine/ops/formulas.h"

#include "engine/cpu/kernels.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdint.h>

/* |got - expected| in units of expected's last place. */
static double ulps(float got, double expected)
{
    int exponent;
    frexp(expected, &exponent);
    return fabs((double)got - expected) / ldexp(1.0, exponent - 24);
}

Test(formulas, exp_is_within_2_ulp)
{
    double worst = 0.0;
    for (float x = -87.0f; x < 88.7f; x += 0.00137f) {
        double error = ulps(formula_exp(x), exp((double)x));
        worst = error > worst ? error : worst;
    }
    cr_expect(worst < 2.0, "%g ulp", worst);
    cr_expect(formula_exp(-INFINITY) == 0.0f);
    cr_expect(formula_exp(-200.0f) == 0.0f);
    cr_expect(formula_exp(0.0f) == 1.0f);
    cr_expect(formula_exp(1000.0f) > 3.0e38f && isfinite(formula_exp(1000.0f)));
    cr_expect(isnan(formula_exp(NAN)));
}

Test(formulas, log_is_within_2_ulp)
{
    double worst = 0.0;
    for (float x = 1e-30f; x < 1e30f; x *= 1.00093f) {
        double expected = log((double)x);
        double error = fabs(expected) < 0.01 ? 0.0 : ulps(formula_log(x), expected);
        worst = error > worst ? error : worst;
    }
    for (float x = 0.7f; x < 1.42f; x += 1e-4f) {
        double error = fabs(formula_log(x) - log((double)x)) / FLT_EPSILON;
        worst = error > worst ? error : worst;
    }
    cr_expect(worst < 2.0, "%g ulp", worst);
    cr_expect(formula_log(1.0f) == 0.0f);
}

Test(formulas, erf_and_what_follows_from_exp_are_close)
{
    for (float x = -9.0f; x < 9.0f; x += 0.00071f) {
        double e = x;
        double sigmoid = 1.0 / (1.0 + exp(-e));
        cr_assert(fabs(formula_erf(x) - erf(e)) < 2e-7, "erf(%g)", e);
        cr_assert(fabs(formula_sigmoid(x) - sigmoid) < 2e-7, "sigmoid(%g)", e);
        cr_assert(fabs(formula_log_sigmoid(x) + log1p(exp(-e))) < 1e-6, "log sigmoid(%g)", e);
        /* absolute in the size of x, as f32 products are */
        double bound = 4e-7 * (1.0 + fabs(e));
        cr_assert(fabs(formula_gelu(x) - 0.5 * e * (1.0 + erf(e / sqrt(2.0)))) < bound);
        cr_assert(fabs(formula_silu(x) - e * sigmoid) < bound);
        double inner = sqrt(2.0 / M_PI) * (e + 0.044715 * e * e * e);
        cr_assert(fabs(formula_gelu_new(x) - 0.5 * e * (1.0 + tanh(inner))) < bound);
        cr_assert(fabs(formula_elu(x) - (e > 0 ? e : expm1(e))) < bound);
    }
}

Test(formulas, tanh_is_within_2_ulp)
{
    double worst = 0.0;
    for (float x = 1e-38f; x < 100.0f; x *= 1.00003f)
        for (int sign = -1; sign <= 1; sign += 2) {
            float at = x * (float)sign;
            double error = ulps(formula_tanh(at), tanh((double)at));
            worst = error > worst ? error : worst;
        }
    cr_expect(worst < 2.0, "%g ulp", worst);
    cr_expect(formula_tanh(0.0f) == 0.0f && formula_tanh(INFINITY) == 1.0f);
    cr_expect(formula_tanh(-INFINITY) == -1.0f && isnan(formula_tanh(NAN)));
    for (float x = -200.0f; x < 200.0f; x += 0.013f) {
        double error = fabs(formula_softcap(x, 30.0f) - 30.0 * tanh((double)x / 30.0));
        cr_assert(error < 8e-6, "softcap(%g): off by %g", (double)x, error); /* 4 ulp of 30 */
    }
}

Test(formulas, softplus_is_within_3_ulp)
{
    double worst = 0.0;
    for (float x = -86.0f; x < 100.0f; x += 0.00073f) {
        double error = ulps(formula_softplus(x), x > 30 ? (double)x : log1p(exp((double)x)));
        worst = error > worst ? error : worst;
        double decay = exp(-0.7 * (x > 30 ? (double)x : log1p(exp((double)x))));
        /* half an ulp of the exponent, which goes to -70, is 3.8e-6 */
        cr_assert(fabs(formula_softplus_decay(x, 0.7f) - decay) < 4e-6 * decay + 1e-38, "%g",
                  (double)x);
    }
    cr_expect(worst < 3.0, "%g ulp", worst);
    cr_expect(formula_softplus(-INFINITY) == 0.0f && isinf(formula_softplus(INFINITY)));
    cr_expect(isnan(formula_softplus(NAN)) && isnan(formula_softplus_decay(NAN, 1.0f)));
}

Test(formulas, limits_and_squares_are_exact)
{
    cr_expect(formula_apply(FORMULA_AT_LEAST, -3.0f, 0.0f, 0.5f) == 0.5f);
    cr_expect(formula_apply(FORMULA_AT_LEAST, 3.0f, 0.0f, 0.5f) == 3.0f);
    cr_expect(formula_apply(FORMULA_AT_MOST, 3.0f, 0.0f, 0.5f) == 0.5f);
    cr_expect(formula_apply(FORMULA_AT_MOST, -3.0f, 0.0f, 0.5f) == -3.0f);
    cr_expect(formula_relu2(-3.0f) == 0.0f && formula_relu2(1.5f) == 2.25f);
}

/* What a norm or a normaliser divides the size out of has to be right in its own size. */
Test(formulas, small_values_are_close_in_their_own_size)
{
    for (float x = -17.0f; x < 0.0f; x += 0.00091f) {
        double e = x, share = 1.0 / (1.0 + exp(-e));
        float of_input = formula_apply(FORMULA_ONE_MINUS_SIGMOID, -x, 0.0f, 0.0f);
        cr_assert(fabs(of_input / share - 1) < 4e-7, "1 - sigmoid(%g): %g", -e, of_input);
        cr_assert(fabs(formula_elu_plus_1(x) / exp(e) - 1) < 4e-7, "elu + 1 of %g", e);
    }
    cr_assert_float_eq(formula_apply(FORMULA_ONE_MINUS_SIGMOID, 3.0f, 0.0f, 0.0f),
                       1 - 1 / (1 + exp(-3.0)), 1e-7);
    cr_assert_eq(formula_elu_plus_1(2.5f), 3.5f);
    for (float x = -1.0f; x < -1e-30f; x *= 0.97f) {
        double e = x;
        cr_assert(fabs(formula_elu(x) / expm1(e) - 1) < 6e-7, "elu(%g)", e);
    }
}

Test(formulas, gates_follow_their_equations)
{
    for (float u = -6.0f; u < 6.0f; u += 0.37f)
        for (float w = -6.0f; w < 6.0f; w += 0.41f) {
            double g = 1.0 / (1.0 + exp(-(double)u)), r = 1.0 / (1.0 + exp(-(double)w));
            double f = (1 - r) * g * g + r * (1 - (1 - g) * (1 - g));
            cr_assert(fabs(formula_refined_gate(u, w) - f) < 4e-7);
        }
    for (float u = -30.0f; u < 30.0f; u += 0.1f)
        for (float decay = 1e-3f; decay < 30.0f; decay *= 1.9f) {
            double a = exp(-(double)decay * log1p(exp((double)u)));
            cr_assert(fabs(formula_apply(FORMULA_SOFTPLUS_DECAY, u, decay, 0.0f) - a) < 4e-7);
            double beta = 2 / (1 + exp(-(double)u));
            cr_assert(fabs(formula_apply(FORMULA_SCALED_SIGMOID, u, 0.0f, 2.0f) - beta) < 4e-7);
        }
    for (float u = -30.0f; u < 30.0f; u += 0.1f)
        for (float least = 0.0f; least <= 1.0f; least += 0.125f) {
            const double share = 1 / (1 + exp((double)u)), bound = -5, scale = 3 * (double)least;
            const double f = exp(bound / (1 + exp(-scale * (double)u)));
            const double of_input = (1 - (double)least) * share;
            cr_assert(fabs(formula_apply(FORMULA_FORGET, u, least, 0.0f) - (1 - of_input)) < 4e-7);
            cr_assert(fabs(formula_apply(FORMULA_INPUT_SHARE, u, least, 0.0f) - of_input) <=
                      4e-7 * of_input);
            cr_assert(fabs(formula_apply(FORMULA_BOUNDED_DECAY, u, (float)scale, -5.0f) - f) <
                      2e-6 * f + 1e-7);
        }
    for (float u = -30.0f; u < 30.0f; u += 0.1f) {
        double alpha = exp(-log1p(exp(-(double)u)) / 16.0);
        cr_assert(fabs(formula_gla_gate(u, 16.0f) - alpha) < 3e-7);
    }
}

Test(formulas, angles_stay_exact_at_position_ten_million)
{
    static const int64_t positions[] = {0, 1, 2, 3, 1000, 8191, 1000000, 9999999};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++)
        for (int j = 0; j < 64; j++) {
            double angle = (double)positions[i] * pow(10000.0, -j / 64.0);
            float c, s;
            formula_cos_sin(angle, &c, &s);
            cr_assert(fabs(c - cos(angle)) < 6.1e-8, "cos(%g)", angle); /* half an ulp of 1 */
            cr_assert(fabs(s - sin(angle)) < 6.1e-8, "sin(%g)", angle);
        }
}

/* The kernels multiply position and angle in double precision as well. */
static void check_far_angles(const struct kernels *kernels)
{
    enum { ANGLES = 5 };
    static const double theta[ANGLES] = {1.0, 0.7498942093324559, 0.1, 0.0177827941003892, 1e-4};
    const int64_t position = 9999991;
    float cosines[ANGLES], sines[ANGLES];
    const struct batch batch = {.num_rows = 1, .positions = &position};
    if (kernels == NULL)
        return;
    kernels->angles(&(struct ops_angles){.theta = theta,
                                         .count = ANGLES,
                                         .cosines = {cosines, ANGLES},
                                         .sines = {sines, ANGLES}},
                    &batch, 0, 1);
    for (int j = 0; j < ANGLES; j++) {
        double angle = (double)position * theta[j];
        cr_expect(fabs(cosines[j] - cos(angle)) < 6.1e-8, "%s: cos(%g)", kernels->name, angle);
        cr_expect(fabs(sines[j] - sin(angle)) < 6.1e-8, "%s: sin(%g)", kernels->name, angle);
    }
}

Test(formulas, angles_of_rows_stay_exact_as_far)
{
    check_far_angles(kernels_generic);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        check_far_angles(kernels_avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        check_far_angles(kernels_avx512);
#elif defined(__aarch64__)
    check_far_angles(kernels_neon);
#endif
}

Test(formulas, t5_buckets_are_those_of_the_paper)
{
    cr_expect(formula_t5_bucket(0) == 0);
    cr_expect(formula_t5_bucket(15) == 15);
    cr_expect(formula_t5_bucket(16) == 16);
    cr_expect(formula_t5_bucket(31) == 21);
    cr_expect(formula_t5_bucket(64) == 26);
    cr_expect(formula_t5_bucket(112) == 30);
    cr_expect(formula_t5_bucket(113) == 31);
    cr_expect(formula_t5_bucket(FORMULA_T5_DISTANCES - 1) == 31);
    cr_expect(formula_t5_bucket(1000000) == 31);
}

Test(formulas, position_biases_follow_their_equations)
{
    const struct formula_bias head = {.r1 = 1.3f, .r2 = 0.7f, .r3 = 0.05f, .r4 = 1.1f};
    for (float d = 0.0f; d < 2e6f; d = d * 1.3f + 1.0f) {
        float weight, bias;
        double x = d, r1 = head.r1, r2 = head.r2, r3 = head.r3, r4 = head.r4;
        /* relative: 1e-6 for what goes through a power */
        formula_position_bias(POSITION_ALIBI, &head, d, &weight, &bias);
        cr_assert(weight == 1.0f && fabs(bias + r1 * x) <= 1e-6 * (1 + r1 * x));
        formula_position_bias(POSITION_KERPLE_LOG, &head, d, &weight, &bias);
        cr_assert(weight == 1.0f && fabs(bias + r1 * log(1 + r2 * x)) < 2e-6);
        formula_position_bias(POSITION_KERPLE_POWER, &head, d, &weight, &bias);
        cr_assert(weight == 1.0f && fabs(bias + r1 * pow(x, r2)) <= 3e-6 * (1 + pow(x, r2)));
        formula_position_bias(POSITION_KERPLE_3PARA_LOG, &head, d, &weight, &bias);
        cr_assert(weight == 1.0f && fabs(bias + r1 * log(1 + r2 * pow(x, r3))) < 2e-6);
        formula_position_bias(POSITION_KERPLE_BIAS_WHT, &head, d, &weight, &bias);
        cr_assert(fabs(bias + r1 * pow(x, r2)) <= 3e-6 * (1 + pow(x, r2)));
        cr_assert(fabs(weight - exp(-r3 * pow(x, r4))) < 4e-6);
    }
}

/* r = 0 is allowed, and 0^0 = 1 there as everywhere. */
Test(formulas, a_power_of_zero_is_one_at_every_distance)
{
    const struct formula_bias head = {.r1 = 1.5f, .r2 = 0.0f, .r3 = 2.0f, .r4 = 0.0f};
    for (float d = 0.0f; d < 3.0f; d++) {
        float weight, bias;
        formula_position_bias(POSITION_KERPLE_POWER, &head, d, &weight, &bias);
        cr_expect_float_eq(bias, -1.5f, 1e-6f, "distance %g: %g", (double)d, (double)bias);
        formula_position_bias(POSITION_KERPLE_BIAS_WHT, &head, d, &weight, &bias);
        cr_expect_float_eq(weight, 0.13533528f, 1e-6f, "distance %g: %g", (double)d,
                           (double)weight);
    }
}

#define FORMULA_COUNT(value) +1
enum { NUM_FORMULAS = FORMULA_OF_ONE(FORMULA_COUNT) FORMULA_OF_TWO(FORMULA_COUNT) };

/* The place of an element in an array, and so the lane or remainder it falls in, changes no bit. */
static void check_places(const struct kernels *kernels)
{
    enum { COUNT = 200 };
    float u[COUNT], w[COUNT], whole[COUNT], part[COUNT];
    if (kernels == NULL)
        return;
    for (int i = 0; i < COUNT; i++) {
        u[i] = (float)(i - 100) * 0.173f;
        w[i] = (float)(i % 17) - 8.3f;
    }
    for (int f = 0; f < NUM_FORMULAS; f++) {
        struct ops_map map = {.formula = (enum formula)f,
                              .constant = 16.0f,
                              .num_rows = 1,
                              .num_cols = COUNT,
                              .out = {whole, COUNT},
                              .u = {u, COUNT},
                              .w = {w, COUNT}};
        kernels->map(&map, 0, 1);
        for (int first = 0; first < COUNT; first += 7) {
            map.num_cols = COUNT - first < 7 ? COUNT - first : 7;
            map.u.data = u + first;
            map.w.data = w + first;
            map.out.data = part + first;
            kernels->map(&map, 0, 1);
        }
        cr_expect(memcmp(whole, part, sizeof whole) == 0, "%s: formula %d", kernels->name, f);
    }
}

Test(formulas, an_elements_place_changes_no_bit)
{
    check_places(kernels_generic);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        check_places(kernels_avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        check_places(kernels_avx512);
#elif defined(__aarch64__)
    check_places(kernels_neon);
#endif
}

/* A model that is broken must not serve as if it were sound. */
static void check_nans(const struct kernels *kernels)
{
    enum { COUNT = 37 };
    float u[COUNT], w[COUNT], out[COUNT];
    for (int f = 0; f < NUM_FORMULAS; f++)
        for (int bad = 0; bad < COUNT; bad++) {
            for (int i = 0; i < COUNT; i++)
                u[i] = w[i] = i == bad ? NAN : 0.5f;
            struct ops_map map = {.formula = (enum formula)f,
                                  .constant = 16.0f,
                                  .num_rows = 1,
                                  .num_cols = COUNT,
                                  .out = {out, COUNT},
                                  .u = {u, COUNT},
                                  .w = {w, COUNT}};
            kernels->map(&map, 0, 1);
            for (int i = 0; i < COUNT; i++)
                cr_expect(isnan(out[i]) == (i == bad), "%s: formula %d", kernels->name, f);
        }
}

Test(formulas, a_nan_stays_one)
{
    check_nans(kernels_generic);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        check_nans(kernels_avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        check_nans(kernels_avx512);
#elif defined(__aarch64__)
    check_nans(kernels_neon);
#endif
    float z[4] = {1, NAN, 2, -1}, y[4] = {1, NAN, 2, -1}, phi[64];
    for (int map = 0; map <= FEATURE_UNIT_COS_SIN; map++) {
        bool seen = false;
        int features = map == FEATURE_DPFP ? 16 : map >= FEATURE_COS_SIN ? 8 : 4;
        formula_features((enum feature_map)map, z, y, 4, 4, features, 2, phi);
        for (int j = 0; j < features; j++)
            seen = seen || isnan(phi[j]);
        cr_expect(seen, "feature map %d", map);
    }
}

/* RFA's map of a vector's direction: its length has no effect, and a vector of zeros has a map. */
Test(formulas, unit_cos_sin_is_of_the_direction)
{
    const float z[2] = {3, 4}, longer[2] = {300, 400}, none[2] = {0, 0};
    float y[2] = {5, -2.5f}, farther[2] = {500, -250}, phi[4], same[4];
    formula_features(FEATURE_UNIT_COS_SIN, z, y, 2, 2, 4, 1, phi);
    formula_features(FEATURE_UNIT_COS_SIN, longer, farther, 2, 2, 4, 1, same);
    const double want[4] = {cos(1) / sqrt(2), cos(0.5) / sqrt(2), sin(1) / sqrt(2),
                            -sin(0.5) / sqrt(2)};
    for (int j = 0; j < 4; j++) {
        cr_expect(fabs((double)phi[j] - want[j]) < 1e-6, "%d: %g", j, (double)phi[j]);
        cr_expect(fabsf(phi[j] - same[j]) < 1e-6f);
    }
    formula_features(FEATURE_UNIT_COS_SIN, none, none, 2, 2, 4, 1, phi);
    cr_expect(phi[0] == phi[1] && phi[0] > 0.7f && phi[2] == 0 && phi[3] == 0);
}
