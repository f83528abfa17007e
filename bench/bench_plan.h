/* SPDX-License-Identifier: Apache-2.0 */
/* Plans what `regla bench` measures: parses its comma-separated lists and makes every combination
 * of them, in order. Pure functions. */
#ifndef BENCH_BENCH_PLAN_H
#define BENCH_BENCH_PLAN_H

#include "engine/cost.h"
#include "engine/ops/formats.h"
#include "lib/base/error.h"

/* The lists as typed. None is NULL. */
struct bench_lists {
    const char *pp, *tg; /* numbers of tokens per text; 0: no such test */
    const char *depth, *batch, *weights, *kv, *activations, *products, *threads;
};

/* A test: reads or generates `tokens` tokens of each of `batch` texts, which have `depth` tokens
 * already. */
struct bench_case {
    const char *preset; /* NULL: the model of bench_options; borrowed */
    enum weight_format weights;
    enum kv_format kv;
    enum activation_format activations;
    enum products products;
    int threads; /* 0: as many as this process may use */
    bool generates;
    int tokens, depth, batch;
};

struct bench_plan {
    struct bench_case *cases; /* [count] */
    int count;                /* >= 1 */
};

/* ERROR_INVALID: names the list, the item, expected and got. The caller clears the plan. */
int bench_plan_make(struct bench_plan *plan, const struct bench_lists *lists, struct error *err);
void bench_plan_clear(struct bench_plan *plan);

/* Reads WEIGHTS/ACTIVATIONS/KV, as "q8/8bit/f16", into the formats of a test. What is empty or left
 * out is auto. ERROR_INVALID: names the part, expected and got. */
int bench_formats_read(struct bench_case *test, const char *text, struct error *err);
/* "q8/8bit/f16" */
enum { BENCH_FORMATS_SIZE = 24 };
void bench_formats_name(const struct bench_case *test, char name[BENCH_FORMATS_SIZE]);

/* What cost_of asks of a test. */
struct cost_texts bench_case_texts(const struct bench_case *test);

/* "pp512", "tg64@8000" */
void bench_case_name(const struct bench_case *test, char name[48]);

#endif
