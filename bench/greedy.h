/* SPDX-License-Identifier: Apache-2.0 */
/* Generates the likeliest tokens of texts as fast as the engine can, for `regla bench` and `regla
 * study`. Drawn tokens stay on the device. Where steps overlap (engine_submit), two are under
 * way. */
#ifndef BENCH_GREEDY_H
#define BENCH_GREEDY_H

#include "engine/engine.h"

struct greedy;

/* Prepares for at most `count` texts. The caller frees *out with greedy_close. */
int greedy_open(struct greedy **out, struct engine *engine, int count, struct error *err);
void greedy_close(struct greedy *greedy); /* NULL is allowed */

/* Runs steps >= 1 steps of all texts. The first step takes spans [count] (it reads state, tokens
 * and num_tokens only); each later one takes of every text the token that the step before drew. The
 * last drawn token is not fed. *first_s: seconds until the first token was drawn; may be NULL. */
int greedy_run(struct greedy *greedy, const struct span *spans, int count, int64_t steps,
               double *first_s, struct error *err);

#endif
