/* SPDX-License-Identifier: Apache-2.0 */
/* Norms, formulas and positions: everything that treats rows one by one. These are loops over the
 * formulas of engine/ops/formulas.h. The compiler vectorises them; the formulas give the same bits
 * in every lane and in the scalar remainder.
 *
 * Cost per element: a norm reads 4 bytes up to three times (from the first cache), writes 4, and
 * takes some 6 operations. A map reads 4 or 8 bytes, writes 4, and takes up to some 50 operations
 * (gelu_new, silu, refined). rope takes 3. An angle takes some 40 in double precision, once for all
 * layers with equal angles. Rows stay in cache between operations, so none comes near a limit. */
#ifndef ENGINE_CPU_KERNELS_ELEMENTWISE_H
#define ENGINE_CPU_KERNELS_ELEMENTWISE_H

#include "engine/cpu/kernels.h"

#include <math.h>
#include <string.h>

/* out = formula(u, w) for n elements; in place is allowed. */
static void map_row(enum formula formula, float *out, const float *u, const float *w,
                    float constant, int64_t n)
{
#define MAP_ONE(name)                                           \
    case name:                                                  \
        for (int64_t j = 0; j < n; j++)                         \
            out[j] = formula_apply(name, u[j], 0.0f, constant); \
        break;
#define MAP_TWO(name)                                           \
    case name:                                                  \
        for (int64_t j = 0; j < n; j++)                         \
            out[j] = formula_apply(name, u[j], w[j], constant); \
        break;
    switch (formula) {
        FORMULA_OF_ONE(MAP_ONE)
        FORMULA_OF_TWO(MAP_TWO)
    }
#undef MAP_ONE
#undef MAP_TWO
}

static void kernel_map(const struct ops_map *a, int first, int end)
{
    for (int r = first; r < end; r++) {
        float *out = a->out.data + r * a->out.stride;
        map_row(a->formula, out, a->u.data + r * a->u.stride,
                a->w.data == NULL ? NULL : a->w.data + r * a->w.stride, a->constant, a->num_cols);
        if (a->weight != NULL)
            for (int j = 0; j < a->num_cols; j++)
                out[j] = out[j] * a->weight[j];
        if (a->bias != NULL)
            for (int j = 0; j < a->num_cols; j++)
                out[j] += a->bias[j];
    }
}

/* Sum of (x - shift)^2 in the order of formula_sum. */
static float sum_squares(const float *x, float shift, int n)
{
    float lanes[16] = {0};
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) {
            float d = x[i + j] - shift;
            lanes[j] = FORMULA_FMA(d, d, lanes[j]);
        }
    for (int j = 0; i + j < n; j++) {
        float d = x[i + j] - shift;
        lanes[j] = FORMULA_FMA(d, d, lanes[j]);
    }
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lanes[j] += lanes[j + width];
    return lanes[0];
}

/* y = formula(gate) * x for n elements, a block at a time, since gate may be y. */
static void gate_part(enum formula formula, const float *gate, const float *x, float *y, int n)
{
    float block[256];
    for (int c = 0; c < n; c += 256) {
        int count = n - c < 256 ? n - c : 256;
        map_row(formula, block, gate + c, NULL, 0.0f, count);
        for (int j = 0; j < count; j++)
            y[c + j] = block[j] * x[c + j];
    }
}

static void gate_group(enum formula formula, float gate, const float *x, float *y, int n)
{
    const float factor = formula_apply(formula, gate, 0.0f, 0.0f);
    for (int j = 0; j < n; j++)
        y[j] = factor * x[j];
}

/* at: of the part's weight and bias. */
static void norm_part(const struct ops_norm *a, int64_t at, const float *x, float *y)
{
    const float *weight = a->weight == NULL ? NULL : a->weight + at;
    const float *bias = a->bias == NULL ? NULL : a->bias + at;
    int n = a->size;
    float mean = a->kind == NORM_LAYERNORM ? formula_sum(x, n) / (float)n : 0.0f;
    float square = sum_squares(x, mean, n) / (a->kind == NORM_L2 ? 1.0f : (float)n);
    float factor = a->kind == NORM_SIMPLE_RMSNORM ? 1.0f / (sqrtf(square) + a->eps)
                                                  : 1.0f / sqrtf(square + a->eps);
    if (a->kind == NORM_GATED_RMSNORM) {
        for (int j = 0; j < n; j++)
            y[j] = formula_own_gate(x[j] * factor * weight[j], bias[j], x[j]);
        return;
    }
    if (weight == NULL)
        for (int j = 0; j < n; j++)
            y[j] = (x[j] - mean) * factor;
    else
        for (int j = 0; j < n; j++)
            y[j] = (x[j] - mean) * factor * weight[j];
    if (bias != NULL)
        for (int j = 0; j < n; j++)
            y[j] += bias[j];
}

static void kernel_norm(const struct ops_norm *a, int first, int end)
{
    for (int r = first; r < end; r++)
        for (int g = 0; g < a->groups; g++) {
            int64_t column = (int64_t)g * a->size;
            const float *x = a->x.data + r * a->x.stride + column;
            float *y = a->y.data + r * a->y.stride + column;
            const float *gate =
                a->gate.data == NULL ? NULL : a->gate.data + r * a->gate.stride + column;
            if (gate != NULL && a->gate_first) {
                gate_part(a->formula, gate, x, y, a->size);
                x = y;
            }
            if (a->kind != NORM_NONE)
                norm_part(a, a->by_part ? column : 0, x, y);
            if (a->gate.data != NULL && a->gate_of_group)
                gate_group(a->formula, a->gate.data[r * a->gate.stride + g],
                           a->kind == NORM_NONE ? x : y, y, a->size);
            else if (gate != NULL && !a->gate_first)
                gate_part(a->formula, gate, a->kind == NORM_NONE ? x : y, y, a->size);
        }
}

static void kernel_angles(const struct ops_angles *a, const struct batch *batch, int first, int end)
{
    for (int r = first; r < end; r++) {
        double position = (double)batch->positions[r];
        float *cosines = a->cosines.data + r * a->cosines.stride;
        float *sines = a->sines.data + r * a->sines.stride;
        for (int j = 0; j < a->count; j++)
            formula_cos_sin(position * a->theta[j], &cosines[j], &sines[j]);
        const float factor = a->factor;
        for (int j = 0; j < a->count && factor != 0.0f; j++) {
            cosines[j] *= factor;
            sines[j] *= factor;
        }
    }
}

enum { SPE_OUTPUTS = 64 /* at once: their sums stay in registers */ };

/* out = one head of x in the basis of LRPE. */
static void apply_basis(const struct ops_positions *a, const float *x, float *out)
{
    int m = a->dim;
    switch (a->basis) {
    case BASIS_IDENTITY:
        memcpy(out, x, (size_t)m * sizeof(float));
        break;
    case BASIS_HOUSEHOLDER: {
        float lanes[16] = {0};
        for (int i = 0; i < m; i++)
            lanes[i % 16] = FORMULA_FMA(a->householder[i], x[i], lanes[i % 16]);
        float twice = 2.0f * formula_sum(lanes, 16);
        for (int i = 0; i < m; i++)
            out[i] = FORMULA_FMA(-twice, a->householder[i], x[i]);
        break;
    }
    case BASIS_ODD_EVEN:
        for (int i = 0; i < m; i++)
            out[i] = x[i % 2 == 0 ? i / 2 : (m + 1) / 2 + i / 2];
        break;
    }
}

/* y[j] = x[pi^t[j]], where x is the head in its basis. */
static void permute(const struct ops_positions *a, int64_t position, const float *x, float *out)
{
    float twice = 0.0f;
    if (a->basis == BASIS_HOUSEHOLDER) {
        float lanes[16] = {0};
        for (int i = 0; i < a->dim; i++)
            lanes[i % 16] = FORMULA_FMA(a->householder[i], x[i], lanes[i % 16]);
        twice = 2.0f * formula_sum(lanes, 16);
    }
    for (int j = 0; j < a->dim; j++) {
        int32_t length = a->length[j];
        int32_t step = (int32_t)(position % length);
        int i = a->cycle[a->start[j] + (a->place[j] + step) % length];
        if (a->basis == BASIS_HOUSEHOLDER)
            out[j] = FORMULA_FMA(-twice, a->householder[i], x[i]);
        else if (a->basis == BASIS_ODD_EVEN)
            out[j] = x[i % 2 == 0 ? i / 2 : (a->dim + 1) / 2 + i / 2];
        else
            out[j] = x[i];
    }
}

/* Turns pairs of x, in place. Each call has constant arguments, so that the loops vectorise. */
static inline __attribute__((always_inline)) void
rotate(const int64_t step, const int64_t other, const int half, const float *restrict cosines,
       const float *restrict sines, float *restrict x)
{
    for (int i = 0; i < half; i++) {
        float u = x[i * step], v = x[i * step + other];
        x[i * step] = u * cosines[i] - v * sines[i];
        x[i * step + other] = v * cosines[i] + u * sines[i];
    }
}

/* `count` of spe's outputs from `first` on, each one running sum; count is often a constant. */
static inline __attribute__((always_inline)) void encode(const struct ops_positions *a,
                                                         const int count, const float *cosines,
                                                         const float *sines, const float *x,
                                                         const float *code, float *restrict out)
{
    float sums[SPE_OUTPUTS] = {0};
    for (int j = 0; j < a->dim; j++) {
        for (int k = j * a->num_sines; k < (j + 1) * a->num_sines; k++) {
            const float u = x[j] * cosines[k], v = x[j] * sines[k];
            for (int i = 0; i < count; i++) {
                sums[i] = FORMULA_FMA(u, code[i], sums[i]);
                sums[i] = FORMULA_FMA(v, code[a->outputs + i], sums[i]);
            }
            code += 2 * a->outputs;
        }
        for (int i = 0; a->gated && i < count; i++)
            sums[i] = FORMULA_FMA(x[j], code[i], sums[i]);
        code += a->gated ? a->outputs : 0;
    }
    for (int i = 0; i < count; i++)
        out[i] = sums[i];
}

/* Applies the position of row r, which is at `position` of its text, to one head's x: a key's or a
 * query's. */
static void position_head(const struct ops_positions *a, int r, int64_t position, int head,
                          bool key, const float *x, float *out)
{
    int64_t angle = (int64_t)head * a->angles_per_head;
    const float *cosines = a->cosines.data + r * a->cosines.stride + angle;
    const float *sines = a->sines.data + r * a->sines.stride + angle;
    if (a->kind == POSITION_LRPE_PERMUTATION) {
        permute(a, position, x, out);
        return;
    }
    if (a->kind == POSITION_SPE) {
        int64_t rows = (int64_t)a->dim * (2 * a->num_sines + a->gated);
        const float *code = (key ? a->code_k : a->code_q) + head * rows * a->outputs;
        int done = 0;
        for (; done + SPE_OUTPUTS <= a->outputs; done += SPE_OUTPUTS)
            encode(a, SPE_OUTPUTS, cosines, sines, x, code + done, out + done);
        encode(a, a->outputs - done, cosines, sines, x, code + done, out + done);
        return;
    }
    apply_basis(a, x, out);
    if (a->kind == POSITION_LRPE_UNITARY)
        for (int j = 0; j < a->dim; j++) {
            float value = out[j];
            out[j] = value * cosines[j];
            out[a->dim + j] = value * sines[j];
        }
    else if (a->pairing == ROPE_PAIRING_HALF)
        rotate(1, a->rotary_dims / 2, a->rotary_dims / 2, cosines, sines, out);
    else
        rotate(2, 1, a->rotary_dims / 2, cosines, sines, out);
}

static void kernel_positions(const struct ops_positions *a, const struct batch *batch, int first,
                             int end)
{
    int64_t out_dim = a->kind == POSITION_LRPE_UNITARY ? 2 * a->dim : a->dim;
    for (int r = first; r < end; r++)
        for (int h = 0; h < a->num_heads + a->num_kv_heads; h++)
            position_head(a, r, batch->positions[r], h < a->num_heads ? h : h - a->num_heads,
                          h >= a->num_heads, a->x.data + r * a->x.stride + (int64_t)h * a->dim,
                          a->out.data + r * a->out.stride + h * out_dim);
}

#endif
