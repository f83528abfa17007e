/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds a matrix to q4 so that what it multiplies changes least: each number makes up for the
 * errors of those that were rounded before it.
 *
 * With H the sum of x xᵀ over the inputs of some text, a row w that becomes q errs there by
 * (w - q) H (w - q)ᵀ. With H = L Lᵀ that is a sum over the inputs k of
 *   (sum over j >= k of (w_j - q_j) L_jk)²
 * so from the last input to the first each q_k is the nearest to
 *   w_k + sum over j > k of (w_j - q_j) L_jk / L_kk
 * and its error counts L_kk². That is GPTQ (Frantar et al. 2023, https://arxiv.org/abs/2210.17323)
 * in the order in which it needs no inverse, with a scale and a minimum for each block that are
 * searched when its turn comes. Then each row is refined (refining.h). */
#ifndef ENGINE_QUANTIZE_ROUNDING_H
#define ENGINE_QUANTIZE_ROUNDING_H

#include "engine/ops/packing.h"
#include "lib/base/threads.h"

/* Sums of x xᵀ, of which only the lower triangle is read, become L (rows of f32 [n, n]) of them
 * over the mean of their diagonal, plus a hundredth on the diagonal. Where they are all zero L
 * is 1. ERROR_INVALID: one is not finite. */
int rounding_factor(float *sums, int64_t n, struct threads *threads, struct error *err);

/* Takes the block of a row's 32 inputs from k on. Called by several threads at once, for different
 * rows. */
struct rounding_taker {
    void *context;
    void (*take)(void *context, int64_t row, int64_t k, const struct quantized_integers *block);
};

/* Rounds a matrix, whose rows are whole blocks of 32. ERROR_INVALID: a number is too large for q4;
 * ERROR_NO_MEMORY. */
int rounding_run(const struct matrix *matrix, const float *factor, struct threads *threads,
                 const struct rounding_taker *taker, struct error *err);

#endif
