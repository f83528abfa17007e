/* SPDX-License-Identifier: Apache-2.0 */
/* The scalar formulas of the papers, written once for C and nvcc.
 *
 * Every function is a fixed sequence of IEEE operations without branches on data. So the vector
 * form of a loop over it gives the same bits as the scalar form, and results never depend on an
 * element's place in an array. Transcendental functions are ours for the same reason: libm's vector
 * forms differ from its scalar ones. A NaN stays a NaN, so that a broken model shows: comparisons
 * are written so that NaN takes the branch that keeps it.
 *
 * Errors below are against float64, in units of the last place (ulp) or absolute. They are measured
 * by tests/unit/test_formulas.c. */
#ifndef ENGINE_OPS_FORMULAS_H
#define ENGINE_OPS_FORMULAS_H

#include "engine/model/kinds.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define FORMULA static __host__ __device__ inline
#else
#define FORMULA static inline
#endif

/* a * b + c with one rounding if the instruction set has it, else with two; never left to the
 * compiler. */
#if defined(__CUDACC__) || defined(REGLA_CUDA_EMULATION) || defined(__FMA__) || defined(FOR_NEON)
#define FORMULA_FMA(a, b, c) fmaf((a), (b), (c))
#else
#define FORMULA_FMA(a, b, c) ((a) * (b) + (c))
#endif

FORMULA float formula_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

FORMULA uint32_t formula_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* e^r - 1 for r around 0, up to half of log 2. */
FORMULA float formula_exp_minus_1(float r)
{
    float p = FORMULA_FMA(0.00139504636f, r, 0.00836887676f);
    p = FORMULA_FMA(p, r, 0.041666206f);
    p = FORMULA_FMA(p, r, 0.166665196f);
    p = FORMULA_FMA(p, r, 0.5f);
    return FORMULA_FMA(p * r, r, r);
}

/* e^x: 2 ulp. 0 below -104, about 3.4e38 (not infinite) above 88.7. A NaN stays a NaN. */
FORMULA float formula_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float c = x < -104.0f ? -104.0f : x;
    c = c > 88.72f ? 88.72f : c;
    float shifted = FORMULA_FMA(c, 1.44269504f, magic);
    float n = shifted - magic;
    float r = FORMULA_FMA(n, -0.693145752f, c);
    r = FORMULA_FMA(n, -1.42860677e-6f, r);
    float p = formula_exp_minus_1(r) + 1.0f;
    /* 2^n in two factors: n reaches -150 and 128, which one exponent field does not hold */
    int32_t exponent = (int32_t)(formula_to_bits(shifted) - formula_to_bits(magic));
    int32_t half = exponent >> 1;
    float low = formula_from_bits((uint32_t)(half + 127) << 23);
    float high = formula_from_bits((uint32_t)(exponent - half + 127) << 23);
    return p * low * high;
}

/* log x for normal x > 0: 2 ulp; x = 0 gives about -88, not -infinity. */
FORMULA float formula_log(float x)
{
    /* x = 2^e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)) */
    uint32_t bits = formula_to_bits(x);
    uint32_t shifted = bits - 0x3f3504f3u;
    int32_t e = (int32_t)shifted >> 23;
    float f = formula_from_bits(bits - ((uint32_t)e << 23)) - 1.0f;
    float p = FORMULA_FMA(-0.0782435685f, f, 0.13004075f);
    p = FORMULA_FMA(p, f, -0.13207981f);
    p = FORMULA_FMA(p, f, 0.141635671f);
    p = FORMULA_FMA(p, f, -0.166112751f);
    p = FORMULA_FMA(p, f, 0.200030118f);
    p = FORMULA_FMA(p, f, -0.250015169f);
    p = FORMULA_FMA(p, f, 0.333333075f);
    p = FORMULA_FMA(p, f, -0.499999881f);
    float n = (float)e;
    float tail = FORMULA_FMA(p * f, f, n * 1.42860677e-6f);
    return FORMULA_FMA(n, 0.693145752f, tail + f);
}

/* x^y for x, y >= 0, with 0^0 = 1: relative error about |y log x| ulp. */
FORMULA float formula_pow(float x, float y)
{
    float power = formula_exp(y * formula_log(x));
    float of_zero = y > 0.0f ? 0.0f : 1.0f;
    return x > 0.0f ? power : of_zero;
}

/* erf x: absolute error under 2e-7. */
FORMULA float formula_erf(float x)
{
    float t = fabsf(x);
    float c = t > 4.0f ? 4.0f : t;
    float u = FORMULA_FMA(-1.6969679e-07f, c, -1.92633779e-05f);
    u = FORMULA_FMA(u, c, 0.00042650901f);
    u = FORMULA_FMA(u, c, -0.00415378762f);
    u = FORMULA_FMA(u, c, 0.0251017828f);
    u = FORMULA_FMA(u, c, -0.108278513f);
    u = FORMULA_FMA(u, c, -0.633332849f);
    u = FORMULA_FMA(u, c, -1.12952733f);
    u = FORMULA_FMA(u, c, 0.000178125672f);
    float large = 1.0f - formula_exp(u);
    large = x < 0.0f ? -large : large;
    float s = x * x;
    float p = FORMULA_FMA(7.8891193e-05f, s, -0.000802084105f);
    p = FORMULA_FMA(p, s, 0.00518953521f);
    p = FORMULA_FMA(p, s, -0.0268544443f);
    p = FORMULA_FMA(p, s, 0.112836003f);
    p = FORMULA_FMA(p, s, -0.37612626f);
    p = FORMULA_FMA(p, s, 1.12837911f);
    float small = p * x;
    return t < 1.0f ? small : large;
}

/* tanh x: 2 ulp. Near 0 the difference from 1 would cancel. */
FORMULA float formula_tanh(float x)
{
    float t = fabsf(x), s = x * x;
    float p = FORMULA_FMA(-0.005895156f, s, 0.02079597f);
    p = FORMULA_FMA(p, s, -0.05378383f);
    p = FORMULA_FMA(p, s, 0.13331924f);
    p = FORMULA_FMA(p, s, -0.333333f);
    float small = FORMULA_FMA(p * s, x, x);
    float large = 1.0f - 2.0f / (formula_exp(2.0f * t) + 1.0f);
    large = x < 0.0f ? -large : large;
    return t < 0.6f ? small : large;
}

/* Gemma 2's bound of scores and logits: c tanh(x / c), between -c and c. */
FORMULA float formula_softcap(float x, float c)
{
    return c * formula_tanh(x / c);
}

FORMULA float formula_sigmoid(float x)
{
    return 1.0f / (1.0f + formula_exp(-x));
}

/* log sigmoid(x), without cancellation on either side. */
FORMULA float formula_log_sigmoid(float x)
{
    float negative = x >= 0.0f ? 0.0f : x;
    return negative - formula_log(1.0f + formula_exp(-fabsf(x)));
}

/* log(1 + e^x): 3 ulp, also of results near 0. */
FORMULA float formula_softplus(float x)
{
    float t = formula_exp(-fabsf(x));
    float sum = 1.0f + t, rounded = sum - 1.0f;
    /* what rounding took from t goes into the quotient (Kahan) */
    float log_sum = rounded > 0.0f ? formula_log(sum) * (t / rounded) : t;
    float positive = x <= 0.0f ? 0.0f : x;
    return positive + log_sum;
}

/* cos and sin of an angle in radians, |angle| < 4e7: error under 1e-8 before rounding to float.
 * Double precision because a position of 10^6 turns a rotary angle 10^6 times. */
FORMULA void formula_cos_sin(double angle, float *cosine, float *sine)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    double shifted = angle * 0.63661977236758138 + magic;
    double n = shifted - magic;
    /* pi/2 in three parts; the first two have 27 bits, so n * part is exact for n < 2^26 */
    double r = angle - n * 1.570796325802803;
    r = r - n * 9.920935739593517e-10;
    r = r - n * 5.721188726109832e-18;
    double s = r * r;
    double sin_r = 1.6059043836821613e-10;
    sin_r = sin_r * s - 2.5052108385441720e-08;
    sin_r = sin_r * s + 2.7557319223985893e-06;
    sin_r = sin_r * s - 1.9841269841269841e-04;
    sin_r = sin_r * s + 8.3333333333333332e-03;
    sin_r = sin_r * s - 1.6666666666666666e-01;
    sin_r = sin_r * s * r + r;
    double cos_r = 2.0876756987868100e-09;
    cos_r = cos_r * s - 2.7557319223985888e-07;
    cos_r = cos_r * s + 2.4801587301587302e-05;
    cos_r = cos_r * s - 1.3888888888888889e-03;
    cos_r = cos_r * s + 4.1666666666666664e-02;
    cos_r = cos_r * s - 0.5;
    cos_r = cos_r * s + 1.0;
    uint64_t quadrant;
    memcpy(&quadrant, &shifted, sizeof quadrant);
    double c = (quadrant & 1) != 0 ? sin_r : cos_r;
    double v = (quadrant & 1) != 0 ? cos_r : sin_r;
    *cosine = (float)(((quadrant + 1) & 2) != 0 ? -c : c);
    *sine = (float)((quadrant & 2) != 0 ? -v : v);
}

/* ---- activations of the MLP (`hidden_act`) and of the output gate ---- */

/* gelu: x Phi(x) (Hendrycks & Gimpel 2016). */
FORMULA float formula_gelu(float x)
{
    return 0.5f * x * (1.0f + formula_erf(x * 0.70710678f));
}

/* gelu_new: their tanh approximation; (1 + tanh y) / 2 = sigmoid(2y). */
FORMULA float formula_gelu_new(float x)
{
    float inner = 1.59576912f * FORMULA_FMA(0.044715f * x * x, x, x); /* 2 sqrt(2/pi) (...) */
    return x * formula_sigmoid(inner);
}

FORMULA float formula_identity(float x)
{
    return x;
}

FORMULA float formula_relu(float x)
{
    return x <= 0.0f ? 0.0f : x;
}

/* The weight of a key: ReLA (Zhang et al. 2021), and FLASH's relu^2. */
FORMULA float formula_relu_weight(enum softmax_activation activation, float score)
{
    float relu = formula_relu(score);
    return activation == SOFTMAX_ACT_RELU2 ? relu * relu : relu;
}

/* relu^2 of the MLPs of Nemotron-H. */
FORMULA float formula_relu2(float x)
{
    float relu = formula_relu(x);
    return relu * relu;
}

FORMULA float formula_silu(float x)
{
    return x * formula_sigmoid(x);
}

/* Near 0 the difference from 1 would cancel. */
FORMULA float formula_elu(float x)
{
    float c = x >= 0.0f ? 0.0f : x;
    float far = formula_exp(c) - 1.0f, near = formula_exp_minus_1(c);
    float below = c > -0.34f ? near : far;
    return x > 0.0f ? x : below;
}

/* elu(x) + 1, which is e^x below 0; (e^x - 1) + 1 would cancel. */
FORMULA float formula_elu_plus_1(float x)
{
    float below = formula_exp(x >= 0.0f ? 0.0f : x);
    return x > 0.0f ? x + 1.0f : below;
}

/* ---- gates ---- */

/* ReGLA eq. 15-17: F = (1-r) g^2 + r (1 - (1-g)^2), g = sigmoid(u), r = sigmoid(w). */
FORMULA float formula_refined_gate(float u, float w)
{
    float g = formula_sigmoid(u);
    float r = formula_sigmoid(w);
    float lower = g * g;
    float upper = 1.0f - (1.0f - g) * (1.0f - g);
    return (1.0f - r) * lower + r * upper;
}

/* GLA (Yang et al. 2024, section 4.4): alpha = sigmoid(u)^(1/normalizer). */
FORMULA float formula_gla_gate(float u, float normalizer)
{
    return formula_exp(formula_log_sigmoid(u) / normalizer);
}

/* RWKV-7 (Peng et al. 2025, eq. 12; flash-linear-attention 0.6): e^(-e^(-1/2) sigmoid(u)). */
FORMULA float formula_rwkv7_decay(float u)
{
    return formula_exp(-0.606530659713f * formula_sigmoid(u));
}

/* Gated DeltaNet (Yang et al. 2025, section 3.1, with Mamba-2's decay): e^(-decay softplus(u)). */
FORMULA float formula_softplus_decay(float u, float decay)
{
    return formula_exp(-decay * formula_softplus(u));
}

/* KDA with a lower bound (flash-linear-attention 0.6): e^(bound sigmoid(scale u)). */
FORMULA float formula_bounded_decay(float u, float scale, float bound)
{
    return formula_exp(bound * formula_sigmoid(scale * u));
}

/* HGRN2 (Qin et al. 2024, eq. 5): f = least + (1 - least) sigmoid(u). */
FORMULA float formula_forget(float u, float least)
{
    return FORMULA_FMA(1.0f - least, formula_sigmoid(u), least);
}

/* And its key, 1 - f: the difference would cancel. */
FORMULA float formula_input_share(float u, float least)
{
    return (1.0f - least) * formula_sigmoid(-u);
}

/* ReLA's gated RMSNorm (Zhang et al. 2021, ReLA-g): the normed x, y, times sigmoid(w x). */
FORMULA float formula_own_gate(float y, float w, float x)
{
    return y * formula_sigmoid(w * x);
}

/* gpt-oss (transformers 5.24): (up + 1) gate sigmoid(1.702 gate), of a gate that is at most the
 * limit and an up that is at most so far from 0. */
FORMULA float formula_clamped_glu(float gate, float up, float limit)
{
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return (up + 1.0f) * (gate * formula_sigmoid(1.702f * gate));
}

/* The sum of softmax's weights e^(score - most), with that of a sink, which has no value (gpt-oss).
 */
FORMULA float formula_with_sink(float sum, float sink, float most)
{
    return sum + formula_exp(sink - most);
}

/* What an ops_map computes from u, and from w where a formula has two inputs. */
#define FORMULA_OF_ONE(X)                                                                     \
    X(FORMULA_IDENTITY)                                                                       \
    X(FORMULA_GELU)                                                                           \
    X(FORMULA_GELU_NEW)                                                                       \
    X(FORMULA_RELU)                                                                           \
    X(FORMULA_RELU2)                                                                          \
    X(FORMULA_SILU)                                                                           \
    X(FORMULA_SIGMOID)           /* RFA's g, fast decay's z and f, the delta rule's beta */   \
    X(FORMULA_ONE_MINUS_SIGMOID) /* RFA (Peng et al. 2021, section 3.2): the input's share */ \
    X(FORMULA_GLA_GATE)          /* constant: the normalizer */                               \
    X(FORMULA_RWKV7_DECAY)                                                                    \
    X(FORMULA_SOFTCAP)        /* constant: c */                                               \
    X(FORMULA_SCALE)          /* constant u */                                                \
    X(FORMULA_SCALED_SIGMOID) /* the delta rule's beta, up to the constant */                 \
    X(FORMULA_AT_LEAST)       /* the larger of u and the constant */                          \
    X(FORMULA_AT_MOST)        /* the smaller */                                               \
    X(FORMULA_SOFTPLUS)       /* Mamba-2's dt */
#define FORMULA_OF_TWO(X)                                                            \
    X(FORMULA_REFINED_GATE)                                                          \
    X(FORMULA_SUM) /* of a pair's h */                                               \
    X(FORMULA_PRODUCT)                                                               \
    X(FORMULA_SCALED_SUM) /* u + constant w: the product is rounded, then the sum */ \
    X(FORMULA_SOFTPLUS_DECAY)                                                        \
    X(FORMULA_BOUNDED_DECAY) /* constant: the bound */                               \
    X(FORMULA_FORGET)                                                                \
    X(FORMULA_INPUT_SHARE)                                                           \
    X(FORMULA_CLAMPED_GLU) /* of gate and up; constant: the limit of both */
#define FORMULA_VALUE(value) value,

enum formula { FORMULA_OF_ONE(FORMULA_VALUE) FORMULA_OF_TWO(FORMULA_VALUE) };

FORMULA float formula_apply(enum formula formula, float u, float w, float constant)
{
    switch (formula) {
    case FORMULA_IDENTITY:
        return u;
    case FORMULA_GELU:
        return formula_gelu(u);
    case FORMULA_GELU_NEW:
        return formula_gelu_new(u);
    case FORMULA_RELU:
        return formula_relu(u);
    case FORMULA_RELU2:
        return formula_relu2(u);
    case FORMULA_SILU:
        return formula_silu(u);
    case FORMULA_SIGMOID:
        return formula_sigmoid(u);
    case FORMULA_ONE_MINUS_SIGMOID:
        return formula_sigmoid(-u); /* the difference would cancel */
    case FORMULA_REFINED_GATE:
        return formula_refined_gate(u, w);
    case FORMULA_GLA_GATE:
        return formula_gla_gate(u, constant);
    case FORMULA_RWKV7_DECAY:
        return formula_rwkv7_decay(u);
    case FORMULA_SOFTCAP:
        return formula_softcap(u, constant);
    case FORMULA_SCALE:
        return constant * u;
    case FORMULA_SCALED_SIGMOID:
        return constant * formula_sigmoid(u);
    case FORMULA_AT_LEAST:
        return u < constant ? constant : u;
    case FORMULA_AT_MOST:
        return u > constant ? constant : u;
    case FORMULA_SOFTPLUS:
        return formula_softplus(u);
    case FORMULA_SUM:
        return u + w;
    case FORMULA_PRODUCT:
        return u * w;
    case FORMULA_SCALED_SUM:
        return u + constant * w;
    case FORMULA_SOFTPLUS_DECAY:
        return formula_softplus_decay(u, w);
    case FORMULA_BOUNDED_DECAY:
        return formula_bounded_decay(u, w, constant);
    case FORMULA_FORGET:
        return formula_forget(u, w);
    case FORMULA_INPUT_SHARE:
        return formula_input_share(u, w);
    case FORMULA_CLAMPED_GLU:
        return formula_clamped_glu(u, w, constant);
    }
    return u;
}

/* ---- experts ---- */

/* What a score counts as in a choice. */
FORMULA float formula_choice(const float *scores, const float *bias, int i)
{
    return bias == NULL ? scores[i] : scores[i] + bias[i];
}

/* Of scores [count], plus bias [count] if there is one, the `chosen` greatest (of equal ones those
 * with the lower ids): ids [chosen], in ascending order. With `groups` only those count whose group
 * of `each` has its bit there, of which there are enough. Ids are ids whatever the scores are. */
FORMULA void formula_choose(const float *scores, const float *bias, int count, uint64_t groups,
                            int each, int chosen, float *ids)
{
    for (int i = 0; i < chosen; i++) {
        int best = -1, place = 0, before = 0; /* `before`: how many chosen ones have lower ids */
        for (int e = 0; e < count; e++) {
            if (before < i && (int)ids[before] == e) {
                before++;
            } else if ((each == 0 || (groups >> e / each & 1) != 0) &&
                       (best < 0 ||
                        formula_choice(scores, bias, e) > formula_choice(scores, bias, best))) {
                best = e;
                place = before;
            }
        }
        for (int j = i; j > place; j--)
            ids[j] = ids[j - 1];
        ids[place] = (float)best;
    }
}

/* The groups that count, a bit each: of the greatest sums of their two best. */
FORMULA uint64_t formula_top_groups(const struct route_rule *rule, const float *scores,
                                    const float *bias, int num_experts)
{
    const int each = num_experts / rule->groups;
    float sums[ROUTE_MOST_GROUPS], ids[ROUTE_MOST_GROUPS];
    uint64_t groups = 0;
    for (int g = 0; g < rule->groups; g++) {
        const float *own = bias == NULL ? NULL : bias + g * each;
        formula_choose(scores + g * each, own, each, 0, 0, 2, ids);
        sums[g] = formula_choice(scores + g * each, own, (int)ids[0]) +
                  formula_choice(scores + g * each, own, (int)ids[1]);
    }
    formula_choose(sums, NULL, rule->groups, 0, 0, rule->top_groups, ids);
    for (int i = 0; i < rule->top_groups; i++)
        groups |= (uint64_t)1 << (int)ids[i];
    return groups;
}

/* Of a router's scores [num_experts] the `chosen` greatest, with bias if there is one: ids, and
 * their weights [chosen]: e^score over the sum of all, or sigmoid(score), which scores become; then
 * what the rule says, and at last each times its expert's `scale`, if there is one. Sums run in
 * ascending order of ids. Where scores are all NaN, so are the
 * weights. */
FORMULA void formula_route(const struct route_rule *rule, float *scores, const float *bias,
                           const float *scale, int num_experts, int chosen, float *ids,
                           float *weights)
{
    const bool softmax = rule->score == ROUTE_SOFTMAX;
    float greatest = scores[0], all = 0.0f, own = 0.0f;
    for (int e = 0; e < num_experts && !softmax; e++)
        scores[e] = formula_sigmoid(scores[e]);
    if (rule->groups > 0)
        formula_choose(scores, bias, num_experts,
                       formula_top_groups(rule, scores, bias, num_experts),
                       num_experts / rule->groups, chosen, ids);
    else
        formula_choose(scores, bias, num_experts, 0, 0, chosen, ids);
    for (int e = 1; e < num_experts; e++)
        greatest = scores[e] > greatest ? scores[e] : greatest;
    for (int e = 0; e < num_experts && softmax && !rule->renormalize; e++)
        all = all + formula_exp(scores[e] - greatest);
    for (int i = 0; i < chosen; i++) {
        const float score = scores[(int)ids[i]];
        weights[i] = softmax ? formula_exp(score - greatest) : score;
        own = own + weights[i];
    }
    for (int i = 0; i < chosen; i++) {
        if (rule->renormalize)
            weights[i] = weights[i] / (own + rule->least);
        else if (softmax)
            weights[i] = weights[i] / all;
        if (rule->factor != 0.0f)
            weights[i] = weights[i] * rule->factor;
        if (scale != NULL)
            weights[i] = weights[i] * scale[(int)ids[i]];
    }
}

/* The sum over i < chosen of weights [i] times element i * stride of x, in order. */
FORMULA float formula_combine(const float *weights, const float *x, int64_t stride, int chosen)
{
    float sum = weights[0] * x[0];
    for (int i = 1; i < chosen; i++)
        sum = sum + weights[i] * x[i * stride];
    return sum;
}

/* ---- feature maps ---- */

/* The maps of one number, phi_j = formula(z_j); exp's is the exponent. */
#define FORMULA_MAPS_OF_ONE(X)                                                       \
    X(FEATURE_IDENTITY, formula_identity)                                            \
    X(FEATURE_RELU, formula_relu)                                                    \
    X(FEATURE_ELU, formula_elu)               /* TransNormer section 5.1 (T1) */     \
    X(FEATURE_ELU_PLUS_1, formula_elu_plus_1) /* Katharopoulos et al. 2020, eq. 7 */ \
    X(FEATURE_EXP, formula_identity)          /* ReGLA eq. 11-12 */                  \
    X(FEATURE_SILU, formula_silu)             /* TransNormerLLM (Qin et al. 2023) */

/* exp and favor are e^(e_j - a maximum). formula_features gives their exponents e_j. */
FORMULA bool formula_is_exponential(enum feature_map map)
{
    return map == FEATURE_EXP || map == FEATURE_FAVOR;
}

/* Sum of x [n] in one fixed order: 16 running sums, then a tree. */
FORMULA float formula_sum(const float *x, int n)
{
    float lanes[16] = {0};
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            lanes[j] += x[i + j];
    for (int j = 0; i + j < n; j++)
        lanes[j] += x[i + j];
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lanes[j] += lanes[j + width];
    return lanes[0];
}

FORMULA float formula_max(const float *x, int n)
{
    float most = x[0];
    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* Hedgehog (Zhang et al. 2024, section 4): softmax([y; -y]). y: [n]; phi: [2n]. */
FORMULA void formula_hedgehog(const float *y, int n, float *phi)
{
    float most = 0.0f;
    for (int i = 0; i < n; i++)
        most = fabsf(y[i]) > most ? fabsf(y[i]) : most;
    for (int i = 0; i < n; i++) {
        phi[i] = formula_exp(y[i] - most);
        phi[n + i] = formula_exp(-y[i] - most);
    }
    float sum = formula_sum(phi, 2 * n);
    for (int i = 0; i < 2 * n; i++)
        phi[i] /= sum;
}

/* RFA (Peng et al. 2021, eq. 4): [cos; sin] of y times unit, over sqrt(n). y: [n]; phi: [2n]. */
FORMULA void formula_fourier(const float *y, int n, float unit, float *phi)
{
    float scale = 1.0f / sqrtf((float)n);
    for (int i = 0; i < n; i++) {
        float c, s;
        formula_cos_sin((double)(y[i] * unit), &c, &s);
        phi[i] = c * scale;
        phi[n + i] = s * scale;
    }
}

#define FORMULA_LEAST_LENGTH 1e-12f

/* What makes a vector of this sum of squares one of length 1. */
FORMULA float formula_unit(float squares)
{
    float length = sqrtf(squares);
    return 1.0f / (length < FORMULA_LEAST_LENGTH ? FORMULA_LEAST_LENGTH : length);
}

#define FORMULA_DPFP_ADDED 1e-6f /* to the sum that it is divided by */

/* DPFP (Schlag et al. 2021, section 5.3) and their sum normalization. z: [d]; phi: [2 d nu]. */
FORMULA void formula_dpfp(const float *z, int d, int nu, float *phi)
{
    for (int i = 1; i <= nu; i++)
        for (int j = 0; j < 2 * d; j++) {
            int k = (j - i) % (2 * d);
            k = k < 0 ? k + 2 * d : k;
            float here = formula_relu(j < d ? z[j] : -z[j - d]);
            float rolled = formula_relu(k < d ? z[k] : -z[k - d]);
            phi[(i - 1) * 2 * d + j] = here * rolled;
        }
    float sum = formula_sum(phi, 2 * d * nu) + FORMULA_DPFP_ADDED;
    for (int j = 0; j < 2 * d * nu; j++)
        phi[j] /= sum;
}

/* phi(z) of one head, or the exponents where formula_is_exponential. z: [d]; y: [rows] = W z for
 * the maps with a matrix (favor, cos_sin, unit_cos_sin, hedgehog); phi: [m]; nu: dpfp's. */
FORMULA void formula_features(enum feature_map map, const float *z, const float *y, int d, int rows,
                              int m, int nu, float *phi)
{
    switch (map) {
#define FORMULA_EACH(value, formula) \
    case value:                      \
        for (int j = 0; j < m; j++)  \
            phi[j] = formula(z[j]);  \
        break;
        FORMULA_MAPS_OF_ONE(FORMULA_EACH)
#undef FORMULA_EACH
    case FEATURE_FAVOR: { /* Choromanski et al. 2021, lemma 1, on z / d^(1/4) */
        float squares = 0.0f;
        for (int j = 0; j < d; j++)
            squares = FORMULA_FMA(z[j], z[j], squares);
        float root = sqrtf((float)d);
        float scale = 1.0f / sqrtf(root);
        float half = squares / (2.0f * root);
        for (int j = 0; j < m; j++)
            phi[j] = FORMULA_FMA(y[j], scale, -half);
        break;
    }
    case FEATURE_COS_SIN:
        formula_fourier(y, rows, 1.0f, phi);
        break;
    case FEATURE_UNIT_COS_SIN: {
        float squares = 0.0f;
        for (int j = 0; j < d; j++)
            squares = FORMULA_FMA(z[j], z[j], squares);
        formula_fourier(y, rows, formula_unit(squares), phi);
        break;
    }
    case FEATURE_HEDGEHOG:
        formula_hedgehog(y, rows, phi);
        break;
    case FEATURE_DPFP:
        formula_dpfp(z, d, nu, phi);
        break;
    }
}

/* ---- relative positions of softmax attention ---- */

/* Parameters of one head. */
struct formula_bias {
    float r1, r2, r3, r4; /* alibi: r1 is the slope */
    const float *table;   /* by distance, [distances]: t5's, and rope's distance_bias */
    int distances;        /* all from the last on have its bias */
};

/* The positions that are a bias. */
#define FORMULA_BIASES(X)        \
    X(POSITION_ALIBI)            \
    X(POSITION_KERPLE_LOG)       \
    X(POSITION_KERPLE_POWER)     \
    X(POSITION_KERPLE_3PARA_LOG) \
    X(POSITION_KERPLE_BIAS_WHT)  \
    X(POSITION_T5)

enum { FORMULA_T5_DISTANCES = 128 }; /* from 113 on every distance is in the last bucket */

/* T5's bucket of a distance (Raffel et al. 2020; one-sided, 32 buckets, 128 the farthest). */
FORMULA int formula_t5_bucket(int distance)
{
    if (distance < 16)
        return distance;
    int bucket = 16 + (int)(16.0 * log(distance / 16.0) / log(8.0));
    return bucket < 31 ? bucket : 31;
}

/* score = q.k/sqrt(d) * weight + bias at distance t - s >= 0. */
FORMULA void formula_position_bias(enum position_kind kind, const struct formula_bias *head,
                                   float distance, float *weight, float *bias)
{
    *weight = 1.0f;
    *bias = 0.0f;
    switch (kind) {
    case POSITION_ALIBI: /* Press et al. 2022, section 3 */
        *bias = -head->r1 * distance;
        break;
    case POSITION_KERPLE_LOG: /* KERPLE eq. 4, logarithmic variant */
        *bias = -head->r1 * formula_log(FORMULA_FMA(head->r2, distance, 1.0f));
        break;
    case POSITION_KERPLE_POWER: /* KERPLE eq. 4, power variant */
        *bias = -head->r1 * formula_pow(distance, head->r2);
        break;
    case POSITION_KERPLE_3PARA_LOG: /* KERPLE section 5.3, 3-para-log */
        *bias =
            -head->r1 * formula_log(FORMULA_FMA(head->r2, formula_pow(distance, head->r3), 1.0f));
        break;
    case POSITION_KERPLE_BIAS_WHT: /* KERPLE section 5.3, bias+wht */
        *weight = formula_exp(-head->r3 * formula_pow(distance, head->r4));
        *bias = -head->r1 * formula_pow(distance, head->r2);
        break;
    case POSITION_T5: /* any bias by a table of distances */
        *bias =
            head->table[distance < (float)head->distances ? (int)distance : head->distances - 1];
        break;
    default:
        break;
    }
}

#endif
