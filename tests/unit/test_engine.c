/* SPDX-License-Identifier: Apache-2.0 */
/* engine_step: hostile arguments, what an error leaves behind, the caller's floating-point mode. */
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/state_memory.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/sanitized.h"

#include <criterion/criterion.h>
#include <float.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct engine *open_golden(const char *name, const struct engine_options *options)
{
    char path[512];
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s", name);
    cr_assert(engine_open(&engine, path, options, &err) == 0, "%s: %s", name, err.message);
    return engine;
}

static const struct engine_options small = {.threads = 1,
                                            .state_memory_bytes = (size_t)8 << 20,
                                            .max_step_tokens = 32,
                                            .max_step_logits = 8};

static struct state *new_state(struct engine *engine, int64_t max_tokens)
{
    struct state *state;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&state, engine, max_tokens, &err) == 0, "%s", err.message);
    return state;
}

static void refuse(struct engine *engine, struct span *spans, int count, const char *words)
{
    struct error err = ERROR_INIT;
    int64_t before = spans != NULL && spans[0].state != NULL ? state_position(spans[0].state) : 0;
    cr_expect(engine_step(engine, spans, count, &err) == -1, "accepted: %s", words);
    cr_expect(err.code == ERROR_INVALID && strstr(err.message, words) != NULL,
              "expected \"%s\", got \"%s\"", words, err.message);
    if (spans != NULL && spans[0].state != NULL)
        cr_expect(state_position(spans[0].state) == before, "moved: %s", words);
}

/* Its longest input is 80: more than two blocks of 32, of which each takes a part of the scratch.
 * As many rows as a step takes; a sanitizer sees what is written past it. */
Test(engine, the_inputs_of_a_whole_step_fit_in_q8)
{
    struct engine_options options = small;
    options.weights = WEIGHTS_Q8;
    struct engine *engine = open_golden("gpt_neox_tf5", &options);
    struct state *state = new_state(engine, 32);
    int32_t tokens[32] = {0};
    struct span span = {.state = state, .tokens = tokens, .num_tokens = 32};
    struct error err = ERROR_INIT;
    cr_expect(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
    cr_expect(state_position(state) == 32);
    state_free(state);
    engine_close(engine);
}

Test(engine, a_wrong_step_is_refused_and_moves_nothing)
{
    struct engine *engine = open_golden("hybrid_regla", &small);
    struct engine *stranger = open_golden("hybrid_regla", &small);
    struct state *state = new_state(engine, 20), *other = new_state(engine, 100);
    struct state *foreign = new_state(stranger, 20);
    int32_t vocab = engine_info(engine)->vocab_size;
    int32_t tokens[64] = {1, 2, 3}, negative[] = {1, -1}, large[] = {1, vocab},
            largest[] = {INT32_MAX}, smallest[] = {INT32_MIN};
    struct span span = {.state = state, .tokens = tokens, .num_tokens = 1};

    refuse(engine, &span, 0, "num_spans");
    refuse(engine, &span, -1, "num_spans");
    refuse(engine, &span, INT_MAX, "num_spans");
    refuse(engine, &(struct span){.state = state, .tokens = tokens, .num_tokens = 0}, 1,
           "0 logits of 0 tokens");
    refuse(engine, &(struct span){.state = state, .tokens = tokens, .num_tokens = -5}, 1,
           "of -5 tokens");
    refuse(engine, &(struct span){.state = state, .tokens = tokens, .num_tokens = INT_MAX}, 1,
           "at most 32 tokens");
    refuse(engine,
           &(struct span){.state = state, .tokens = tokens, .num_tokens = 2, .num_logits = 3}, 1,
           "3 logits of 2 tokens");
    refuse(engine,
           &(struct span){.state = state, .tokens = tokens, .num_tokens = 2, .num_logits = -1}, 1,
           "-1 logits");
    refuse(engine,
           &(struct span){.state = other, .tokens = tokens, .num_tokens = 9, .num_logits = 9}, 1,
           "8 logits");
    refuse(engine, &(struct span){.state = state, .tokens = tokens, .num_tokens = 21}, 1,
           "reserved for 20");
    refuse(engine, &(struct span){.state = state, .tokens = negative, .num_tokens = 2}, 1,
           "got -1");
    refuse(engine, &(struct span){.state = state, .tokens = large, .num_tokens = 2}, 1,
           "tokens[1]");
    refuse(engine, &(struct span){.state = state, .tokens = largest, .num_tokens = 1}, 1,
           "tokens[0]");
    refuse(engine, &(struct span){.state = state, .tokens = smallest, .num_tokens = 1}, 1,
           "tokens[0]");
    refuse(engine, &(struct span){.state = NULL, .tokens = tokens, .num_tokens = 1}, 1, "no state");
    refuse(engine, &(struct span){.state = state, .tokens = NULL, .num_tokens = 1}, 1, "no tokens");
    refuse(engine, &(struct span){.state = foreign, .tokens = tokens, .num_tokens = 1}, 1,
           "another engine");
    struct span twice[2] = {{.state = state, .tokens = tokens, .num_tokens = 1},
                            {.state = state, .tokens = tokens, .num_tokens = 1}};
    refuse(engine, twice, 2, "twice");
    struct span second[2] = {{.state = state, .tokens = tokens, .num_tokens = 1},
                             {.state = other, .tokens = large, .num_tokens = 2}};
    refuse(engine, second, 2, "spans[1].tokens[1]");
    struct span many[2] = {{.state = other, .tokens = tokens, .num_tokens = 20},
                           {.state = state, .tokens = tokens, .num_tokens = 13}};
    refuse(engine, many, 2, "at most 32 tokens");

    state_free(state);
    state_free(other);
    state_free(foreign);
    engine_close(engine);
    engine_close(stranger);
}

/* A refused step changes no bit of what comes after it. */
Test(engine, after_a_refused_step_the_text_goes_on_as_if_nothing_had_been)
{
    struct engine *engine = open_golden("hybrid_regla", &small);
    size_t bytes = (size_t)engine_info(engine)->vocab_size * sizeof(float);
    int32_t tokens[] = {5, 6, 7, 8}, bad[] = {1, -1};
    float *expected = malloc(bytes);
    for (int refused = 0; refused < 2; refused++) {
        struct state *state = new_state(engine, 10), *other = new_state(engine, 10);
        struct error err = ERROR_INIT;
        struct span first = {.state = state, .tokens = tokens, .num_tokens = 2},
                    rest = {.state = state, .tokens = tokens + 2, .num_tokens = 2, .num_logits = 1};
        cr_assert(engine_step(engine, &first, 1, &err) == 0);
        struct span wrong[2] = {
            {.state = state, .tokens = tokens, .num_tokens = 4, .num_logits = 1},
            {.state = other, .tokens = bad, .num_tokens = 2}};
        if (refused == 1)
            cr_assert(engine_step(engine, wrong, 2, NULL) == -1);
        cr_assert(engine_step(engine, &rest, 1, &err) == 0);
        if (refused == 0)
            memcpy(expected, rest.logits, bytes);
        else
            cr_expect(memcmp(expected, rest.logits, bytes) == 0);
        state_free(state);
        state_free(other);
    }
    free(expected);
    engine_close(engine);
}

Test(engine, senseless_options_are_refused)
{
    static const struct engine_options wrong[] = {
        {.threads = -1},
        {.threads = 100000},
        {.max_step_tokens = -1},
        {.max_step_logits = -1},
        {.max_step_tokens = INT_MAX},
        {.max_step_logits = INT_MAX},
        {.max_step_tokens = (1 << 18) + 1},
        {.instruction_set = ""},
        {.instruction_set = "mmx"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct engine *engine = NULL;
        struct error err = ERROR_INIT;
        cr_expect(engine_open(&engine, GOLDEN_DIRECTORY "regla", &wrong[i], &err) == -1, "%zu", i);
        cr_expect(err.code == ERROR_INVALID, "%zu: %s", i, err.message);
    }
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_expect(engine_open(&engine, "/nowhere", &small, &err) == -1);
    cr_expect(err.message[0] != 0);
}

/* A step of its largest size, and a workspace that is too large to be had, end in an error or an
 * answer, never in a crash. */
Test(engine, the_largest_steps_are_either_opened_or_refused)
{
    struct engine_options options = small;
    options.max_step_tokens = options.max_step_logits = 1 << 18;
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    if (engine_open(&engine, GOLDEN_DIRECTORY "regla", &options, &err) != 0)
        cr_expect(err.message[0] != 0);
    engine_close(engine);
}

Test(engine, the_callers_denormals_are_its_own_again_after_a_step)
{
    struct engine *engine = open_golden("regla", &small);
    struct state *state = new_state(engine, 4);
    int32_t token = 3;
    struct span span = {.state = state, .tokens = &token, .num_tokens = 1, .num_logits = 1};
    cr_assert(engine_step(engine, &span, 1, NULL) == 0);
    volatile float tiny = FLT_MIN;
    volatile float half = tiny * 0.5f;
    cr_expect(half > 0.0f);
    state_free(state);
    engine_close(engine);
}

Test(engine, info_says_what_the_model_is)
{
    struct engine *engine = open_golden("sliding_parallel_learned", &small);
    const struct engine_info *info = engine_info(engine);
    cr_expect(info->vocab_size == engine_model(engine)->vocab_size);
    cr_expect(info->max_positions == engine_model(engine)->max_position_embeddings);
    cr_expect(info->max_step_tokens == 32 && info->max_step_logits == 8 && info->threads == 1);
    cr_expect(info->weights_bytes > 0 && info->workspace_bytes > 0);
    cr_expect_str_eq(info->device, "cpu");
    struct error err = ERROR_INIT;
    struct state *state;
    cr_expect(state_create(&state, engine, info->max_positions + 1, &err) == -1);
    cr_expect(err.code == ERROR_INVALID && strstr(err.message, "positions") != NULL, "%s",
              err.message);
    engine_close(engine);
}

Test(engine, logits_of_a_span_are_its_last_positions)
{
    struct engine *engine = open_golden("softmax_rope", &small);
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    int32_t tokens[] = {9, 8, 7, 6, 5};
    struct state *all = new_state(engine, 5), *last = new_state(engine, 5),
                 *none = new_state(engine, 5);
    struct span spans[3] = {{.state = none, .tokens = tokens, .num_tokens = 5},
                            {.state = all, .tokens = tokens, .num_tokens = 5, .num_logits = 5},
                            {.state = last, .tokens = tokens, .num_tokens = 5, .num_logits = 2}};
    cr_assert(engine_step(engine, spans, 3, NULL) == 0);
    cr_expect(spans[0].logits == NULL);
    cr_expect(memcmp(spans[1].logits + 3 * vocab, spans[2].logits, 2 * vocab * sizeof(float)) == 0);
    state_free(all);
    state_free(last);
    state_free(none);
    engine_close(engine);
}

/* A copy of a golden case in `directory` (an empty one) with another position in its config. */
static void with_position(const char *directory, const char *name, const char *position)
{
    static const char *const files[] = {"model.safetensors", "tokenizer.json"};
    char from[512], to[512];
    for (size_t i = 0; i < 2; i++) {
        snprintf(from, sizeof from, GOLDEN_DIRECTORY "%s/%s", name, files[i]);
        snprintf(to, sizeof to, "%s/%s", directory, files[i]);
        cr_assert(symlink(from, to) == 0);
    }
    snprintf(from, sizeof from, GOLDEN_DIRECTORY "%s/config.json", name);
    snprintf(to, sizeof to, "%s/config.json", directory);
    json_t *config = json_load_file(from, 0, NULL), *mixer;
    const char *key;
    json_object_foreach(json_object_get(config, "mixers"), key, mixer)
    {
        json_object_set_new(mixer, "position", json_loads(position, 0, NULL));
    }
    cr_assert(json_dump_file(config, to, 0) == 0);
    json_decref(config);
}

/* RoFormer's positions are lrpe_orthogonal with default angles (model-format.md), so the bits must
 * be rope's, even for two tokens ten million positions apart. */
Test(engine, default_angles_of_lrpe_are_those_of_rope_at_any_distance)
{
    static const char *const positions[2] = {
        "{\"type\": \"rope\", \"stage\": \"after\", \"pairing\": \"adjacent\"}",
        "{\"type\": \"lrpe_orthogonal\"}",
    };
    enum { FAR = 10000019 };
    float logits[2][512];
    int vocab = 0;
    for (int i = 0; i < 2; i++) {
        char directory[] = "/tmp/regla-test-XXXXXX", command[64];
        cr_assert(mkdtemp(directory) != NULL);
        with_position(directory, "rope_after_adjacent_partial", positions[i]);
        struct engine *engine = NULL;
        struct error err = ERROR_INIT;
        cr_assert(engine_open(&engine, directory, &small, &err) == 0, "%s", err.message);
        struct state *state = new_state(engine, FAR + 1);
        int32_t tokens[2] = {17, 101};
        struct span span = {.state = state, .tokens = tokens, .num_tokens = 1};
        cr_assert(engine_step(engine, &span, 1, NULL) == 0);
        state->position = FAR; /* the same state as if all between had been nothing */
        span =
            (struct span){.state = state, .tokens = tokens + 1, .num_tokens = 1, .num_logits = 1};
        cr_assert(engine_step(engine, &span, 1, NULL) == 0);
        vocab = engine_info(engine)->vocab_size;
        memcpy(logits[i], span.logits, (size_t)vocab * sizeof(float));
        state_free(state);
        engine_close(engine);
        snprintf(command, sizeof command, "rm -r %s", directory);
        cr_expect(system(command) == 0);
    }
    cr_expect(memcmp(logits[0], logits[1], (size_t)vocab * sizeof(float)) == 0);
}

/* Rope, LRPE and the biases at positions no golden case reaches. */
Test(engine, a_text_of_ten_thousand_tokens_stays_finite)
{
    static const char *const names[] = {"hybrid_regla", "lrpe3", "kerple_bias_wht", "t5",
                                        "regla_small_eps_bf16"};
    struct engine_options options = small;
    options.max_step_tokens = 512;
    options.state_memory_bytes = (size_t)64 << 20;
    int steps = SANITIZED ? 5 : 20;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct engine *engine = open_golden(names[i], &options);
        struct state *state = new_state(engine, 10240);
        int32_t tokens[512];
        for (int step = 0; step < steps; step++) {
            for (int j = 0; j < 512; j++)
                tokens[j] = (step * 512 + j) * 31 % engine_info(engine)->vocab_size;
            struct span span = {
                .state = state, .tokens = tokens, .num_tokens = 512, .num_logits = 1};
            cr_assert(engine_step(engine, &span, 1, NULL) == 0);
            for (int v = 0; v < engine_info(engine)->vocab_size; v++)
                cr_assert(isfinite(span.logits[v]), "%s at %d", names[i], step * 512);
        }
        state_free(state);
        engine_close(engine);
    }
}
