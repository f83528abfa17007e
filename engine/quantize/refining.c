/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/quantize/refining.h"

#include "engine/ops/packing.h"
#include "lib/base/half.h"

#include <math.h>
#include <string.h>

enum { PASSES = 2, LANES = 8 };

/* A row in hand: e, and e L. */
struct row {
    const struct refining *r;
    const float *weights;
    float *errors, *through; /* [n] each */
    float *quants, *ones;    /* [n] each: of a block, through L */
};

/* In lanes, so that compilers make vector loops. */
static float dot(const float *a, const float *b, int64_t n)
{
    float lanes[LANES] = {0}, sum = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (int j = 0; j < LANES; j++)
        sum += lanes[j];
    return sum;
}

static void add(float *to, float factor, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

static const float *factor_row(const struct row *row, int64_t j)
{
    return row->r->factor + j * row->r->n;
}

/* The error of input j becomes `error`. */
static void set_error(const struct row *row, int64_t j, float error)
{
    add(row->through, error - row->errors[j], factor_row(row, j), j + 1);
    row->errors[j] = error;
}

/* The block's numbers from its scale and minimum. */
static void set_errors(const struct row *row, int64_t k, const struct quantized_integers *block)
{
    for (int c = 0; c < PACKING_BLOCK; c++)
        set_error(row, k + c,
                  row->weights[k + c] - packing_quant_value(PACKING_FOUR_BITS, block, c));
}

/* The scale and the minimum. Where f16's nearest are not better, those before come back. */
static void refit(const struct row *row, int64_t k, struct quantized_integers *block)
{
    const int64_t n = k + PACKING_BLOCK;
    memset(row->quants, 0, (size_t)n * sizeof(float));
    memset(row->ones, 0, (size_t)n * sizeof(float));
    for (int c = 0; c < PACKING_BLOCK; c++) {
        add(row->quants, (float)block->quants[c], factor_row(row, k + c), k + c + 1);
        add(row->ones, 1.0f, factor_row(row, k + c), k + c + 1);
    }
    const double qq = (double)dot(row->quants, row->quants, n);
    const double qo = (double)dot(row->quants, row->ones, n);
    const double oo = (double)dot(row->ones, row->ones, n);
    const double qu = (double)dot(row->quants, row->through, n);
    const double ou = (double)dot(row->ones, row->through, n);
    const double spread = qq * oo - qo * qo;
    if (!(spread > 1e-6 * qq * oo))
        return;
    struct quantized_integers changed = *block;
    const double before_scale = (double)f16_to_f32(block->scale);
    const double before_minimum = (double)f16_to_f32(block->minimum);
    changed.scale = f32_to_f16((float)(before_scale + (qu * oo - ou * qo) / spread));
    changed.minimum = f32_to_f16((float)(before_minimum + (ou * qq - qu * qo) / spread));
    const double s = (double)f16_to_f32(changed.scale) - before_scale;
    const double m = (double)f16_to_f32(changed.minimum) - before_minimum;
    const double change = s * s * qq + 2 * s * m * qo + m * m * oo - 2 * (s * qu + m * ou);
    if (!(change < 0.0) || !(f16_to_f32(changed.scale) > 0.0f)) /* not NaN either */
        return;
    *block = changed;
    set_errors(row, k, block);
}

static void requant(const struct row *row, int64_t k, struct quantized_integers *block)
{
    const float scale = f16_to_f32(block->scale), minimum = f16_to_f32(block->minimum);
    if (!(scale > 0.0f))
        return;
    for (int c = PACKING_BLOCK - 1; c >= 0; c--) {
        const int64_t j = k + c;
        const float slope = dot(row->through, factor_row(row, j), j + 1);
        const float wanted = row->weights[j] - row->errors[j] + slope / row->r->diagonal[j];
        const float quant = fminf(fmaxf(rintf((wanted - minimum) / scale), 0.0f), 15.0f);
        if ((int)quant == block->quants[c])
            continue;
        block->quants[c] = (int8_t)(int)quant;
        set_error(row, j, row->weights[j] - packing_quant_value(PACKING_FOUR_BITS, block, c));
    }
}

void refining_run(const struct refining *r, const float *weights, struct quantized_integers *blocks,
                  float *scratch)
{
    const struct row row = {
        r, weights, scratch, scratch + r->n, scratch + 2 * r->n, scratch + 3 * r->n};
    memset(scratch, 0, 2 * (size_t)r->n * sizeof *scratch);
    for (int64_t k = 0; k < r->n; k += PACKING_BLOCK)
        set_errors(&row, k, &blocks[k / PACKING_BLOCK]);
    for (int pass = 0; pass < PASSES; pass++)
        for (int64_t k = r->n - PACKING_BLOCK; k >= 0; k -= PACKING_BLOCK) {
            refit(&row, k, &blocks[k / PACKING_BLOCK]);
            requant(&row, k, &blocks[k / PACKING_BLOCK]);
        }
}
