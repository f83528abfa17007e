/* Texts for tests of `regla bench`: filled to their depth once, then taken further any number of
 * times. */
#ifndef SERVER_BENCH_TEXT_H
#define SERVER_BENCH_TEXT_H

#include "server/bench_plan.h"

struct engine;
struct bench_texts;

/* Reads `depth` tokens of each of `batch` texts. Keys and values are each text's own, as they would
 * be in a server; where there are none, one text's state stands for all. */
int bench_texts_open(struct bench_texts **out, struct engine *engine, int depth, int batch,
                     struct error *err);
void bench_texts_close(struct bench_texts *texts); /* NULL is allowed */

/* Does a test of that depth and batch on copies of the texts; the seconds of its steps alone. */
int bench_texts_run(struct bench_texts *texts, const struct bench_case *test, double *seconds,
                    struct error *err);

#endif
