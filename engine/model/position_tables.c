/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/position_tables.h"

#include <math.h>
#include <stdio.h>

enum {
    T5_BUCKETS = 32,
    SPE_SINES = 1 /* of presets */,
    MOST_SINES = 1024,
    MOST_REALIZATIONS = 1 << 20
};

/* floor(size * pct), rounded down to even */
static int rotary_dims(int size, double pct)
{
    return (int)(size * pct) / 2 * 2;
}

/* Half a dimension more makes the part of an even number of them that number again. */
static int bind_rope(struct weights *weights, struct mixer *mixer, const char *prefix,
                     const struct rope *rope, struct error *err)
{
    const bool after = mixer_has(mixer, HAS_FEATURES) && mixer->position.stage == ROPE_STAGE_AFTER;
    const int size = after ? mixer->features : mixer->head_dim;
    struct rope even = *rope;
    char place[WEIGHT_NAME_SIZE];
    even.part = (rotary_dims(size, rope->part) + 0.5) / size;
    return rope_position(&even, size, weights_name(place, "%s.position", prefix), weights->arena,
                         &mixer->position, err);
}

/* theta [count] for all heads, or [H, count]; always [H, count] then, or NULL when not given. */
static int bind_theta(struct weights *weights, struct mixer *mixer, const char *prefix, int count,
                      struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    struct position *position = &mixer->position;
    weights_name(name, "%s.position.theta", prefix);
    const struct tensor *tensor = tensors_find(weights->file, name);
    if (!tensor)
        return 0;
    int64_t per_head[2] = {mixer->num_heads, count};
    if (tensor->rank == 2)
        return weights_floats(weights, name, 2, per_head, &position->theta, err);
    const float *shared;
    float *out =
        arena_alloc(weights->arena, (size_t)mixer->num_heads * (size_t)count, sizeof *out, err);
    if (!out || weights_floats(weights, name, 1, &per_head[1], &shared, err) != 0)
        return -1;
    for (int h = 0; h < mixer->num_heads; h++)
        for (int j = 0; j < count; j++)
            out[h * (int64_t)count + j] = shared[j];
    position->theta = out;
    return 0;
}

static int bind_basis(struct weights *weights, struct mixer *mixer, const char *prefix,
                      struct error *err)
{
    if (mixer->position.basis != BASIS_HOUSEHOLDER)
        return 0;
    char name[WEIGHT_NAME_SIZE];
    const float *v;
    int64_t size = mixer->features;
    if (weights_floats(weights, weights_name(name, "%s.position.householder", prefix), 1, &size, &v,
                       err) != 0)
        return -1;
    double square = 0;
    for (int64_t i = 0; i < size; i++)
        square += (double)v[i] * (double)v[i];
    float *unit = arena_alloc(weights->arena, (size_t)size, sizeof *unit, err);
    if (!unit)
        return -1;
    if (square == 0)
        return weights_bad(weights, name, err, "expected a direction, got all zeros");
    for (int64_t i = 0; i < size; i++)
        unit[i] = (float)(v[i] / sqrt(square));
    mixer->position.householder = unit;
    return 0;
}

static int bind_lrpe(struct weights *weights, struct mixer *mixer, const char *prefix,
                     const struct rope *rope, struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    struct position *position = &mixer->position;
    int m = mixer->features;
    if (bind_basis(weights, mixer, prefix, err) != 0)
        return -1;
    if (position->kind == POSITION_LRPE_PERMUTATION)
        return weights_permutation(weights, weights_name(name, "%s.position.permutation", prefix),
                                   m, &position->permutation, err);
    if (position->kind == POSITION_LRPE_UNITARY) {
        mixer->features_positioned = 2 * m;
        return bind_theta(weights, mixer, prefix, m, err);
    }
    position->rotary_dims = rotary_dims(m, rope->part);
    return bind_theta(weights, mixer, prefix, position->rotary_dims / 2, err);
}

/* ALiBi's slopes for n heads, a power of two: 2^(-8(h+1)/n). */
static double power_slope(int h, int n)
{
    return pow(2, -8.0 * (h + 1) / n);
}

static int alibi_slopes(struct weights *weights, struct mixer *mixer, struct error *err)
{
    int heads = mixer->num_heads, power = 1;
    while (power * 2 <= heads)
        power *= 2;
    float *slopes = arena_alloc(weights->arena, (size_t)heads, sizeof *slopes, err);
    if (!slopes)
        return -1;
    for (int h = 0; h < heads; h++)
        slopes[h] =
            (float)(h < power ? power_slope(h, power) : power_slope(2 * (h - power), 2 * power));
    mixer->position.slopes = slopes;
    return 0;
}

/* Whether r1 (0), r2 (1), .. is an exponent of the distance. */
static bool kerple_exponent(enum position_kind kind, int r)
{
    return kind == POSITION_KERPLE_3PARA_LOG ? r == 2 : kind != POSITION_KERPLE_LOG && r % 2 == 1;
}

/* r1..r`count` [H]. The kernels are defined for r >= 0 only: a logarithm of 1 + r x, a power of 0.
 * With an exponent above 2 they are not conditionally positive definite (KERPLE, section 4). */
static int bind_kerple(struct weights *weights, struct mixer *mixer, const char *prefix, int count,
                       struct error *err)
{
    struct position *p = &mixer->position;
    const float **targets[] = {&p->r1, &p->r2, &p->r3, &p->r4};
    for (int r = 0; r < count; r++) {
        char name[WEIGHT_NAME_SIZE];
        int64_t heads = mixer->num_heads;
        if (weights_floats(weights, weights_name(name, "%s.position.r%d", prefix, r + 1), 1, &heads,
                           targets[r], err) != 0)
            return -1;
        const bool exponent = kerple_exponent(p->kind, r);
        for (int h = 0; h < mixer->num_heads; h++)
            if ((*targets[r])[h] < 0 || (exponent && (*targets[r])[h] > 2))
                return weights_bad(weights, name, err, "expected numbers %s, got %g at element %d",
                                   exponent ? "in [0, 2]" : ">= 0", (double)(*targets[r])[h], h);
    }
    return 0;
}

static int bind_distances(struct weights *weights, struct mixer *mixer, const char *prefix,
                          struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t shape[2] = {mixer->position.distances, mixer->num_heads};
    return weights_floats(weights, weights_name(name, "%s.position.distance_bias", prefix), 2,
                          shape, &mixer->position.distance_bias, err);
}

static int bind_buckets(struct weights *weights, struct mixer *mixer, const char *prefix,
                        struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t shape[2] = {T5_BUCKETS, mixer->num_heads};
    return weights_floats(weights, weights_name(name, "%s.position.bucket_bias", prefix), 2, shape,
                          &mixer->position.bucket_bias, err);
}

/* The tensors of spe. */
struct spe {
    const float *offsets, *gains, *noise, *gate, *gate_noise;
};

static int read_spe(struct weights *weights, struct mixer *mixer, const char *prefix,
                    struct spe *spe, int64_t *realizations, struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t shape[4] = {mixer->num_heads, mixer->features, WEIGHT_ANY};
    const char *const of_sines[] = {"freqs", "offsets", "gains"};
    const float **targets[] = {&mixer->position.freqs, &spe->offsets, &spe->gains};
    for (int i = 0; i < 3; i++)
        if (weights_floats(weights, weights_name(name, "%s.position.%s", prefix, of_sines[i]), 3,
                           shape, targets[i], err) != 0)
            return -1;
    if (shape[2] > MOST_SINES)
        return weights_bad(weights, name, err, "expected at most %d sines, got %lld", MOST_SINES,
                           (long long)shape[2]);
    mixer->position.sines = (int)shape[2];
    shape[2] *= 2;
    shape[3] = WEIGHT_ANY;
    if (weights_floats(weights, weights_name(name, "%s.position.noise", prefix), 4, shape,
                       &spe->noise, err) != 0)
        return -1;
    if (shape[3] > MOST_REALIZATIONS)
        return weights_bad(weights, name, err, "expected at most %d realizations, got %lld",
                           MOST_REALIZATIONS, (long long)shape[3]);
    *realizations = shape[3];
    if (!mixer->position.gated)
        return 0;
    if (weights_floats(weights, weights_name(name, "%s.position.gate", prefix), 2, shape,
                       &spe->gate, err) != 0)
        return -1;
    shape[2] = shape[3];
    return weights_floats(weights, weights_name(name, "%s.position.gate_noise", prefix), 3, shape,
                          &spe->gate_noise, err);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* One feature's rows of the codes. For a query, cos(a + o) u + sin(a + o) v is written as cos a and
 * sin a times what o makes of u and v. */
static void fill_codes(const struct spe *spe, int64_t feature, int sines, int64_t realizations,
                       double scale, float *q, float *k)
{
    const double gate = spe->gate ? sigmoid((double)spe->gate[feature]) : 0;
    const double wet = scale * sqrt((1 - gate) / (2 * sines)), dry = scale * sqrt(gate);
    for (int64_t s = feature * sines; s < (feature + 1) * sines; s++) {
        const double gain = wet * softplus((double)spe->gains[s]);
        const double cosine = cos((double)spe->offsets[s]), sine = sin((double)spe->offsets[s]);
        const float *u = spe->noise + 2 * s * realizations, *v = u + realizations;
        for (int64_t r = 0; r < realizations; r++) {
            k[r] = (float)(gain * (double)u[r]);
            k[realizations + r] = (float)(gain * (double)v[r]);
            q[r] = (float)(gain * ((double)u[r] * cosine + (double)v[r] * sine));
            q[realizations + r] = (float)(gain * ((double)v[r] * cosine - (double)u[r] * sine));
        }
        q += 2 * realizations;
        k += 2 * realizations;
    }
    for (int64_t r = 0; spe->gate && r < realizations; r++)
        q[r] = k[r] = (float)(dry * (double)spe->gate_noise[feature * realizations + r]);
}

static int bind_spe(struct weights *weights, struct mixer *mixer, const char *prefix,
                    struct error *err)
{
    struct position *position = &mixer->position;
    struct spe spe = {0};
    int64_t realizations = 0;
    if (read_spe(weights, mixer, prefix, &spe, &realizations, err) != 0)
        return -1;
    mixer->features_positioned = (int)realizations;
    const int64_t features = (int64_t)mixer->num_heads * mixer->features;
    const int64_t size = (2 * position->sines + position->gated) * realizations;
    float *q = arena_alloc(weights->arena, (size_t)features, (size_t)size * sizeof *q, err);
    float *k = arena_alloc(weights->arena, (size_t)features, (size_t)size * sizeof *k, err);
    if (!q || !k)
        return -1;
    const double scale = pow((double)realizations * mixer->features, -0.25);
    for (int64_t i = 0; i < features; i++)
        fill_codes(&spe, i, position->sines, realizations, scale, q + i * size, k + i * size);
    position->code_q = q;
    position->code_k = k;
    return 0;
}

int position_tables_bind(struct weights *weights, struct mixer *mixer, const char *prefix,
                         const struct rope *rope, struct error *err)
{
    struct position *position = &mixer->position;
    mixer->features_positioned = mixer->features;
    switch (position->kind) {
    case POSITION_ROPE:
        if (bind_rope(weights, mixer, prefix, rope, err) != 0)
            return -1;
        return position->distances > 0 ? bind_distances(weights, mixer, prefix, err) : 0;
    case POSITION_ALIBI:
        return alibi_slopes(weights, mixer, err);
    case POSITION_T5:
        return bind_buckets(weights, mixer, prefix, err);
    case POSITION_SPE:
        return bind_spe(weights, mixer, prefix, err);
    default:
        break;
    }
    if (position_does(position->kind, IS_LRPE))
        return bind_lrpe(weights, mixer, prefix, rope, err);
    return bind_kerple(weights, mixer, prefix, position_parameters(position->kind), err);
}

/* ---- of presets ---- */

static void list_lrpe(struct random_list *list, const char *prefix, const struct mixer *mixer,
                      int64_t m)
{
    const struct position *position = &mixer->position;
    const int64_t longest = list->config->max_position_embeddings;
    if (position->basis == BASIS_HOUSEHOLDER)
        random_list_vector(list, prefix, "householder", m, 0, 1);
    /* cosFormer; what is LRPE by itself keeps the default angles */
    if (position->kind == POSITION_LRPE_UNITARY && mixer->feature_map == FEATURE_RELU &&
        longest > 0)
        random_list_vector(list, prefix, "theta", m, M_PI / (2 * (double)longest), 0);
    if (position->kind == POSITION_LRPE_PERMUTATION) {
        struct random_tensor spec = {.dtype = TENSOR_I32, .rank = 1, .shape = {m}};
        weights_name(spec.name, "%s.permutation", prefix);
        random_list_add(list, &spec);
    }
}

/* As their released code starts; as many realizations as features. */
static void list_spe(struct random_list *list, const char *prefix, const struct mixer *mixer,
                     int64_t m)
{
    const int64_t heads = mixer->num_heads;
    const int64_t shape[4] = {heads, m, SPE_SINES};
    struct random_tensor freqs = {
        .dtype = TENSOR_F32, .rank = 3, .shape = {heads, m, SPE_SINES}, .mean = -4, .deviation = 1};
    weights_name(freqs.name, "%s.freqs", prefix);
    random_list_add(list, &freqs);
    random_list_array(list, prefix, "offsets", 3, shape, 1);
    random_list_array(list, prefix, "gains", 3, shape, 2);
    random_list_array(list, prefix, "noise", 4, (int64_t[]){heads, m, 2 * SPE_SINES, m}, 1);
    if (!mixer->position.gated)
        return;
    random_list_array(list, prefix, "gate", 2, shape, 1);
    random_list_array(list, prefix, "gate_noise", 3, (int64_t[]){heads, m, m}, 1);
}

void position_tables_random(struct random_list *list, const char *mixer_prefix,
                            const struct mixer *mixer, int64_t m)
{
    const enum position_kind kind = mixer->position.kind;
    const int64_t heads = mixer->num_heads, distances = mixer->position.distances;
    char prefix[WEIGHT_NAME_SIZE], name[8];
    weights_name(prefix, "%s.position", mixer_prefix);
    if (position_does(kind, IS_LRPE))
        list_lrpe(list, prefix, mixer, m);
    if (kind == POSITION_SPE)
        list_spe(list, prefix, mixer, m);
    if (distances > 0)
        random_list_array(list, prefix, "distance_bias", 2, (int64_t[]){distances, heads}, 0.5);
    if (kind == POSITION_T5)
        random_list_array(list, prefix, "bucket_bias", 2, (int64_t[]){T5_BUCKETS, heads}, 0.5);
    for (int r = 1; r <= position_parameters(kind);
         r++) { /* positive: 3.5 deviations is the most */
        snprintf(name, sizeof name, "r%d", r);
        random_list_vector(list, prefix, name, heads, 0.5, 0.125);
    }
}
