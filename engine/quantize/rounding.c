/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/quantize/rounding.h"

#include "engine/quantize/cholesky.h"
#include "engine/quantize/refining.h"
#include "lib/base/half.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

int rounding_factor(float *sums, int64_t n, struct threads *threads, struct error *err)
{
    double *factor = calloc((size_t)n * (size_t)n, sizeof *factor), mean = 0.0;
    if (factor == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a factor of %lld inputs",
                         (long long)n);
    for (int64_t i = 0; i < n; i++)
        mean += (double)sums[i * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++)
            factor[i * n + j] = mean > 0.0 ? (double)sums[i * n + j] / mean : 0.0;
        factor[i * n + i] += mean > 0.0 ? 0.01 : 1.0;
    }
    bool finite = true;
    for (int64_t i = 0; i < n * n; i++)
        finite = finite && isfinite(factor[i]);
    const bool factored = finite && cholesky_factor(factor, n, threads);
    for (int64_t i = 0; factored && i < n * n; i++)
        sums[i] = (float)factor[i];
    free(factor);
    if (factored)
        return 0;
    return error_set(err, ERROR_INVALID,
                     finite ? "expected sums of x xᵀ, got some that are not positive definite"
                            : "expected finite inputs, got some that are not");
}

/* What a thread works in. */
struct room {
    float *weights;                    /* [n] */
    float *errors;                     /* [n] of those that are rounded already, */
    float *scratch;                    /* at the same place [4 n] for what follows */
    struct quantized_integers *blocks; /* [n / 32] */
};

struct rounding {
    const struct matrix *matrix;
    struct refining refining;
    const struct rounding_taker *taker;
    const struct room *rooms; /* [threads] */
    atomic_bool *too_large;
};

/* sums[c] = sum over j >= from of errors[j] L[j][k + c] */
static void carry(const struct rounding *r, const float *errors, int64_t from, int64_t k,
                  float sums[PACKING_BLOCK])
{
    memset(sums, 0, PACKING_BLOCK * sizeof *sums);
    const int64_t n = r->refining.n;
    for (int64_t j = from; j < n; j++) {
        const float *row = r->refining.factor + j * n + k, error = errors[j];
        for (int c = 0; c < PACKING_BLOCK; c++)
            sums[c] += error * row[c];
    }
}

/* A block whose turn it is, of one row, and what is tried for it. */
struct turn {
    const float *weights; /* [32] */
    const float *factor;  /* L of its inputs: row c begins at factor + c * stride */
    int64_t stride;
    const float *carried;                            /* [32]: the sums of the errors behind it */
    float exact[PACKING_BLOCK], ones[PACKING_BLOCK]; /* carried + the weights Lᵀ, and 1 Lᵀ */
    double least;                                    /* error so far */
    struct quantized_integers best;
};

/* out_c = sum over j >= c of x_j L_jc */
static void through_factor(const struct turn *t, const float *x, float out[PACKING_BLOCK])
{
    memset(out, 0, PACKING_BLOCK * sizeof *out);
    for (int j = 0; j < PACKING_BLOCK; j++)
        for (int c = 0; c <= j; c++)
            out[c] += x[j] * t->factor[j * t->stride + c];
}

/* Rounds the block with a scale and a minimum, from its last number to its first. Returns the error
 * that it adds. */
static double round_block(const struct turn *t, struct quantized_integers *block)
{
    const float scale = f16_to_f32(block->scale), minimum = f16_to_f32(block->minimum);
    float sums[PACKING_BLOCK];
    double error = 0.0;
    memcpy(sums, t->carried, sizeof sums);
    for (int c = PACKING_BLOCK - 1; c >= 0; c--) {
        const float *row = t->factor + c * t->stride;
        const float wanted = t->weights[c] + sums[c] / row[c];
        const float quant = scale > 0.0f ? rintf((wanted - minimum) / scale) : 0.0f;
        block->quants[c] = (int8_t)(int)fminf(fmaxf(quant, 0.0f), 15.0f);
        const float value = packing_quant_value(PACKING_FOUR_BITS, block, c);
        const double left = (double)(wanted - value) * (double)row[c];
        error += left * left;
        for (int b = 0; b < c; b++)
            sums[b] += (t->weights[c] - value) * row[b];
    }
    return error;
}

/* The scale and the minimum with which the quants err least. False: there are none. */
static bool refit(const struct turn *t, const struct quantized_integers *block, float *scale,
                  float *minimum)
{
    float quants[PACKING_BLOCK], through[PACKING_BLOCK];
    double qq = 0.0, qo = 0.0, oo = 0.0, qx = 0.0, ox = 0.0;
    for (int c = 0; c < PACKING_BLOCK; c++)
        quants[c] = (float)block->quants[c];
    through_factor(t, quants, through);
    for (int c = 0; c < PACKING_BLOCK; c++) {
        const double q = (double)through[c], o = (double)t->ones[c], x = (double)t->exact[c];
        qq += q * q;
        qo += q * o;
        oo += o * o;
        qx += q * x;
        ox += o * x;
    }
    const double spread = qq * oo - qo * qo;
    *scale = (float)((qx * oo - ox * qo) / spread);
    *minimum = (float)((ox * qq - qx * qo) / spread);
    return spread > 0.0;
}

/* Tries a scale and a minimum, then those that its quants want, some times. */
static void descend(struct turn *t, float scale, float minimum)
{
    enum { STEPS = 2 };
    for (int step = 0; step < STEPS; step++) {
        struct quantized_integers block = {.scale = f32_to_f16(scale),
                                           .minimum = f32_to_f16(minimum)};
        if (!(f16_to_f32(block.scale) >= 0.0f) || !isfinite(f16_to_f32(block.scale)) ||
            !isfinite(f16_to_f32(block.minimum)))
            return;
        const double error = round_block(t, &block);
        if (error < t->least) {
            t->least = error;
            t->best = block;
        }
        if (!refit(t, &block, &scale, &minimum))
            return;
    }
}

/* Begins with ranges around that of what the numbers are wanted to be now. False: nothing fits f16.
 */
static bool search(struct turn *t)
{
    static const float ones[PACKING_BLOCK] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float lowest = INFINITY, highest = -INFINITY;
    through_factor(t, t->weights, t->exact);
    through_factor(t, ones, t->ones);
    for (int c = 0; c < PACKING_BLOCK; c++) {
        const float wanted = t->weights[c] + t->carried[c] / t->factor[c * t->stride + c];
        t->exact[c] += t->carried[c];
        lowest = fminf(lowest, wanted);
        highest = fmaxf(highest, wanted);
    }
    t->least = INFINITY;
    if (!isfinite(f16_to_f32(f32_to_f16((highest - lowest) / 15.0f))) ||
        !isfinite(f16_to_f32(f32_to_f16(lowest))))
        return false;
    for (int i = 0; i < PACKING_Q4_STARTS; i++) {
        float scale, minimum;
        packing_q4_start(i, lowest, highest, &scale, &minimum);
        descend(t, scale, minimum);
    }
    return t->least < INFINITY;
}

/* One row: its blocks from the last to the first, then once more with all of them there. */
static void round_row(const struct rounding *r, int64_t row, const struct room *room)
{
    const int64_t n = r->refining.n;
    for (int64_t k = n - PACKING_BLOCK; k >= 0; k -= PACKING_BLOCK) {
        float sums[PACKING_BLOCK];
        struct turn turn = {.weights = room->weights + k,
                            .factor = r->refining.factor + k * n + k,
                            .stride = n,
                            .carried = sums};
        carry(r, room->errors, k + PACKING_BLOCK, k, sums);
        if (!search(&turn)) {
            atomic_store_explicit(r->too_large, true, memory_order_relaxed);
            return;
        }
        room->blocks[k / PACKING_BLOCK] = turn.best;
        for (int c = 0; c < PACKING_BLOCK; c++)
            room->errors[k + c] =
                room->weights[k + c] - packing_quant_value(PACKING_FOUR_BITS, &turn.best, c);
    }
    refining_run(&r->refining, room->weights, room->blocks, room->scratch);
    for (int64_t k = 0; k < n; k += PACKING_BLOCK)
        r->taker->take(r->taker->context, row, k, &room->blocks[k / PACKING_BLOCK]);
}

static void round_task(void *context, int task, int thread)
{
    const struct rounding *r = context;
    const struct room *room = &r->rooms[thread];
    for (int64_t k = 0; k < r->refining.n; k += PACKING_BLOCK) {
        float numbers[1][PACKING_BLOCK];
        packing_rows(r->matrix, task, 1, k, PACKING_BLOCK, numbers);
        memcpy(room->weights + k, numbers[0], sizeof numbers[0]);
    }
    round_row(r, task, room);
}

static int open_rooms(struct room *rooms, int count, int64_t n, struct error *err)
{
    for (int i = 0; i < count; i++) {
        rooms[i].weights = calloc((size_t)n * 5, sizeof(float));
        rooms[i].scratch = rooms[i].weights != NULL ? rooms[i].weights + n : NULL;
        rooms[i].errors = rooms[i].scratch;
        rooms[i].blocks = calloc((size_t)n / PACKING_BLOCK, sizeof *rooms[i].blocks);
        if (rooms[i].weights == NULL || rooms[i].blocks == NULL)
            return error_set(err, ERROR_NO_MEMORY, "no memory for a row of %lld inputs",
                             (long long)n);
    }
    return 0;
}

/* Of H, from L. */
static void fill_diagonal(const float *factor, int64_t n, float *diagonal)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j <= i; j++)
            sum += (double)factor[i * n + j] * (double)factor[i * n + j];
        diagonal[i] = (float)sum;
    }
}

int rounding_run(const struct matrix *matrix, const float *factor, struct threads *threads,
                 const struct rounding_taker *taker, struct error *err)
{
    const int64_t n = matrix->cols;
    const int count = threads_count(threads);
    atomic_bool too_large = false;
    struct room *rooms = calloc((size_t)count, sizeof *rooms);
    float *diagonal = calloc((size_t)n, sizeof *diagonal);
    struct rounding r = {matrix, {n, factor, diagonal}, taker, rooms, &too_large};
    int result =
        rooms == NULL || diagonal == NULL
            ? error_set(err, ERROR_NO_MEMORY, "no memory for rows of %lld inputs", (long long)n)
            : open_rooms(rooms, count, n, err);
    if (result == 0) {
        fill_diagonal(factor, n, diagonal);
        threads_run(threads, round_task, &r, (int)matrix->rows);
    }
    for (int i = 0; rooms != NULL && i < count; i++) {
        free(rooms[i].weights);
        free(rooms[i].blocks);
    }
    free(rooms);
    free(diagonal);
    return result == 0 && too_large
               ? packing_too_large(matrix, matrix->rows, PACKING_FOUR_BITS, err)
               : result;
}
