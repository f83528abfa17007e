/* The row recurrence. A vector holds LANES rows of S for one feature, so s.phi is one running sum
 * per row over the features, with no sum across lanes.
 *
 * Per head and token: 3 multiply-adds for each of dv * m2 elements (4 or 5 with decays), and
 * 2 * 4 * dv * m2 bytes of state once per TOKEN_GROUP tokens. */
#ifndef ENGINE_CPU_KERNELS_RECURRENCE_H
#define ENGINE_CPU_KERNELS_RECURRENCE_H

#include "engine/cpu/kernels.h"
#include "engine/cpu/vector.h"

#include <string.h>

/* One block of 16 rows, TOKEN_GROUP tokens. */
struct recurrence_block {
    int tokens;
    float decay[TOKEN_GROUP][OPS_ROW_BLOCK]; /* a, with the rescaling of the maxima */
    float value[TOKEN_GROUP][OPS_ROW_BLOCK]; /* b v_i */
    float sums[TOKEN_GROUP][OPS_ROW_BLOCK];  /* h_i */
    const float *q[TOKEN_GROUP], *k[TOKEN_GROUP], *f[TOKEN_GROUP];
    float delta[TOKEN_GROUP]; /* g */
};

/* `count` features from `at` on, which are registers: constants at each call. `gate`: their place
 * in f. */
static inline __attribute__((always_inline)) void
recur(const bool decays, const bool features, const int count, struct recurrence_block *block,
      float *state, int lane, int64_t at, int64_t gate)
{
    vec s[8];
#pragma GCC unroll 8
    for (int j = 0; j < count; j++)
        s[j] = vec_load(state + (at + j) * OPS_ROW_BLOCK + lane);
    for (int t = 0; t < block->tokens; t++) {
        vec decay = vec_load(block->decay[t] + lane);
        vec value = vec_load(block->value[t] + lane);
        vec sum = vec_load(block->sums[t] + lane);
        const float *k = block->k[t] + at, *q = block->q[t] + at;
#pragma GCC unroll 8
        for (int j = 0; j < count; j++) {
            if (features)
                s[j] = s[j] * vec_set(block->f[t][gate + j]);
            if (decays)
                s[j] = s[j] * decay;
            s[j] = vec_fma(value, vec_set(k[j]), s[j]);
            sum = vec_fma(s[j], vec_set(q[j]), sum);
        }
        vec_store(block->sums[t] + lane, sum);
    }
#pragma GCC unroll 8
    for (int j = 0; j < count; j++)
        vec_store(state + (at + j) * OPS_ROW_BLOCK + lane, s[j]);
}

static inline __attribute__((always_inline)) void recur_all(const bool decays, const bool features,
                                                            const struct ops_recurrence *a,
                                                            struct recurrence_block *block,
                                                            float *state)
{
    for (int lane = 0; lane < OPS_ROW_BLOCK; lane += LANES)
        for (int64_t part = 0; part < a->features; part += a->gate_features) {
            int64_t j = 0;
            for (; j + 8 <= a->gate_features; j += 8)
                recur(decays, features, 8, block, state, lane, part + j, j);
            for (; j < a->gate_features; j++)
                recur(decays, features, 1, block, state, lane, part + j, j);
        }
}

/* The delta rule needs s.phi of all features before it changes one. */
static void recur_delta(const struct ops_recurrence *a, bool decays, struct recurrence_block *block,
                        float *state)
{
    for (int lane = 0; lane < OPS_ROW_BLOCK; lane += LANES)
        for (int t = 0; t < block->tokens; t++) {
            vec decay = vec_load(block->decay[t] + lane);
            vec dot = vec_set(0.0f), sum = vec_set(0.0f);
            for (int64_t j = 0; j < a->features; j++) {
                float *at = state + j * OPS_ROW_BLOCK + lane;
                vec s = vec_load(at);
                if (block->f[t] != NULL)
                    s = s * vec_set(block->f[t][j % a->gate_features]);
                if (decays)
                    s = s * decay;
                vec_store(at, s);
                dot = vec_fma(s, vec_set(block->k[t][j]), dot);
            }
            vec value = vec_fma(vec_set(-block->delta[t]), dot, vec_load(block->value[t] + lane));
            for (int64_t j = 0; j < a->features; j++) {
                float *at = state + j * OPS_ROW_BLOCK + lane;
                vec s = vec_fma(value, vec_set(block->k[t][j]), vec_load(at));
                vec_store(at, s);
                sum = vec_fma(s, vec_set(block->q[t][j]), sum);
            }
            vec_store(block->sums[t] + lane, sum);
        }
}

/* a, b v and 0 for rows [first, first + 16) of S; c is row dv; rows past the end stay 0. */
static void fill_rows(const struct ops_recurrence *a, int row, int head, int kv_head, int first,
                      float *decay, float *value)
{
    const float *v = a->v.data + row * a->v.stride + (int64_t)kv_head * a->value_dim;
    const float *decays = a->row_decay.data + row * a->row_decay.stride;
    float rescale =
        a->rescale.data == NULL ? 1.0f : a->rescale.data[row * a->rescale.stride + kv_head];
    float scale = a->input_scale.data == NULL
                      ? 1.0f
                      : a->input_scale.data[row * a->input_scale.stride + head];
    for (int i = 0; i < OPS_ROW_BLOCK; i++) {
        int at = first + i;
        bool inside = at < a->value_dim;
        float own = 1.0f;
        if (a->row_decay.data != NULL && a->row_decay_per_head)
            own = decays[head];
        else if (a->row_decay.data != NULL && inside)
            own = decays[(int64_t)head * a->value_dim + at];
        decay[i] = own * rescale;
        value[i] = inside ? v[at] * scale : at == a->value_dim && a->sum_norm ? scale : 0.0f;
    }
}

static void fill_block(const struct ops_recurrence *a, struct recurrence_block *block, int row,
                       int head)
{
    int kv_head = head / (a->num_heads / a->num_kv_heads);
    for (int t = 0; t < block->tokens; t++) {
        int r = row + t;
        block->q[t] = a->q.data + r * a->q.stride + (int64_t)head * a->features;
        block->k[t] = a->k.data + r * a->k.stride + (int64_t)kv_head * a->features;
        block->f[t] = a->feature_decay.data == NULL
                          ? NULL
                          : a->feature_decay.data + r * a->feature_decay.stride +
                                (int64_t)kv_head * a->gate_features;
        block->delta[t] = a->delta.data == NULL ? 0.0f : a->delta.data[r * a->delta.stride + head];
    }
}

static void run_block(const struct ops_recurrence *a, struct recurrence_block *block, float *state)
{
    bool decays = a->row_decay.data != NULL || a->rescale.data != NULL;
    bool features = a->feature_decay.data != NULL;
    memset(block->sums, 0, sizeof block->sums);
    if (a->delta.data != NULL)
        recur_delta(a, decays, block, state);
    else if (decays && features)
        recur_all(true, true, a, block, state);
    else if (decays)
        recur_all(true, false, a, block, state);
    else if (features)
        recur_all(false, true, a, block, state);
    else
        recur_all(false, false, a, block, state);
}

static void kernel_recurrence(const struct ops_recurrence *a, const struct batch_span *span,
                              int head)
{
    size_t head_bytes = ops_recurrent_bytes(a->value_dim, a->sum_norm, a->features);
    float *state = (float *)(void *)(span->slot + a->state_offset + (size_t)head * head_bytes);
    int kv_head = head / (a->num_heads / a->num_kv_heads);
    int rows = a->value_dim + (a->sum_norm ? 1 : 0);
    struct recurrence_block block;
    for (int done = 0; done < span->num_rows; done += TOKEN_GROUP) {
        int row = span->first_row + done;
        float sums[TOKEN_GROUP] = {0}; /* c.phi_q */
        block.tokens = span->num_rows - done < TOKEN_GROUP ? span->num_rows - done : TOKEN_GROUP;
        fill_block(a, &block, row, head);
        for (int first = 0; first < rows; first += OPS_ROW_BLOCK) {
            for (int t = 0; t < block.tokens; t++)
                fill_rows(a, row + t, head, kv_head, first, block.decay[t], block.value[t]);
            run_block(a, &block, state + (int64_t)first * a->features);
            int inside =
                a->value_dim - first < OPS_ROW_BLOCK ? a->value_dim - first : OPS_ROW_BLOCK;
            for (int t = 0; t < block.tokens; t++) {
                float *h = a->h.data + (row + t) * a->h.stride + (int64_t)head * a->value_dim;
                for (int i = 0; i < inside; i++)
                    h[first + i] = block.sums[t][i];
                if (a->sum_norm && rows - first <= OPS_ROW_BLOCK)
                    sums[t] = block.sums[t][a->value_dim - first];
            }
        }
        for (int t = 0; a->sum_norm && t < block.tokens; t++) {
            float *h = a->h.data + (row + t) * a->h.stride + (int64_t)head * a->value_dim;
            float divisor = sums[t] > 1e-6f ? sums[t] : 1e-6f;
            for (int i = 0; i < a->value_dim; i++)
                h[i] /= divisor;
        }
    }
}

#endif
