/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_text.h"

#include "bench/greedy.h"
#include "engine/engine.h"
#include "lib/base/clock.h"

#include <stdlib.h>

/* A text on its way to `end` tokens, those of a slice. */
struct text {
    struct state *state;
    int64_t at, end;
};

struct bench_texts {
    struct engine *engine;
    int depth, batch;
    struct text *deep; /* [num_deep]: those that are copied; none at depth 0 */
    int num_deep;
    bool borrows_deep;
    struct text *texts; /* [batch] */
    struct span *spans; /* [batch] */
    struct greedy *greedy;
    int32_t *tokens; /* [max_step_tokens] */
    int64_t experts; /* that the last run has read; -1: nobody counts */
};

/* Any id, the same in every run, seldom one of the tokens just before. */
static int32_t token_at(int text, int64_t position, int32_t vocab_size)
{
    uint64_t x = ((uint64_t)text << 40) + (uint64_t)position + 1;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    return (int32_t)(x % (uint64_t)vocab_size);
}

/* One step with as many tokens as there is room for of texts that are not at their ends, the first
 * ones first; with the logits at the ends, if `wanted`. Returns how many tokens, or -1. */
static int step(struct bench_texts *b, struct text *texts, int count, bool wanted,
                struct error *err)
{
    const struct engine_info *info = engine_info(b->engine);
    int num_spans = 0, used = 0;
    for (int i = 0; i < count && used < info->max_step_tokens; i++) {
        struct text *text = &texts[i];
        int64_t left = text->end - text->at;
        int room = info->max_step_tokens - used;
        int n = left < room ? (int)left : room;
        if (n == 0)
            continue;
        for (int j = 0; j < n; j++)
            b->tokens[used + j] = token_at(i, text->at + j, info->vocab_size);
        text->at += n;
        b->spans[num_spans++] = (struct span){
            .state = text->state,
            .tokens = b->tokens + used,
            .num_tokens = n,
            .num_logits = wanted && text->at == text->end,
        };
        used += n;
    }
    if (num_spans > 0 && engine_step(b->engine, b->spans, num_spans, err) != 0)
        return -1;
    return used;
}

static void free_states(struct text *texts, int count)
{
    for (int i = 0; texts != NULL && i < count; i++) {
        state_free(texts[i].state);
        texts[i] = (struct text){0};
    }
}

/* Fills the texts that are copied. */
static int fill(struct bench_texts *b, struct error *err)
{
    for (int i = 0; i < b->num_deep; i++) {
        b->deep[i].end = b->depth;
        if (state_create(&b->deep[i].state, b->engine, b->depth, err) != 0)
            return -1;
    }
    int used;
    do
        used = step(b, b->deep, b->num_deep, false, err);
    while (used > 0);
    return used;
}

int bench_texts_open(struct bench_texts **out, struct engine *engine,
                     const struct bench_texts *like, int depth, int batch, struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    struct bench_texts *b = calloc(1, sizeof *b);
    if (b == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for texts");
    b->engine = engine;
    b->depth = depth;
    b->batch = batch;
    b->num_deep = depth == 0 ? 0 : info->kv_bytes_per_token > 0 ? batch : 1;
    b->borrows_deep = like != NULL;
    b->deep = like != NULL ? like->deep : calloc((size_t)b->num_deep + 1, sizeof *b->deep);
    b->texts = calloc((size_t)batch, sizeof *b->texts);
    b->spans = calloc((size_t)batch, sizeof *b->spans);
    b->tokens = calloc((size_t)info->max_step_tokens, sizeof *b->tokens);
    int result = 0;
    if (b->deep == NULL || b->texts == NULL || b->spans == NULL || b->tokens == NULL)
        result = error_set(err, ERROR_NO_MEMORY, "no memory for %d texts", batch);
    else
        result = greedy_open(&b->greedy, engine, batch, err);
    if (result == 0 && like == NULL)
        result = fill(b, err);
    if (result == 0)
        *out = b;
    else
        bench_texts_close(b);
    return result;
}

void bench_texts_close(struct bench_texts *b)
{
    if (b == NULL)
        return;
    bench_texts_end(b);
    if (!b->borrows_deep) {
        free_states(b->deep, b->num_deep);
        free(b->deep);
    }
    greedy_close(b->greedy);
    free(b->texts);
    free(b->spans);
    free(b->tokens);
    free(b);
}

int bench_texts_begin(struct bench_texts *b, int tokens, struct error *err)
{
    int64_t reserved = (int64_t)b->depth + tokens;
    for (int i = 0; i < b->batch; i++) {
        struct text *text = &b->texts[i];
        *text = (struct text){.at = b->depth, .end = b->depth};
        int result = b->num_deep == 0
                         ? state_create(&text->state, b->engine, reserved, err)
                         : state_clone(&text->state, b->deep[i % b->num_deep].state, reserved, err);
        if (result != 0)
            return -1;
    }
    return 0;
}

/* A token of each text that is given, then what was drawn. */
static int generate(struct bench_texts *b, int tokens, struct error *err)
{
    const int32_t vocab_size = engine_info(b->engine)->vocab_size;
    for (int i = 0; i < b->batch; i++) {
        struct text *text = &b->texts[i];
        b->tokens[i] = token_at(i, text->at, vocab_size);
        b->spans[i] = (struct span){.state = text->state, .tokens = &b->tokens[i], .num_tokens = 1};
        text->at = text->end;
    }
    return greedy_run(b->greedy, b->spans, b->batch, tokens, NULL, err);
}

static int process(struct bench_texts *b, struct error *err)
{
    int used;
    do
        used = step(b, b->texts, b->batch, true, err);
    while (used > 0);
    return used;
}

int bench_texts_run(struct bench_texts *b, bool generates, int tokens, double *seconds,
                    struct error *err)
{
    for (int i = 0; i < b->batch; i++)
        b->texts[i].end += tokens;
    const int64_t before = engine_experts_read(b->engine);
    double start = clock_seconds();
    int result = generates ? generate(b, tokens, err) : process(b, err);
    *seconds = clock_seconds() - start;
    b->experts = before < 0 ? -1 : engine_experts_read(b->engine) - before;
    return result;
}

struct cost bench_texts_cost(const struct bench_texts *b, const struct bench_case *run)
{
    const struct program *program = engine_program(b->engine);
    const int all = cost_experts(program);
    struct cost_texts texts = bench_case_texts(run);
    if (run->generates && all > 0 && b->experts >= 0) /* a step makes a token of each text */
        texts.experts = (double)b->experts / all / run->tokens;
    return cost_of(program, &texts);
}

void bench_texts_end(struct bench_texts *b)
{
    free_states(b->texts, b->batch);
}
