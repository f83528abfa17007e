/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for a test of `regla bench`: filled to their depth once, then taken further any number of
 * times, slice by slice. */
#ifndef BENCH_BENCH_TEXT_H
#define BENCH_BENCH_TEXT_H

#include "bench/bench_plan.h"

struct engine;
struct bench_texts;

/* Reads `depth` tokens of each of `batch` texts. Keys and values are each text's own, as they would
 * be in a server; where there are none, one text's state stands for all. like: NULL, or texts of
 * that engine, depth and batch, which these borrow instead. */
int bench_texts_open(struct bench_texts **out, struct engine *engine,
                     const struct bench_texts *like, int depth, int batch, struct error *err);
void bench_texts_close(struct bench_texts *texts); /* NULL is allowed */

/* Copies of the texts, each with `tokens` to go. */
int bench_texts_begin(struct bench_texts *texts, int tokens, struct error *err);
/* Takes each copy so many of them further; the seconds of the steps alone. A prompt wants the
 * logits after its last token; generating draws the likeliest after each. */
int bench_texts_run(struct bench_texts *texts, bool generates, int tokens, double *seconds,
                    struct error *err);
void bench_texts_end(struct bench_texts *texts); /* drops the copies */

#endif
