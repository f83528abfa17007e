/* SPDX-License-Identifier: Apache-2.0 */
/* Draws of a step: the tokens that its logits would have given, beside spans that want logits. */
#include "engine/engine.h"
#include "engine/ops/sampler.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <string.h>

enum { TEXTS = 5, STEPS = 6, ROOM = 40 };

static const int32_t prompt[] = {9, 8, 7, 6, 5};

/* Of every kind that a sampler has. */
static const struct sampling settings[TEXTS] = {
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 3},
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1.3f, .presence_penalty = 1},
    {.temperature = 1.5f, .top_p = 0.8f, .top_k = 20, .repetition_penalty = 1, .seed = 4},
    {.temperature = 1, .top_p = 1, .min_p = 0.02f, .repetition_penalty = 1, .frequency_penalty = 2},
};

static struct engine *open_engine(int threads)
{
    const struct engine_options options = {.threads = threads,
                                           .share_always = true,
                                           .state_memory_bytes = (size_t)8 << 20,
                                           .max_step_tokens = 32,
                                           .max_step_logits = 8};
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(engine_open(&engine, GOLDEN_DIRECTORY "hybrid_regla", &options, &err) == 0, "%s",
              err.message);
    return engine;
}

static struct state *new_state(struct engine *engine)
{
    struct state *state;
    cr_assert(state_create(&state, engine, ROOM, NULL) == 0);
    return state;
}

static struct draw new_draw(const struct engine *engine, int text)
{
    struct draw draw = {.wants_logprob = text != 1, .num_top = text % 3};
    cr_assert(sampler_create(&draw.sampler, &settings[text], engine_info(engine)->vocab_size,
                             prompt, 5, NULL) == 0);
    return draw;
}

static void expect_equal(const struct draw *a, const struct draw *b, int text, int step)
{
    cr_expect(a->id == b->id && a->id >= 0, "text %d, step %d: %d, %d", text, step, a->id, b->id);
    cr_expect(!a->wants_logprob || a->logprob == b->logprob, "text %d, step %d", text, step);
    cr_expect(memcmp(a->top, b->top, (size_t)a->num_top * sizeof *a->top) == 0, "text %d, step %d",
              text, step);
}

/* Texts whose spans draw, in one engine, whose threads share them; the same in another, whose spans
 * want logits. Between them come, in every step, one that wants the logits of its last two tokens
 * and one that wants none. */
Test(draws, are_those_of_the_logits_whatever_shares_the_step)
{
    struct engine *engines[2] = {open_engine(3), open_engine(1)};
    size_t vocab = (size_t)engine_info(engines[0])->vocab_size;
    struct state *states[2][TEXTS + 2];
    struct draw draws[2][TEXTS];
    int32_t tokens[TEXTS];
    for (int e = 0; e < 2; e++)
        for (int t = 0; t < TEXTS + 2; t++) {
            states[e][t] = new_state(engines[e]);
            if (t < TEXTS)
                draws[e][t] = new_draw(engines[e], t);
        }
    for (int step = 0; step < STEPS; step++) {
        struct span spans[2][TEXTS + 2];
        for (int e = 0; e < 2; e++) {
            for (int t = 0; t < TEXTS; t++) {
                struct span *span = &spans[e][t < 3 ? t : t + 2];
                *span = (struct span){.state = states[e][t],
                                      .tokens = step == 0 ? prompt : &tokens[t],
                                      .num_tokens = step == 0 ? t + 1 : 1};
                if (e == 0)
                    span->draw = &draws[e][t];
                else
                    span->num_logits = 1;
            }
            spans[e][3] = (struct span){
                .state = states[e][TEXTS], .tokens = prompt, .num_tokens = 3, .num_logits = 2};
            spans[e][4] =
                (struct span){.state = states[e][TEXTS + 1], .tokens = prompt, .num_tokens = 2};
            cr_assert(engine_step(engines[e], spans[e], TEXTS + 2, NULL) == 0);
        }
        cr_expect(memcmp(spans[0][3].logits, spans[1][3].logits, 2 * vocab * sizeof(float)) == 0);
        for (int t = 0; t < TEXTS; t++) {
            int at = t < 3 ? t : t + 2;
            sampler_draw(&draws[1][t], spans[1][at].logits);
            expect_equal(&draws[0][t], &draws[1][t], t, step);
            cr_expect(spans[0][at].logits == NULL);
            cr_expect(state_position(states[0][t]) == state_position(states[1][t]));
            tokens[t] = draws[0][t].id;
        }
    }
    for (int e = 0; e < 2; e++) {
        for (int t = 0; t < TEXTS; t++)
            sampler_free(draws[e][t].sampler);
        for (int t = 0; t < TEXTS + 2; t++)
            state_free(states[e][t]);
        engine_close(engines[e]);
    }
}

/* Where everything is banned nothing can be drawn: the text has moved, and the others draw. */
Test(draws, one_that_fails_is_its_texts_alone)
{
    struct engine *engine = open_engine(1);
    int32_t vocab = engine_info(engine)->vocab_size;
    int32_t *all = calloc((size_t)vocab, sizeof *all);
    for (int32_t i = 0; i < vocab; i++)
        all[i] = i;
    struct draw draws[2] = {new_draw(engine, 0), new_draw(engine, 0)};
    draws[0].banned = all;
    draws[0].num_banned = (size_t)vocab;
    struct span spans[2];
    for (int t = 0; t < 2; t++)
        spans[t] = (struct span){
            .state = new_state(engine), .tokens = prompt, .num_tokens = 5, .draw = &draws[t]};
    struct error err = ERROR_INIT;
    cr_assert(engine_step(engine, spans, 2, &err) == 0, "%s", err.message);
    cr_expect(draw_check(&draws[1], NULL) == 0 && draws[1].id >= 0);
    cr_expect(draw_check(&draws[0], &err) == -1);
    cr_expect_str_eq(err.message, "no token is left to draw");
    cr_expect(state_position(spans[0].state) == 5);
    for (int t = 0; t < 2; t++) {
        sampler_free(draws[t].sampler);
        state_free(spans[t].state);
    }
    free(all);
    engine_close(engine);
}

/* Where steps do not overlap a step in two parts is a step, and another one has to wait. */
Test(draws, a_step_in_two_parts_is_a_step)
{
    struct engine *engines[2] = {open_engine(1), open_engine(1)};
    struct draw draws[2];
    struct span spans[2];
    struct error err = ERROR_INIT;
    for (int e = 0; e < 2; e++) {
        draws[e] = new_draw(engines[e], 1);
        spans[e] = (struct span){
            .state = new_state(engines[e]), .tokens = prompt, .num_tokens = 5, .draw = &draws[e]};
    }
    cr_expect(!engine_info(engines[0])->overlaps);
    cr_expect(engine_collect(engines[0], &err) == -1 && err.code == ERROR_INVALID);
    cr_assert(engine_step(engines[0], &spans[0], 1, NULL) == 0);
    cr_assert(engine_submit(engines[1], &spans[1], 1, NULL) == 0);
    error_clear(&err);
    cr_expect(engine_submit(engines[1], &spans[1], 1, &err) == -1 && err.code == ERROR_INVALID);
    cr_expect(engine_step(engines[1], &spans[1], 1, NULL) == -1);
    cr_assert(engine_collect(engines[1], NULL) == 0);
    expect_equal(&draws[0], &draws[1], 1, 0);
    cr_expect(state_position(spans[1].state) == 5);
    for (int e = 0; e < 2; e++) {
        sampler_free(draws[e].sampler);
        state_free(spans[e].state);
        engine_close(engines[e]);
    }
}

static void refuse(struct engine *engine, struct span *spans, int count, const char *words)
{
    struct error err = ERROR_INIT;
    cr_expect(engine_step(engine, spans, count, &err) == -1, "accepted: %s", words);
    cr_expect(err.code == ERROR_INVALID && strstr(err.message, words) != NULL,
              "expected \"%s\", got \"%s\"", words, err.message);
}

/* Nothing is drawn in a step that is refused: the next draws what it would have. */
Test(draws, a_refused_step_draws_nothing)
{
    struct engine *engine = open_engine(1);
    struct draw draw = new_draw(engine, 1), again = new_draw(engine, 1);
    struct state *states[9];
    struct span spans[9];
    for (int t = 0; t < 9; t++) {
        states[t] = new_state(engine);
        spans[t] = (struct span){
            .state = states[t], .tokens = prompt, .num_tokens = 2, .draw = t > 0 ? &again : &draw};
    }
    refuse(engine, spans, 9, "8 logits, got 18 and 9");
    spans[1].num_logits = 1;
    refuse(engine, spans, 2, "spans[1]: a draw, expected 0 logits, got 1");
    spans[1].num_logits = 0;
    refuse(engine, &spans[1], 2, "spans[1]: its draw's sampler is in the step twice");
    struct draw beside = {.sampler = again.sampler};
    spans[2].draw = &beside;
    refuse(engine, spans, 3, "spans[2]: its draw's sampler is in the step twice");
    cr_assert(engine_step(engine, &spans[0], 1, NULL) == 0);
    cr_assert(engine_step(engine, &spans[1], 1, NULL) == 0);
    expect_equal(&draw, &again, 1, 0);
    sampler_free(draw.sampler);
    sampler_free(again.sampler);
    for (int t = 0; t < 9; t++)
        state_free(states[t]);
    engine_close(engine);
}
