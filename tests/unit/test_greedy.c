/* SPDX-License-Identifier: Apache-2.0 */
/* Texts continued by their likeliest tokens: the same tokens as step by step, on the host. */
#include "bench/greedy.h"
#include "engine/ops/logits.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 3, STEPS = 12, PROMPT = 7 };

static struct engine *open_engine(void)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    struct engine_options options = {.threads = 1};
    cr_assert_eq(
        engine_open(&engine, REGLA_SOURCE_DIR "/tests/golden/hybrid_regla", &options, &err), 0,
        "%s", err.message);
    return engine;
}

/* The prompts, of PROMPT - text tokens each, with states that take `tokens` in all. */
static void make_spans(struct engine *engine, struct span spans[TEXTS],
                       int32_t prompts[TEXTS][PROMPT], int tokens)
{
    struct error err = ERROR_INIT;
    for (int text = 0; text < TEXTS; text++) {
        for (int i = 0; i < PROMPT; i++)
            prompts[text][i] = 10 + 31 * text + 7 * i;
        spans[text] = (struct span){.tokens = prompts[text], .num_tokens = PROMPT - text};
        cr_assert_eq(state_create(&spans[text].state, engine, tokens, &err), 0, "%s", err.message);
    }
}

static void free_states(struct span spans[TEXTS])
{
    for (int text = 0; text < TEXTS; text++)
        state_free(spans[text].state);
}

Test(greedy, draws_what_the_host_would)
{
    struct error err = ERROR_INIT;
    struct engine *engine = open_engine();
    struct span spans[TEXTS];
    int32_t prompts[TEXTS][PROMPT], expected[STEPS][TEXTS];
    const size_t vocab_size = (size_t)engine_info(engine)->vocab_size;
    float *logits = calloc(STEPS * TEXTS * vocab_size, sizeof *logits); /* of the host's steps */
    make_spans(engine, spans, prompts, 64);
    for (int step = 0; step < STEPS; step++) {
        for (int text = 0; text < TEXTS; text++) {
            spans[text].num_logits = 1;
            if (step == 0)
                continue;
            spans[text].tokens = &expected[step - 1][text];
            spans[text].num_tokens = 1;
        }
        cr_assert_eq(engine_step(engine, spans, TEXTS, &err), 0, "%s", err.message);
        for (int text = 0; text < TEXTS; text++) {
            expected[step][text] = logits_best(spans[text].logits, (int32_t)vocab_size);
            memcpy(logits + (size_t)(step * TEXTS + text) * vocab_size, spans[text].logits,
                   vocab_size * sizeof *logits);
        }
    }
    free_states(spans);
    struct greedy *greedy;
    cr_assert_eq(greedy_open(&greedy, engine, TEXTS, &err), 0, "%s", err.message);
    for (int steps = 1; steps < STEPS; steps++) {
        double first = -1;
        make_spans(engine, spans, prompts, 64);
        cr_assert_eq(greedy_run(greedy, spans, TEXTS, steps, &first, &err), 0, "%s", err.message);
        cr_expect(first > 0);
        for (int text = 0; text < TEXTS; text++) {
            cr_expect_eq(state_position(spans[text].state), PROMPT - text + steps - 1);
            spans[text].tokens = &expected[steps - 1][text];
            spans[text].num_tokens = spans[text].num_logits = 1;
        }
        /* The state's bits tell what the texts were continued by. */
        cr_assert_eq(engine_step(engine, spans, TEXTS, &err), 0, "%s", err.message);
        for (int text = 0; text < TEXTS; text++)
            cr_expect_arr_eq(spans[text].logits,
                             logits + (size_t)(steps * TEXTS + text) * vocab_size,
                             vocab_size * sizeof *logits, "text %d after %d steps", text, steps);
        free_states(spans);
    }
    greedy_close(greedy);
    engine_close(engine);
    free(logits);
}

Test(greedy, a_step_that_cannot_be_ends_it)
{
    struct error err = ERROR_INIT;
    struct engine *engine = open_engine();
    struct span spans[TEXTS];
    int32_t prompts[TEXTS][PROMPT];
    struct greedy *greedy;
    cr_assert_eq(greedy_open(&greedy, engine, TEXTS, &err), 0, "%s", err.message);
    make_spans(engine, spans, prompts, PROMPT + 3); /* the first text has room for three more */
    cr_expect_eq(greedy_run(greedy, spans, TEXTS, 20, NULL, &err), -1);
    cr_expect_eq(err.code, ERROR_INVALID, "%s", err.message);
    cr_expect_eq(state_position(spans[0].state), PROMPT + 3);
    /* Nothing is under way: the engine takes another. */
    free_states(spans);
    make_spans(engine, spans, prompts, 64);
    error_clear(&err);
    cr_expect_eq(greedy_run(greedy, spans, TEXTS, 4, NULL, &err), 0, "%s", err.message);
    free_states(spans);
    greedy_close(greedy);
    engine_close(engine);
}
