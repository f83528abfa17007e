/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for a test of `regla bench`. They are filled to their depth once; then copies of them are
 * advanced any number of times, slice by slice. */
#ifndef BENCH_BENCH_TEXT_H
#define BENCH_BENCH_TEXT_H

#include "bench/bench_plan.h"

struct engine;
struct bench_texts;

/* Reads `depth` tokens of each of `batch` texts. Each text has its own keys and values, as in a
 * server; without any, one state serves for all texts. like: NULL, or texts of the same engine,
 * depth and batch, which these borrow instead of reading. */
int bench_texts_open(struct bench_texts **out, struct engine *engine,
                     const struct bench_texts *like, int depth, int batch, struct error *err);
void bench_texts_close(struct bench_texts *texts); /* NULL is allowed */

/* Makes copies of the texts, with room for `tokens` more tokens each. */
int bench_texts_begin(struct bench_texts *texts, int tokens, struct error *err);
/* Advances each copy by `tokens`. *seconds: the time of the steps alone. A prompt gets the logits
 * after its last token; generating draws the likeliest token after each. */
int bench_texts_run(struct bench_texts *texts, bool generates, int tokens, double *seconds,
                    struct error *err);
/* What that has cost, whose case was `run`. Generating, those experts count that the device has
 * counted, else as many as if chosen at random. */
struct cost bench_texts_cost(const struct bench_texts *texts, const struct bench_case *run);
void bench_texts_end(struct bench_texts *texts); /* drops the copies */

#endif
