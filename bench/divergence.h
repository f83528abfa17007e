/* SPDX-License-Identifier: Apache-2.0 */
/* How far a model's predictions are from those of a reference: the Kullback-Leibler divergence of
 * distributions of the next token, and how often the likeliest token is the same. */
#ifndef BENCH_DIVERGENCE_H
#define BENCH_DIVERGENCE_H

#include "lib/base/error.h"

#include <stddef.h>
#include <stdint.h>

/* The sum over all tokens of p (log p - log q), in nats; p and q: the distributions of two rows of
 * logits [vocab_size]. At least 0; infinite where q makes something impossible that p does not; NaN
 * if a logit is. All sums are in double. */
double divergence_of(const float *p_logits, const float *q_logits, int32_t vocab_size);

/* Those of many positions. Zero-initialise; divergences_clear frees. */
struct divergences {
    double *items; /* [count]: nats */
    size_t count, capacity, same_best;
};

/* Adds that of a position. ERROR_INTERNAL: a logit is NaN. */
int divergences_add(struct divergences *divergences, const float *p_logits, const float *q_logits,
                    int32_t vocab_size, struct error *err);
void divergences_clear(struct divergences *divergences);

struct divergence_summary {
    double mean, p99, worst; /* nats */
    double same_best;        /* the share of positions with the same likeliest token */
};

/* Of at least one position. Sorts the items. */
struct divergence_summary divergences_summary(struct divergences *divergences);

#endif
