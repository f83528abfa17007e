/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how fast two open engines read prompts and generate, in turns, for `regla compare`: when
 * the machine changes its pace, it does so for both. */
#ifndef BENCH_BENCH_PAIR_H
#define BENCH_BENCH_PAIR_H

#include "engine/engine.h"

/* The medians of the runs, in tokens per second; 0: not measured. */
struct bench_pair {
    double prompt, generation;
};

/* Of engine i into out[i]. A prompt of `pp` tokens is read up to its last one's logits, and `tg`
 * tokens are generated; 0: not. Each runs once to warm up and then `repeat` >= 1 times. */
int bench_pair_run(struct bench_pair out[2], struct engine *const engines[2], int pp, int tg,
                   int repeat, struct error *err);

#endif
