/* SPDX-License-Identifier: Apache-2.0 */
#include "loadtest/builds/side.h"

#include "engine/engine.h"

/* builds.py says where a tree from before 0.2.0 has it. */
#ifndef BENCH_TEXT_H
#define BENCH_TEXT_H "bench/bench_text.h"
#endif
#include BENCH_TEXT_H

#include <stdio.h>

/* Before those that count. */
enum { WAKING_TOKENS = 2 };

static struct {
    struct engine *engine;
    struct bench_texts *texts;
    int generates;
} side;

side_open_function side_open;
side_run_function side_run;
side_measure_function side_measure;
side_close_function side_close;

static int open_texts(const struct side_test *test, struct error *err)
{
    struct engine_options options = {.max_step_logits = test->texts};
    if (!weight_format_find(test->weights, &options.weights))
        return error_set(err, ERROR_INVALID, "weights: unknown format %s", test->weights);
    if (!kv_format_find(test->kv, &options.kv))
        return error_set(err, ERROR_INVALID, "kv: unknown format %s", test->kv);
    if (!activation_format_find(test->activations, &options.activations))
        return error_set(err, ERROR_INVALID, "activations: unknown format %s", test->activations);
    if (engine_open_preset(&side.engine, test->preset, &options, err) != 0)
        return -1;
    side.generates = test->generates;
    return bench_texts_open(&side.texts, side.engine, NULL, test->depth, test->texts, err);
}

static int run_texts(int tokens, double *seconds, struct error *err)
{
    int waking = side.generates ? WAKING_TOKENS : 0;
    int result = bench_texts_begin(side.texts, waking + tokens, err);
    if (result == 0 && waking > 0)
        result = bench_texts_run(side.texts, true, waking, seconds, err);
    if (result == 0)
        result = bench_texts_run(side.texts, side.generates, tokens, seconds, err);
    bench_texts_end(side.texts);
    return result;
}

static int tell(int result, const struct error *err, char message[SIDE_MESSAGE])
{
    if (result != 0)
        snprintf(message, SIDE_MESSAGE, "%s", err->message);
    return result;
}

int side_open(const struct side_test *test, char message[SIDE_MESSAGE])
{
    struct error err = ERROR_INIT;
    return tell(open_texts(test, &err), &err, message);
}

int side_run(int tokens, double *seconds, char message[SIDE_MESSAGE])
{
    struct error err = ERROR_INIT;
    return tell(run_texts(tokens, seconds, &err), &err, message);
}

int side_measure(double *bandwidth, char message[SIDE_MESSAGE])
{
    struct error err = ERROR_INIT;
    double operations;
    return tell(engine_measure(side.engine, bandwidth, &operations, &err), &err, message);
}

void side_close(void)
{
    bench_texts_close(side.texts);
    if (side.engine != NULL)
        engine_close(side.engine);
    side.texts = NULL;
    side.engine = NULL;
}
