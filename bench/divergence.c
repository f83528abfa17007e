/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/divergence.h"

#include "bench/statistics.h"
#include "engine/ops/logits.h"
#include "lib/text/buffer.h"

#include <math.h>
#include <stdlib.h>

/* What a logit is less to be its token's log-probability. logits_weights leaves out what is below
 * e^-87 of the largest, which double would hardly notice. */
static double log_total(const float *logits, int32_t vocab_size)
{
    float max = logits_max(logits, vocab_size);
    return isnan(max) ? NAN : (double)max + log(logits_weights(logits, vocab_size, max, 1, NULL));
}

double divergence_of(const float *p_logits, const float *q_logits, int32_t vocab_size)
{
    double p_total = log_total(p_logits, vocab_size), q_total = log_total(q_logits, vocab_size);
    double sum = 0;
    if (isnan(p_total) || isnan(q_total))
        return NAN;
    for (int32_t i = 0; i < vocab_size; i++) {
        double p = (double)p_logits[i] - p_total, q = (double)q_logits[i] - q_total;
        if (p != -INFINITY) /* what p makes impossible counts for nothing */
            sum += exp(p) * (p - q);
    }
    return sum < 0 ? 0 : sum; /* of distributions that are nearly the same, by rounding */
}

int divergences_add(struct divergences *d, const float *p_logits, const float *q_logits,
                    int32_t vocab_size, struct error *err)
{
    double nats = divergence_of(p_logits, q_logits, vocab_size);
    if (isnan(nats))
        return error_set(err, ERROR_INTERNAL,
                         "position %zu: expected logits that are numbers, got NaN", d->count + 1);
    if (array_grow((void **)&d->items, &d->capacity, d->count + 1, sizeof *d->items, err) != 0)
        return -1;
    d->items[d->count++] = nats;
    d->same_best += logits_best(p_logits, vocab_size) == logits_best(q_logits, vocab_size);
    return 0;
}

void divergences_clear(struct divergences *d)
{
    free(d->items);
    *d = (struct divergences){0};
}

struct divergence_summary divergences_summary(struct divergences *d)
{
    double sum = 0;
    for (size_t i = 0; i < d->count; i++)
        sum += d->items[i];
    statistics_median(d->items, d->count); /* sorts */
    return (struct divergence_summary){.mean = sum / (double)d->count,
                                       .p99 = statistics_quantile(d->items, d->count, 0.99),
                                       .worst = d->items[d->count - 1],
                                       .same_best = (double)d->same_best / (double)d->count};
}
