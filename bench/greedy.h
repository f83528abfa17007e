/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that go on by their likeliest tokens, as fast as the engine can: `regla bench` and `regla
 * study`. What is drawn stays where it is drawn, and where steps overlap (engine_submit) two are
 * under way. */
#ifndef BENCH_GREEDY_H
#define BENCH_GREEDY_H

#include "engine/engine.h"

struct greedy;

/* For at most `count` texts. The caller frees *out with greedy_close. */
int greedy_open(struct greedy **out, struct engine *engine, int count, struct error *err);
void greedy_close(struct greedy *greedy); /* NULL is allowed */

/* Steps of all texts: the first takes spans [count] (state, tokens, num_tokens; the rest is not
 * read), each later one of every text the token that the one before it drew. steps >= 1; one token
 * more is drawn than fed. *first_s: seconds until the first was drawn; may be NULL. */
int greedy_run(struct greedy *greedy, const struct span *spans, int count, int64_t steps,
               double *first_s, struct error *err);

#endif
