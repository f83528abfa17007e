/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/logits.h"

#include "lib/base/exponential.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Running results beside each other: so many that compilers make loops of vectors of them, of any
 * size, and do not unroll them. */
enum { LANES = 64, BLOCK = 16 };

#define INLINE static inline __attribute__((always_inline))

INLINE double fold(double *lanes)
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lanes[j] += lanes[j + width];
    return lanes[0];
}

INLINE void weigh(const bool store, const int32_t count, const float *logits, double max,
                  double factor, float *weights, double *lanes)
{
    for (int j = 0; j < count; j++) {
        double w = exp_below_zero(((double)logits[j] - max) * factor);
        if (store) {
            weights[j] = (float)w;
            w = (double)weights[j];
        }
        lanes[j] += w;
    }
}

INLINE double weigh_all(const bool store, const float *logits, int32_t count, double max,
                        double factor, float *weights)
{
    double lanes[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        weigh(store, LANES, logits + i, max, factor, store ? weights + i : NULL, lanes);
    weigh(store, count - i, logits + i, max, factor, store ? weights + i : NULL, lanes);
    return fold(lanes);
}

/* count <= LANES, here and below; a constant in the loop of full ones. */
INLINE void keep_largest(const int32_t count, const float *logits, float *most, int32_t *missing)
{
    for (int j = 0; j < count; j++) {
        most[j] = logits[j] > most[j] ? logits[j] : most[j];
        missing[j] |= logits[j] != logits[j];
    }
}

INLINE float max_all(const float *logits, int32_t count)
{
    float most[LANES];
    int32_t missing[LANES] = {0}, i = 0;
    for (int j = 0; j < LANES; j++)
        most[j] = -INFINITY;
    for (; i + LANES <= count; i += LANES)
        keep_largest(LANES, logits + i, most, missing);
    keep_largest(count - i, logits + i, most, missing);
    for (int j = 1; j < LANES; j++) {
        most[0] = most[j] > most[0] ? most[j] : most[0];
        missing[0] |= missing[j];
    }
    return missing[0] != 0 ? NAN : most[0];
}

INLINE double sum_all(const float *weights, int32_t count)
{
    double lanes[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += (double)weights[i + j];
    for (int j = 0; i + j < count; j++)
        lanes[j] += (double)weights[i + j];
    return fold(lanes);
}

INLINE void split(const bool weigh, const int32_t count, const float *logits, const float *weights,
                  float at, double *above, int32_t *num_above, float *least, float *most)
{
    for (int j = 0; j < count; j++) {
        float up = logits[j] >= at ? logits[j] : INFINITY;
        float down = logits[j] >= at ? -INFINITY : logits[j];
        least[j] = up < least[j] ? up : least[j];
        most[j] = down > most[j] ? down : most[j];
        num_above[j] += logits[j] >= at;
    }
    for (int j = 0; weigh && j < count; j++)
        above[j] += (double)(logits[j] >= at ? weights[j] : 0.0f);
}

INLINE struct logits_split split_all(const bool weigh, const float *logits, const float *weights,
                                     int32_t count, float at)
{
    double above[LANES] = {0};
    int32_t num_above[LANES] = {0}, i = 0;
    float least[LANES], most[LANES];
    for (int j = 0; j < LANES; j++) {
        least[j] = INFINITY;
        most[j] = -INFINITY;
    }
    for (; i + LANES <= count; i += LANES)
        split(weigh, LANES, logits + i, weigh ? weights + i : NULL, at, above, num_above, least,
              most);
    split(weigh, count - i, logits + i, weigh ? weights + i : NULL, at, above, num_above, least,
          most);
    struct logits_split out = {0, 0, INFINITY, -INFINITY};
    for (int j = 0; j < LANES; j++) {
        out.num_above += num_above[j];
        out.least_above = least[j] < out.least_above ? least[j] : out.least_above;
        out.most_below = most[j] > out.most_below ? most[j] : out.most_below;
    }
    out.above = weigh ? fold(above) : (double)out.num_above;
    return out;
}

/* The passes for one instruction set. */
struct passes {
    float (*max)(const float *, int32_t);
    double (*weights)(const float *, int32_t, double max, double factor, float *);
    double (*sum)(const float *, int32_t);
    struct logits_split (*split)(const float *, const float *, int32_t, float);
};

#define PASSES(name, options)                                                                  \
    options static float max_##name(const float *logits, int32_t count)                        \
    {                                                                                          \
        return max_all(logits, count);                                                         \
    }                                                                                          \
    options static double weights_##name(const float *logits, int32_t count, double max,       \
                                         double factor, float *weights)                        \
    {                                                                                          \
        return weights == NULL ? weigh_all(false, logits, count, max, factor, NULL)            \
                               : weigh_all(true, logits, count, max, factor, weights);         \
    }                                                                                          \
    options static double sum_##name(const float *weights, int32_t count)                      \
    {                                                                                          \
        return sum_all(weights, count);                                                        \
    }                                                                                          \
    options static struct logits_split split_##name(const float *logits, const float *weights, \
                                                    int32_t count, float at)                   \
    {                                                                                          \
        return weights == NULL ? split_all(false, logits, NULL, count, at)                     \
                               : split_all(true, logits, weights, count, at);                  \
    }                                                                                          \
    static const struct passes passes_##name = {max_##name, weights_##name, sum_##name,        \
                                                split_##name};

PASSES(plain, )
#if defined(__x86_64__)
PASSES(avx2, __attribute__((target("avx2"))))
PASSES(avx512, __attribute__((target("avx512f,avx512dq,avx512vl"))))
#endif

static const struct passes *passes(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &passes_avx512;
    if (__builtin_cpu_supports("avx2"))
        return &passes_avx2;
#endif
    return &passes_plain;
}

float logits_max(const float *logits, int32_t count)
{
    return passes()->max(logits, count);
}

int32_t logits_best(const float *logits, int32_t count)
{
    float max = logits_max(logits, count);
    for (int32_t i = 0; i < count; i++)
        if (logits[i] == max)
            return i;
    return 0;
}

double logits_weights(const float *logits, int32_t count, float max, float temperature,
                      float *weights)
{
    if (!isinf(max))
        return passes()->weights(logits, count, (double)max, 1.0 / (double)temperature, weights);
    double sum = 0;
    for (int32_t i = 0; i < count; i++) {
        float w = logits[i] == max ? 1.0f : 0.0f;
        sum += (double)w;
        if (weights != NULL)
            weights[i] = w;
    }
    return sum;
}

double logits_sum(const float *weights, int32_t count)
{
    return passes()->sum(weights, count);
}

double logits_weighted(const float *logits, const float *weights, int32_t count)
{
    double lanes[LANES] = {0};
    for (int32_t i = 0; i < count; i++)
        lanes[i % LANES] += weights[i] > 0 ? (double)weights[i] * (double)logits[i] : 0;
    return fold(lanes);
}

struct logits_split logits_split(const float *logits, const float *weights, int32_t count, float at)
{
    return passes()->split(logits, weights, count, at);
}

void logits_block_max(const float *logits, int32_t count, float *out)
{
    for (int32_t i = 0; i < count; i += BLOCK) {
        int32_t n = count - i < BLOCK ? count - i : BLOCK;
        float most = logits[i];
        for (int32_t j = 1; j < n; j++)
            most = logits[i + j] > most ? logits[i + j] : most;
        out[i / BLOCK] = most;
    }
}
