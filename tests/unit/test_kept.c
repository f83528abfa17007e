/* SPDX-License-Identifier: Apache-2.0 */
/* What spans ask for beside logits and draws: kept tokens, over which a text goes back, and hidden
 * rows. */
#include "engine/engine.h"
#include "engine/model/model.h"
#include "lib/base/half.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/sanitized.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct engine *open_keeping(const char *path, bool hidden)
{
    const struct engine_options options = {.threads = 1,
                                           .state_memory_bytes = (size_t)16 << 20,
                                           .max_step_tokens = 64,
                                           .max_step_logits = 64,
                                           .max_step_kept = 2 * ENGINE_MOST_KEPT,
                                           .hidden = hidden,
                                           .poison = true};
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s: %s", path, err.message);
    return engine;
}

static struct state *new_state(struct engine *engine, int64_t tokens)
{
    struct state *state;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&state, engine, tokens, &err) == 0, "%s", err.message);
    return state;
}

/* The image behind `position` tokens of text `which`; the caller frees it. */
static char *image_of(struct engine *engine, const struct state *state)
{
    const size_t bytes = state_image_bytes(engine, state_position(state));
    char *image = malloc(bytes + 1);
    struct error err = ERROR_INIT;
    cr_assert(state_save(state, image, &err) == 0, "%s", err.message);
    return image;
}

enum { LENGTH = 150 /* two pages and a part, and every ring more than once */ };

/* Texts `which` are taken whole, or with wrong tokens behind the right ones that are taken back. */
static struct state *take(struct engine *engine, int which, int64_t length, bool drafts)
{
    const int32_t vocab = engine_info(engine)->vocab_size;
    struct state *state = new_state(engine, length);
    for (int step = 0; state_position(state) < length; step++) {
        const int64_t at = state_position(state);
        const int64_t left = length - at;
        int32_t tokens[64];
        int right = 1 + golden_token(which + 50, step, 9);
        right = right < left ? right : (int)left;
        int wrong = drafts ? golden_token(which + 70, step, ENGINE_MOST_KEPT + 1) : 0;
        wrong = wrong < left - right ? wrong : (int)(left - right);
        for (int i = 0; i < right + wrong; i++)
            tokens[i] = (golden_token(which, (int)at + i, vocab) + (i < right ? 0 : 1)) % vocab;
        struct span span = {
            .state = state, .tokens = tokens, .num_tokens = right + wrong, .num_kept = wrong};
        struct error err = ERROR_INIT;
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
        if (wrong > 0)
            cr_assert(engine_go_back(engine, state, wrong, &err) == 0, "%s", err.message);
        cr_assert_eq(state_position(state), at + right);
    }
    return state;
}

Test(kept, a_text_that_went_back_has_the_state_of_one_that_did_not, .timeout = 300)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i += SANITIZED ? 8 : 1) {
        struct engine *engine = open_keeping(path, false);
        const int64_t limit = engine_info(engine)->max_positions;
        const int64_t length = limit > 0 && limit < LENGTH ? limit : LENGTH;
        struct state *plain = take(engine, i, length, false), *back = take(engine, i, length, true);
        char *expected = image_of(engine, plain), *got = image_of(engine, back);
        cr_expect(memcmp(expected, got, state_image_bytes(engine, length)) == 0, "%s", name);
        free(expected);
        free(got);
        state_free(plain);
        state_free(back);
        engine_close(engine);
    }
}

static void refuse_step(struct engine *engine, struct span *spans, int count, const char *words)
{
    struct error err = ERROR_INIT;
    cr_expect(engine_step(engine, spans, count, &err) == -1, "accepted: %s", words);
    cr_expect(strstr(err.message, words) != NULL, "expected \"%s\", got \"%s\"", words,
              err.message);
}

static void refuse_back(struct engine *engine, struct state *state, int tokens, const char *words)
{
    struct error err = ERROR_INIT;
    const int64_t before = state_position(state);
    cr_expect(engine_go_back(engine, state, tokens, &err) == -1, "accepted: %s", words);
    cr_expect(strstr(err.message, words) != NULL, "expected \"%s\", got \"%s\"", words,
              err.message);
    cr_expect_eq(state_position(state), before);
}

Test(kept, what_may_not_be_kept_is_refused_and_a_text_goes_back_once)
{
    static const int32_t tokens[40] = {1, 2, 3};
    struct engine *engine = open_keeping(GOLDEN_DIRECTORY "hybrid_regla", false);
    struct span spans[3];
    for (int i = 0; i < 3; i++)
        spans[i] = (struct span){
            .state = new_state(engine, 100), .tokens = tokens, .num_tokens = 20, .num_kept = 16};
    refuse_step(engine, spans, 3, "a step has at most 32 kept tokens, got 48");
    spans[1].num_kept = 17;
    refuse_step(engine, spans, 2, "spans[1]: expected 0 to 16 kept tokens, got 17");
    spans[1].num_kept = -1;
    refuse_step(engine, spans, 2, "spans[1]: expected 0 to 16 kept tokens, got -1");
    spans[1].num_tokens = spans[1].num_kept = 3;
    refuse_step(engine, spans, 2, "spans[1]: expected 0 to 2 kept tokens, got 3");
    spans[1].num_kept = 0;
    cr_assert(engine_step(engine, spans, 2, NULL) == 0);
    refuse_back(engine, spans[1].state, 1, "has kept no tokens of this text");
    refuse_back(engine, spans[0].state, 17, "expected 0 to 16 tokens to go back over, got 17");
    refuse_back(engine, spans[0].state, -1, "expected 0 to 16 tokens to go back over, got -1");
    cr_expect(engine_go_back(engine, spans[0].state, 16, NULL) == 0);
    cr_expect_eq(state_position(spans[0].state), 4);
    refuse_back(engine, spans[0].state, 1, "has kept no tokens of this text");
    cr_assert(engine_step(engine, spans, 1, NULL) == 0);
    spans[2].num_kept = 0;
    cr_assert(engine_step(engine, &spans[2], 1, NULL) == 0);
    refuse_back(engine, spans[0].state, 1, "has kept no tokens of this text"); /* a step later */
    for (int i = 0; i < 3; i++)
        state_free(spans[i].state);
    engine_close(engine);
}

Test(kept, an_engine_keeps_nothing_unless_it_was_opened_for_it)
{
    static const int32_t tokens[2] = {1, 2};
    const struct engine_options options = {.threads = 1, .state_memory_bytes = (size_t)8 << 20};
    struct engine *engine;
    cr_assert(engine_open(&engine, GOLDEN_DIRECTORY "hybrid_regla", &options, NULL) == 0);
    struct span span = {
        .state = new_state(engine, 10), .tokens = tokens, .num_tokens = 2, .num_kept = 1};
    refuse_step(engine, &span, 1, "a step has at most 0 kept tokens, got 1");
    span.num_kept = 0;
    span.num_hidden = 1;
    refuse_step(engine, &span, 1, "spans[0]: the engine was opened without hidden rows");
    span.num_hidden = 3;
    refuse_step(engine, &span, 1, "spans[0]: 3 hidden rows of 2 tokens");
    state_free(span.state);
    engine_close(engine);
}

/* Row r of the head, of a file of f32. */
static const float *head_row(const struct model *model, int64_t r)
{
    cr_assert_eq(model->lm_head.dtype, DTYPE_F32);
    return (const float *)model->lm_head.data +
           model_matrix_row(&model->lm_head, r) * model->lm_head.cols;
}

Test(hidden, rows_are_what_the_head_reads_whatever_the_step)
{
    struct engine *engine = open_keeping(GOLDEN_DIRECTORY "hybrid_regla", true);
    const struct model *model = engine_model(engine);
    const int32_t vocab = engine_info(engine)->vocab_size;
    const size_t size = (size_t)model->hidden_size;
    enum { TOKENS = 12 };
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = golden_token(3, i, vocab);
    struct span beside = {.state = new_state(engine, 5), .tokens = tokens + 2, .num_tokens = 5};
    struct span span = {.state = new_state(engine, TOKENS),
                        .tokens = tokens,
                        .num_tokens = TOKENS,
                        .num_logits = 2,
                        .num_hidden = 7};
    struct span both[2] = {beside, span};
    struct error err = ERROR_INIT;
    cr_assert(engine_step(engine, both, 2, &err) == 0, "%s", err.message);
    float *rows = malloc(7 * size * sizeof *rows);
    memcpy(rows, both[1].hidden, 7 * size * sizeof *rows);
    for (int i = 0; i < 2; i++) /* the last two rows have logits */
        for (int32_t id = 0; id < vocab; id += 17) {
            double sum = 0;
            for (size_t j = 0; j < size; j++)
                sum += (double)rows[(5 + (size_t)i) * size + j] * (double)head_row(model, id)[j];
            cr_expect(fabs(sum - (double)both[1].logits[i * vocab + id]) < 1e-4, "row %d, %d", i,
                      id);
        }
    span.state = new_state(engine, TOKENS);
    span.num_logits = 0;
    for (int i = 0; i < TOKENS; i++) { /* one by one, alone */
        span.tokens = tokens + i;
        span.num_tokens = span.num_hidden = 1;
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
        if (i >= TOKENS - 7)
            cr_expect(memcmp(span.hidden, rows + (size_t)(i - TOKENS + 7) * size,
                             size * sizeof *rows) == 0,
                      "token %d", i);
    }
    free(rows);
    state_free(span.state);
    state_free(both[0].state);
    state_free(both[1].state);
    engine_close(engine);
}
