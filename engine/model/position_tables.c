/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/position_tables.h"

#include <math.h>

enum { T5_BUCKETS = 32 };

/* floor(size * pct), rounded down to even */
static int rotary_dims(int size, double pct)
{
    return (int)(size * pct) / 2 * 2;
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
                     double rotary_pct, struct error *err)
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
    position->rotary_dims = rotary_dims(m, rotary_pct);
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

/* r1..r`count` [H]. The kernels are defined for r >= 0 only: a logarithm of 1 + r x, a power of 0.
 */
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
        for (int h = 0; h < mixer->num_heads; h++)
            if ((*targets[r])[h] < 0)
                return weights_bad(weights, name, err,
                                   "expected numbers >= 0, got %g at element %d",
                                   (double)(*targets[r])[h], h);
    }
    return 0;
}

static int bind_buckets(struct weights *weights, struct mixer *mixer, const char *prefix,
                        struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t shape[2] = {T5_BUCKETS, mixer->num_heads};
    return weights_floats(weights, weights_name(name, "%s.position.bucket_bias", prefix), 2, shape,
                          &mixer->position.bucket_bias, err);
}

int position_tables_bind(struct weights *weights, struct mixer *mixer, const char *prefix,
                         double rotary_pct, struct error *err)
{
    struct position *position = &mixer->position;
    mixer->features_positioned = mixer->features;
    switch (position->kind) {
    case POSITION_ROPE: {
        bool after = mixer->kind == MIXER_LINEAR && position->stage == ROPE_STAGE_AFTER;
        position->rotary_dims = rotary_dims(after ? mixer->features : mixer->head_dim, rotary_pct);
        return 0;
    }
    case POSITION_LRPE_UNITARY:
    case POSITION_LRPE_ORTHOGONAL:
    case POSITION_LRPE_PERMUTATION:
        return bind_lrpe(weights, mixer, prefix, rotary_pct, err);
    case POSITION_ALIBI:
        return alibi_slopes(weights, mixer, err);
    case POSITION_KERPLE_LOG:
    case POSITION_KERPLE_POWER:
        return bind_kerple(weights, mixer, prefix, 2, err);
    case POSITION_KERPLE_3PARA_LOG:
        return bind_kerple(weights, mixer, prefix, 3, err);
    case POSITION_KERPLE_BIAS_WHT:
        return bind_kerple(weights, mixer, prefix, 4, err);
    case POSITION_T5:
        return bind_buckets(weights, mixer, prefix, err);
    case POSITION_NONE:
        break;
    }
    return 0;
}
