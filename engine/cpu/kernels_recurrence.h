/* SPDX-License-Identifier: Apache-2.0 */
/* The row recurrence with everything before it: positions, feature map and gates. It works on one
 * head and TOKEN_GROUP tokens at a time, so that intermediate results stay in the first cache. A
 * vector holds LANES rows of S for one feature, so s.phi is one running sum per row over the
 * features, with no sum across lanes.
 *
 * Cost per head and token: 3 multiply-adds for each of dv * m2 elements of S (4 with feature
 * decays, 2 without row decays), d + m + dv formulas, and 4 * (2d + 3dv) bytes of projections
 * (refined gate). Once per TOKEN_GROUP tokens it moves 2 * 4 * dv * m2 bytes of S, which bounds a
 * single row. How fast that is: loadtest/FIGURES.md, "Kernels". */
#ifndef ENGINE_CPU_KERNELS_RECURRENCE_H
#define ENGINE_CPU_KERNELS_RECURRENCE_H

#include "engine/cpu/kernels_elementwise.h"
#include "engine/cpu/vector.h"

#include <string.h>

/* What TOKEN_GROUP tokens do to `width` rows of one head's S, from row `first` on. */
struct recurrence_group {
    int head, q_head, k_head, v_head; /* of S, and what it reads: of q, of k and f, of v */
    int tokens, first, width;
    int row;                     /* of the step, of its first token */
    float *q, *k;                /* [TOKEN_GROUP, m2] */
    float *f;                    /* [TOKEN_GROUP, m] */
    float *decay, *value, *sums; /* [TOKEN_GROUP, width]: a, b v_i, h_i */
    float *turned, *mapped;      /* [d], [m]: of one token */
    float delta[TOKEN_GROUP];    /* g */
};

/* Updates `count` features from `at` on, in registers; count is a constant at each call. gate:
 * their place in f. row: of the group. */
static inline __attribute__((always_inline)) void
recur(const bool decays, const bool features, const int count, const struct ops_recurrence *a,
      const struct recurrence_group *group, float *state, int64_t row, int64_t at, int64_t gate)
{
    vec s[8];
#pragma GCC unroll 8
    for (int j = 0; j < count; j++)
        s[j] = vec_load(state + (at + j) * OPS_ROW_BLOCK);
    for (int64_t t = 0; t < group->tokens; t++) {
        vec decay = vec_load(group->decay + t * group->width + row);
        vec value = vec_load(group->value + t * group->width + row);
        vec sum = vec_load(group->sums + t * group->width + row);
        const float *k = group->k + t * a->features + at, *q = group->q + t * a->features + at;
        const float *f = group->f + t * a->phi.features + gate;
#pragma GCC unroll 8
        for (int j = 0; j < count; j++) {
            if (features)
                s[j] = s[j] * vec_set(f[j]);
            if (decays)
                s[j] = s[j] * decay;
            s[j] = vec_fma(value, vec_set(k[j]), s[j]);
            sum = vec_fma(s[j], vec_set(q[j]), sum);
        }
        vec_store(group->sums + t * group->width + row, sum);
    }
#pragma GCC unroll 8
    for (int j = 0; j < count; j++)
        vec_store(state + (at + j) * OPS_ROW_BLOCK, s[j]);
}

static inline __attribute__((always_inline)) void recur_all(const bool decays, const bool features,
                                                            const struct ops_recurrence *a,
                                                            const struct recurrence_group *group,
                                                            float *state)
{
    const int64_t m = features ? a->phi.features : a->features;
    for (int64_t row = 0; row < group->width; row += LANES) {
        float *rows = state + row / OPS_ROW_BLOCK * OPS_ROW_BLOCK * a->features;
        rows += row % OPS_ROW_BLOCK;
        for (int64_t part = 0; part < a->features; part += m) {
            int64_t j = 0;
            for (; j + 8 <= m; j += 8)
                recur(decays, features, 8, a, group, rows, row, part + j, j);
            for (; j < m; j++)
                recur(decays, features, 1, a, group, rows, row, part + j, j);
        }
    }
}

/* What token t of the group has of rows that are as wide as the keys' features. */
static inline const float *of_key_head(const struct ops_recurrence *a,
                                       const struct recurrence_group *group,
                                       const struct rows *rows, int64_t t)
{
    return rows->data + (group->row + t) * rows->stride + (int64_t)group->k_head * a->features;
}

/* The delta rule needs s.phi over all features before it changes one. So one pass over S does two
 * things: it applies `value` of token t - 1, whose read-out it returns, and it multiplies the
 * result with the key of token t, into *dot. apart: it multiplies with `erase` instead, before the
 * decay, and token t - 1 also adds `erased` times its `write`. */
static inline __attribute__((always_inline)) vec
delta_pass(const bool changes, const bool weighs, const bool features, const bool apart,
           const struct ops_recurrence *a, const struct recurrence_group *group, float *state,
           int64_t row, int64_t t, vec value, vec erased, vec *dot)
{
    const int64_t m = a->phi.features;
    const int64_t old = changes ? (t - 1) * a->features : 0;
    const float *k = group->k + (weighs ? t * a->features : 0);
    const float *old_k = group->k + old, *old_q = group->q + old;
    const float *erase = apart && weighs ? of_key_head(a, group, &a->erase, t) : NULL;
    const float *write = apart && changes ? of_key_head(a, group, &a->write, t - 1) : NULL;
    vec sum = vec_set(0.0f), decay = sum;
    *dot = sum;
    if (weighs)
        decay = vec_load(group->decay + t * group->width + row);
    for (int64_t j = 0; j < a->features; j++) {
        vec s = vec_load(state + j * OPS_ROW_BLOCK);
        if (changes) {
            s = vec_fma(value, vec_set(old_k[j]), s);
            if (apart)
                s = vec_fma(erased, vec_set(write[j]), s);
            sum = vec_fma(s, vec_set(old_q[j]), sum);
        }
        if (weighs) {
            if (apart)
                *dot = vec_fma(s, vec_set(erase[j]), *dot);
            if (features)
                s = s * vec_set(group->f[t * m + j % m]);
            s = s * decay; /* 1 where the gate has none */
            if (!apart)
                *dot = vec_fma(s, vec_set(k[j]), *dot);
        }
        vec_store(state + j * OPS_ROW_BLOCK, s);
    }
    return sum;
}

static inline __attribute__((always_inline)) void
recur_erasing(const bool features, const bool apart, const struct ops_recurrence *a,
              const struct recurrence_group *group, float *state, int64_t row)
{
    const int64_t width = group->width;
    vec value = vec_set(0.0f), erased = value, dot;
    for (int64_t t = 0; t <= group->tokens; t++) {
        vec sum;
        if (t == group->tokens)
            sum =
                delta_pass(true, false, false, apart, a, group, state, row, t, value, erased, &dot);
        else if (t == 0)
            sum = delta_pass(false, true, features, apart, a, group, state, row, t, value, erased,
                             &dot);
        else
            sum = delta_pass(true, true, features, apart, a, group, state, row, t, value, erased,
                             &dot);
        if (t > 0)
            vec_store(group->sums + (t - 1) * width + row, sum);
        if (t == group->tokens)
            break;
        value = vec_load(group->value + t * width + row);
        if (apart)
            erased = vec_set(0.0f) - dot;
        else
            value = vec_fma(vec_set(-group->delta[t]), dot, value);
    }
}

static void recur_delta(const struct ops_recurrence *a, bool features,
                        const struct recurrence_group *group, float *state, int64_t row)
{
    if (a->erase.data != NULL && features)
        recur_erasing(true, true, a, group, state, row);
    else if (a->erase.data != NULL)
        recur_erasing(false, true, a, group, state, row);
    else if (features)
        recur_erasing(true, false, a, group, state, row);
    else
        recur_erasing(false, false, a, group, state, row);
}

/* `count` features from `at` on of chunks: finished and its own half are [m2][16] each. The
 * group's tokens are of one chunk; first: of the chunk's first token on. */
static inline __attribute__((always_inline)) void
recur_chunk(const int count, const struct ops_recurrence *a, const struct recurrence_group *group,
            float *state, int64_t row, int64_t at, bool first)
{
    float *finished = state + at * OPS_ROW_BLOCK;
    float *in_hand = finished + (int64_t)a->features * OPS_ROW_BLOCK;
    vec s[4], own[4];
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) {
        s[j] = vec_load(finished + j * OPS_ROW_BLOCK);
        own[j] = vec_load(in_hand + j * OPS_ROW_BLOCK);
        if (first) {
            s[j] = s[j] + own[j];
            own[j] = vec_set(0.0f);
            vec_store(finished + j * OPS_ROW_BLOCK, s[j]);
        }
    }
    for (int64_t t = 0; t < group->tokens; t++) {
        vec value = vec_load(group->value + t * group->width + row);
        vec sum = vec_load(group->sums + t * group->width + row);
        const float *k = group->k + t * a->features + at, *q = group->q + t * a->features + at;
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) {
            sum = vec_fma(s[j], vec_set(q[j]), sum);
            own[j] = vec_fma(value, vec_set(k[j]), own[j]);
        }
        vec_store(group->sums + t * group->width + row, sum);
    }
#pragma GCC unroll 4
    for (int j = 0; j < count; j++)
        vec_store(in_hand + j * OPS_ROW_BLOCK, own[j]);
}

static void run_chunk(const struct ops_recurrence *a, const struct recurrence_group *group,
                      float *state, bool first)
{
    memset(group->sums, 0, (size_t)(group->tokens * group->width) * sizeof(float));
    for (int64_t row = 0; row < group->width; row += LANES) {
        float *rows = state + row / OPS_ROW_BLOCK * OPS_ROW_BLOCK * 2 * a->features;
        rows += row % OPS_ROW_BLOCK;
        int64_t j = 0;
        for (; j + 4 <= a->features; j += 4)
            recur_chunk(4, a, group, rows, row, j, first);
        for (; j < a->features; j++)
            recur_chunk(1, a, group, rows, row, j, first);
    }
}

static void run_group(const struct ops_recurrence *a, struct recurrence_group *group, float *state)
{
    bool decays = a->row_decay.u.data != NULL || formula_is_exponential(a->phi.map);
    bool features = a->feature_decay.u.data != NULL;
    memset(group->sums, 0, (size_t)(group->tokens * group->width) * sizeof(float));
    if (a->delta.u.data != NULL || a->erase.data != NULL)
        for (int64_t row = 0; row < group->width; row += LANES)
            recur_delta(a, features, group,
                        state + row / OPS_ROW_BLOCK * OPS_ROW_BLOCK * a->features +
                            row % OPS_ROW_BLOCK,
                        row);
    else if (decays && features)
        recur_all(true, true, a, group, state);
    else if (decays)
        recur_all(true, false, a, group, state);
    else if (features)
        recur_all(false, true, a, group, state);
    else
        recur_all(false, false, a, group, state);
}

/* Computes phi of the head's q or k in row r, which is at `position` of its text. maximum: the
 * keys' running maximum; NULL for a query. Returns the factor by which a new maximum multiplies S.
 */
static float head_features(const struct ops_recurrence *a, const struct recurrence_group *group,
                           int r, int64_t position, float *maximum, float *phi)
{
    const struct ops_features *features = &a->phi;
    const int head = maximum != NULL ? group->k_head : group->q_head;
    const struct rows *side = maximum != NULL ? &a->k : &a->q;
    const struct rows *product = maximum != NULL ? &features->y_k : &features->y_q;
    const int m = features->features;
    const float *z = side->data + r * side->stride + (int64_t)head * features->head_dim;
    const float *y = NULL;
    float *out = features->after != NULL ? group->mapped : phi;
    float rescale = 1.0f;
    if (features->before != NULL) {
        position_head(features->before, r, position, head, maximum != NULL, z, group->turned);
        z = group->turned;
    }
    if (product->data != NULL)
        y = product->data + r * product->stride + (int64_t)head * features->feature_rows;
    formula_features(features->map, z, y, features->head_dim, features->feature_rows, m,
                     features->dpfp_nu, out);
    if (formula_is_exponential(features->map)) {
        float most = formula_max(out, m);
        if (maximum != NULL) {
            most = most > *maximum ? most : *maximum;
            rescale = formula_exp(*maximum - most);
            *maximum = most;
        }
        for (int j = 0; j < m; j++)
            out[j] = formula_exp(out[j] - most);
    }
    if (maximum == NULL)
        for (int j = 0; j < m; j++)
            out[j] *= features->query_scale;
    if (features->after != NULL)
        position_head(features->after, r, position, head, maximum != NULL, out, phi);
    return rescale;
}

/* n columns of a factor from `column` on; 1 where it is absent. */
static void factor_row(const struct ops_factor *factor, int r, int64_t column, int n, float *out)
{
    if (factor->u.data != NULL)
        map_row(factor->formula, out, factor->u.data + r * factor->u.stride + column,
                factor->w.data == NULL ? NULL : factor->w.data + r * factor->w.stride + column,
                factor->constant, n);
    else
        for (int i = 0; i < n; i++)
            out[i] = 1.0f;
}

/* The number of the group's rows that belong to S. c and rows that stay 0 may follow. */
static int rows_inside(const struct ops_recurrence *a, const struct recurrence_group *group)
{
    int left = a->value_dim - group->first;
    return left < group->width ? left : group->width;
}

/* Computes a and b v of the group's rows for token t, row r of the step. */
static void fill_rows(const struct ops_recurrence *a, const struct recurrence_group *group, int t,
                      int r, float rescale)
{
    const int head = group->head;
    float *decay = group->decay + (int64_t)t * group->width;
    float *value = group->value + (int64_t)t * group->width;
    const float *v =
        a->v.data + r * a->v.stride + (int64_t)group->v_head * a->value_dim + group->first;
    int inside = rows_inside(a, group);
    float scale, all = 1.0f;
    factor_row(&a->input_scale, r, head, 1, &scale);
    if (a->row_decay_per_head)
        factor_row(&a->row_decay, r, head, 1, &all);
    for (int i = 0; i < group->width; i++) {
        decay[i] = all;
        value[i] = 0.0f;
    }
    if (a->row_decay.u.data != NULL && !a->row_decay_per_head)
        factor_row(&a->row_decay, r, (int64_t)head * a->value_dim + group->first, inside, decay);
    for (int i = 0; i < group->width; i++)
        decay[i] *= rescale;
    for (int i = 0; i < inside; i++)
        value[i] = v[i] * scale;
    if (a->sum_norm)
        value[inside] = scale;
}

/* Inline, because gcc drops calls of functions that do nothing else. */
static inline __attribute__((always_inline)) void prefetch(const struct rows *rows, int r,
                                                           int64_t column, int n)
{
    if (rows->data != NULL)
        for (int i = 0; i < n; i += 16)
            __builtin_prefetch(rows->data + r * rows->stride + column + i);
}

/* A head reads a few lines of each row, far from those of the next row, so hardware cannot prefetch
 * them. */
static inline __attribute__((always_inline)) void
prefetch_row(const struct ops_recurrence *a, const struct recurrence_group *group, int r)
{
    int d = a->phi.head_dim, rows = rows_inside(a, group);
    int64_t at = (int64_t)group->head * a->value_dim + group->first;
    prefetch(&a->q, r, (int64_t)group->q_head * d, d);
    prefetch(&a->k, r, (int64_t)group->k_head * d, d);
    prefetch(&a->v, r, (int64_t)group->v_head * a->value_dim + group->first, rows);
    if (!a->row_decay_per_head) {
        prefetch(&a->row_decay.u, r, at, rows);
        prefetch(&a->row_decay.w, r, at, rows);
    }
}

/* row: of the step, the group's first. */
static void fill_group(const struct ops_recurrence *a, struct recurrence_group *group, int row,
                       int64_t position, float *maximum)
{
    int64_t m = a->phi.features;
    group->row = row;
    for (int t = 0; t < group->tokens; t++) {
        int r = row + t;
        if (group->tokens == TOKEN_GROUP) /* there may be as many after these */
            prefetch_row(a, group, r + TOKEN_GROUP);
        head_features(a, group, r, position + t, NULL, group->q + (int64_t)t * a->features);
        float rescale =
            head_features(a, group, r, position + t, maximum, group->k + (int64_t)t * a->features);
        fill_rows(a, group, t, r, rescale);
        if (a->feature_decay.u.data != NULL)
            factor_row(&a->feature_decay, r, group->k_head * m, (int)m, group->f + t * m);
        if (a->delta.u.data != NULL)
            factor_row(&a->delta, r, group->head, 1, &group->delta[t]);
    }
}

/* h += D v of the group's rows, of row `row` of the step. */
static void add_skip(const struct ops_recurrence *a, const struct recurrence_group *group, int row,
                     int count, float *h)
{
    const float skip = a->skip[group->head];
    const float *v =
        a->v.data + row * a->v.stride + (int64_t)group->v_head * a->value_dim + group->first;
    for (int i = 0; i < count; i++)
        h[i] = FORMULA_FMA(skip, v[i], h[i]);
}

static void write_group(const struct ops_recurrence *a, const struct recurrence_group *group,
                        int row)
{
    int inside = rows_inside(a, group);
    for (int t = 0; t < group->tokens; t++) {
        const float *sums = group->sums + (int64_t)t * group->width;
        float *h = a->h.data + (row + t) * a->h.stride + (int64_t)group->head * a->value_dim +
                   group->first;
        float normalizer = a->sum_norm ? sums[inside] : 1.0f; /* c.phi_q */
        float divisor = normalizer > 1e-6f ? normalizer : 1e-6f;
        for (int i = 0; i < inside; i++)
            h[i] = a->sum_norm ? sums[i] / divisor : sums[i];
        if (a->skip != NULL)
            add_skip(a, group, row + t, inside, h);
    }
}

static struct recurrence_group group_in(const struct ops_recurrence *a, int head, int first,
                                        int end, float *scratch)
{
    struct recurrence_group group = {
        .head = head,
        .q_head = ops_shared_head(a, a->num_qk_heads, head),
        .k_head = ops_shared_head(a, ops_recurrence_key_heads(a), head),
        .v_head = ops_shared_head(a, a->num_kv_heads, head),
        .first = first * OPS_ROW_BLOCK,
        .width = (end - first) * OPS_ROW_BLOCK,
    };
    int most = a->features > a->phi.features ? a->features : a->phi.features;
    int64_t m = (most + 15) / 16 * 16;
    float **arrays[] = {&group.q, &group.k, &group.f, &group.decay, &group.value, &group.sums};
    for (int i = 0; i < 6; i++) {
        *arrays[i] = scratch;
        scratch += TOKEN_GROUP * (i < 3 ? m : group.width);
    }
    group.mapped = scratch;
    group.turned = scratch + m;
    return group;
}

static void kernel_recurrence(const struct ops_recurrence *a, const struct batch_span *span,
                              int head, int first, int end, float *scratch)
{
    const int features = ops_state_features(a->features, a->chunk_size);
    size_t head_bytes = ops_recurrent_bytes(a->value_dim, a->sum_norm, features);
    float *state = (float *)(void *)(span->slot + a->state_offset + (size_t)head * head_bytes);
    struct recurrence_group group = group_in(a, head, first, end, scratch);
    bool exponential = formula_is_exponential(a->phi.map);
    float maximum = 0.0f;
    if (exponential)
        maximum = a->phi.maxima.data[span->first_row * a->phi.maxima.stride + group.k_head];
    state += (int64_t)group.first * features;
    for (int done = 0; done < span->num_rows; done += group.tokens) {
        int row = span->first_row + done;
        int64_t in_chunk = a->chunk_size > 0 ? (span->position + done) % a->chunk_size : 0;
        group.tokens = span->num_rows - done < TOKEN_GROUP ? span->num_rows - done : TOKEN_GROUP;
        if (a->chunk_size > 0 && group.tokens > a->chunk_size - in_chunk)
            group.tokens = (int)(a->chunk_size - in_chunk);
        fill_group(a, &group, row, span->position + done, &maximum);
        if (a->chunk_size > 0)
            run_chunk(a, &group, state, in_chunk == 0);
        else
            run_group(a, &group, state);
        write_group(a, &group, row);
    }
    bool owner = head % (a->num_heads / ops_recurrence_key_heads(a)) == 0; /* of those of its k */
    if (exponential && first == 0 && owner)
        ((float *)(void *)(span->slot + a->phi.maxima_offset))[group.k_head] = maximum;
}

#endif
