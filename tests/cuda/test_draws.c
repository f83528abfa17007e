/* SPDX-License-Identifier: Apache-2.0 */
/* Draws of an engine's steps on a device: the host's for the same logits, and the same where a step
 * begins before the one before it has been looked at. */
#include "engine/engine.h"
#include "engine/ops/sampler.h"
#include "engine/state_memory.h"
#include "tests/cuda/bench.h"

enum { TEXTS = 5, ROOM = 100, ROUNDS = 12, MEMORY = 16 << 20, OTHERS = 4 };

static struct bench_count count;

static const struct sampling settings[TEXTS] = {
    {.temperature = 2, .top_p = 1, .repetition_penalty = 1, .seed = 1},
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 1.5f, .top_p = 1, .min_p = 0.01f, .repetition_penalty = 1, .seed = 2},
    {.temperature = 2, .top_p = 1, .top_k = 30, .repetition_penalty = 1, .seed = 3},
    {.temperature = 1, .top_p = 0.8f, .repetition_penalty = 1, .seed = 4},
};
static const struct sampling penalties = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1.2f, .frequency_penalty = 1, .seed = 5};

static const int32_t wanted[] = {11, 0, 40};

/* Texts of an engine; a step reads one of the two sets of spans and draws. */
struct texts {
    struct engine *engine;
    struct state *states[TEXTS];
    struct draw draws[2][TEXTS];
    struct span spans[2][TEXTS];
    int32_t tokens[TEXTS];
};

static void must(int result, const struct error *err)
{
    if (result != 0)
        bench_fatal("engine", err);
}

static struct sampler *open_sampler(const struct engine *engine, const struct sampling *sampling)
{
    struct sampler *sampler;
    struct error err = ERROR_INIT;
    must(sampler_create(&sampler, sampling, engine_info(engine)->vocab_size, NULL, 0, &err), &err);
    return sampler;
}

static struct engine *open_engine(const char *model, size_t memory)
{
    struct engine *engine;
    char folder[512];
    snprintf(folder, sizeof folder, REGLA_SOURCE_DIR "/tests/golden/%s", model);
    const struct engine_options options = {.device = "cuda",
                                           .weights = WEIGHTS_F32,
                                           .max_step_tokens = 96,
                                           .max_step_logits = 16,
                                           .poison = true,
                                           .state_memory_bytes = memory};
    struct error err = ERROR_INIT;
    must(engine_open(&engine, folder, &options, &err), &err);
    return engine;
}

/* Each text has some tokens: the first as many as leave 4 of its page of 64. With less memory than
 * usual the slots of others, which are gone, lie below the texts'. */
static void open_texts(struct texts *texts, const char *model, size_t memory)
{
    struct error err = ERROR_INIT;
    struct state *others[OTHERS] = {NULL};
    bool crowded = memory < MEMORY;
    texts->engine = open_engine(model, memory);
    for (int i = 0; i < OTHERS && crowded; i++)
        must(state_create(&others[i], texts->engine, 0, &err), &err);
    int32_t prompt[60];
    for (int i = 0; i < 60; i++)
        prompt[i] = 7 * i % engine_info(texts->engine)->vocab_size;
    for (int t = 0; t < TEXTS; t++) {
        must(state_create(&texts->states[t], texts->engine, crowded ? 64 : ROOM, &err), &err);
        struct span span = {.state = texts->states[t], .tokens = prompt, .num_tokens = 60 - 5 * t};
        must(engine_step(texts->engine, &span, 1, &err), &err);
        struct draw draw = {.sampler = open_sampler(texts->engine, &settings[t]),
                            .wants_logprob = true,
                            .num_top = t,
                            .wanted = t == 3 ? wanted : NULL};
        texts->draws[0][t] = texts->draws[1][t] = draw;
        texts->tokens[t] = 3 + 7 * t;
    }
    for (int i = 0; i < OTHERS; i++)
        state_free(others[i]);
    for (int t = 0; t < 2; t++)
        must(state_reserve(texts->states[t], ROOM, &err), &err);
}

static void close_texts(struct texts *texts)
{
    for (int t = 0; t < TEXTS; t++) {
        state_free(texts->states[t]);
        sampler_free(texts->draws[0][t].sampler);
    }
    engine_close(texts->engine);
}

static void check_draw(const struct draw *got, const struct draw *expected, const char *model,
                       int round, int text)
{
    char name[80];
    snprintf(name, sizeof name, "%s, step %d, text %d", model, round, text);
    bench_expect(&count, got->id == expected->id && got->id >= 0, name, "token", got->id);
    bench_expect(&count, got->logprob == expected->logprob, name, "log-probability", got->logprob);
    bench_expect(&count,
                 memcmp(got->top, expected->top, (size_t)got->num_top * sizeof *got->top) == 0,
                 name, "the best", got->num_top);
}

/* Feeds each text its token, and text 0 two of them if the step is to be mixed. Bit t of `drawn`:
 * text t draws, else its logits come back. */
static void step_texts(struct texts *texts, int number, bool mixed, unsigned drawn)
{
    struct error err = ERROR_INIT;
    int32_t two[2] = {texts->tokens[0], 11};
    for (int t = 0; t < number; t++) {
        bool draws = (drawn >> t & 1) != 0;
        texts->spans[0][t] = (struct span){.state = texts->states[t],
                                           .tokens = mixed && t == 0 ? two : &texts->tokens[t],
                                           .num_tokens = 1 + (mixed && t == 0),
                                           .num_logits = !draws,
                                           .draw = draws ? &texts->draws[0][t] : NULL};
    }
    must(engine_step(texts->engine, texts->spans[0], number, &err), &err);
}

/* Decode steps come from graphs from the third of a kind on, behind which the draws come. */
static void check_steps(const char *model)
{
    static const int numbers[ROUNDS] = {4, 3, 4, 5, 4, 3, 5, 4, 5, 3, 4, 5};
    struct texts there, here;
    open_texts(&there, model, MEMORY);
    open_texts(&here, model, MEMORY);
    for (int round = 0; round < ROUNDS; round++) {
        bool mixed = round % 4 == 3;
        unsigned drawn = mixed ? ~2u : ~0u; /* the host draws for text 1 in both */
        step_texts(&there, numbers[round], mixed, drawn);
        step_texts(&here, numbers[round], mixed, 0);
        for (int t = 0; t < numbers[round]; t++) {
            sampler_draw(&here.draws[0][t], here.spans[0][t].logits);
            if ((drawn >> t & 1) == 0)
                sampler_draw(&there.draws[0][t], there.spans[0][t].logits);
            check_draw(&there.draws[0][t], &here.draws[0][t], model, round, t);
            there.tokens[t] = here.tokens[t] = here.draws[0][t].id;
        }
    }
    close_texts(&there);
    close_texts(&here);
}

/* ---- long lists ---- */

enum { LISTED = 16, LISTED_ROUNDS = 9, MOST_IDS = 275 };

/* Texts of one token; the draws of a step, with lists that are nearly as long as the vocabulary. */
struct listed {
    struct engine *engine;
    struct state *states[LISTED];
    struct sampler *samplers[LISTED];
    struct draw draws[LISTED];
    struct span spans[LISTED];
};

static void open_listed(struct listed *listed, const char *model)
{
    static struct logit_bias biases[MOST_IDS];
    struct error err = ERROR_INIT;
    listed->engine = open_engine(model, MEMORY);
    int32_t vocab = engine_info(listed->engine)->vocab_size;
    for (int32_t i = 0; i < vocab && i < MOST_IDS; i++)
        biases[i] = (struct logit_bias){i, (float)(i % 7)};
    for (int t = 0; t < LISTED; t++) {
        struct sampling how = penalties;
        how.logit_bias = biases;
        how.num_logit_bias = (size_t)(vocab - t);
        must(state_create(&listed->states[t], listed->engine, ROOM, &err), &err);
        listed->samplers[t] = open_sampler(listed->engine, &how);
    }
}

static void step_listed(struct listed *listed, int number, bool long_lists, bool draws, int round)
{
    static int32_t ids[MOST_IDS];
    struct error err = ERROR_INIT;
    int32_t token = 3 + round, vocab = engine_info(listed->engine)->vocab_size;
    for (int32_t i = 0; i < MOST_IDS; i++)
        ids[i] = i;
    for (int t = 0; t < number; t++) {
        listed->draws[t] = (struct draw){.sampler = listed->samplers[t],
                                         .banned = ids,
                                         .num_banned = long_lists ? (size_t)(vocab - 20 - t) : 0,
                                         .ends = ids,
                                         .num_ends = long_lists ? (size_t)vocab : 0,
                                         .wants_logprob = true,
                                         .num_top = t % 3};
        listed->spans[t] = (struct span){.state = listed->states[t],
                                         .tokens = &token,
                                         .num_tokens = 1,
                                         .num_logits = !draws,
                                         .draw = draws ? &listed->draws[t] : NULL};
    }
    must(engine_step(listed->engine, listed->spans, number, &err), &err);
}

/* The lists of few texts come with the step's batch, and so do those of all if they are short; else
 * there is not room for them (67,680 bytes and the tokens seen), and they come behind the graph. */
static void check_lists(const char *model)
{
    static const int numbers[LISTED_ROUNDS] = {4, LISTED, LISTED, 4, LISTED, LISTED, 4, LISTED, 4};
    struct listed there, here;
    open_listed(&there, model);
    open_listed(&here, model);
    for (int round = 0; round < LISTED_ROUNDS; round++) {
        bool long_lists = round % 3 != 2;
        step_listed(&there, numbers[round], long_lists, true, round);
        step_listed(&here, numbers[round], long_lists, false, round);
        for (int t = 0; t < numbers[round]; t++) {
            sampler_draw(&here.draws[t], here.spans[t].logits);
            check_draw(&there.draws[t], &here.draws[t], "long lists", round, t);
        }
    }
    for (struct listed *listed = &there; listed != NULL; listed = listed == &there ? &here : NULL) {
        for (int t = 0; t < LISTED; t++) {
            state_free(listed->states[t]);
            sampler_free(listed->samplers[t]);
        }
        engine_close(listed->engine);
    }
}

/* ---- steps that overlap ---- */

/* Submits a step of the texts that are live: set number `set`, after another one or not. False:
 * there are none. */
static bool submit(struct texts *texts, int set, bool after, const bool *live)
{
    struct error err = ERROR_INIT;
    int n = 0;
    for (int t = 0; t < TEXTS; t++)
        if (live[t])
            texts->spans[set][n++] = (struct span){.state = texts->states[t],
                                                   .tokens = after ? NULL : &texts->tokens[t],
                                                   .num_tokens = 1,
                                                   .draw = &texts->draws[set][t]};
    if (n > 0)
        must(engine_submit(texts->engine, texts->spans[set], n, &err), &err);
    return n > 0;
}

/* The text has ended: its state is that of a text whose steps waited for each other. */
static void check_state(const struct texts *got, const struct texts *expected, int t,
                        const char *model)
{
    const struct state *a = got->states[t], *b = expected->states[t];
    int64_t position = state_position(b);
    if (!bench_expect(&count,
                      state_position(a) == position &&
                          state_bytes(&got->states[t], 1) == state_bytes(&expected->states[t], 1),
                      model, "position of a text that has ended", (double)state_position(a)))
        return;
    size_t bytes = state_image_bytes(expected->engine, position);
    char *images = calloc(2, bytes);
    state_save(a, images, NULL);
    state_save(b, images + bytes, NULL);
    bench_expect(&count, memcmp(images, images + bytes, bytes) == 0, model, "state", t);
    free(images);
}

/* Round after round in steps that wait; texts that are not live any more do not take part, and one
 * ceases to be when its draw ends it. */
static void run_plain(struct texts *texts, struct draw drawn[ROUNDS][TEXTS])
{
    bool live[TEXTS] = {true, true, true, true, true};
    for (int round = 0; round < ROUNDS && submit(texts, 0, false, live); round++) {
        struct error err = ERROR_INIT;
        must(engine_collect(texts->engine, &err), &err);
        for (int t = 0; t < TEXTS; t++) {
            drawn[round][t] = texts->draws[0][t];
            texts->tokens[t] = drawn[round][t].id;
            live[t] = live[t] && !draw_ends(&drawn[round][t]);
        }
    }
}

/* The same, each step begun before the last has been looked at. */
static void run_ahead(struct texts *texts, struct draw drawn[ROUNDS][TEXTS], const char *model)
{
    bool live[TEXTS] = {true, true, true, true, true};
    bool under_way = submit(texts, 0, false, live), more;
    for (int round = 0; under_way; round++, under_way = more) {
        struct error err = ERROR_INIT;
        struct draw *draws = texts->draws[round % 2], *next = texts->draws[1 - round % 2];
        more = round + 1 < ROUNDS && submit(texts, 1 - round % 2, true, live);
        must(engine_collect(texts->engine, &err), &err);
        for (int t = 0; t < TEXTS; t++) {
            if (!live[t]) /* dropped, or not there */
                continue;
            check_draw(&draws[t], &drawn[round][t], model, round, t);
            live[t] = !draw_ends(&draws[t]);
            bench_expect(&count, !more || next[t].dropped == !live[t], model, "dropped", round);
        }
    }
}

/* Text t ends by what it draws in round 3 + 2 t, or before where it draws that twice: text 0 where
 * its page is full. */
static void check_overlap(const char *model)
{
    static struct draw drawn[ROUNDS][TEXTS];
    int32_t ends[TEXTS];
    struct texts first, plain, ahead;
    open_texts(&first, model, MEMORY);
    run_plain(&first, drawn);
    for (int t = 0; t < TEXTS; t++)
        ends[t] = drawn[3 + 2 * t < ROUNDS ? 3 + 2 * t : ROUNDS - 1][t].id;
    close_texts(&first);
    open_texts(&plain, model, MEMORY);
    open_texts(&ahead, model, MEMORY);
    for (int t = 0; t < TEXTS; t++)
        for (int set = 0; set < 2; set++)
            for (int which = 0; which < 2; which++) {
                struct draw *draw = &(which == 0 ? &plain : &ahead)->draws[set][t];
                draw->ends = &ends[t];
                draw->num_ends = 1;
            }
    run_plain(&plain, drawn);
    run_ahead(&ahead, drawn, model);
    bench_expect(&count, state_position(plain.states[0]) == 64, model, "a full page",
                 (double)state_position(plain.states[0]));
    for (int t = 0; t < TEXTS; t++)
        check_state(&ahead, &plain, t, model);
    close_texts(&plain);
    close_texts(&ahead);
}

/* The second page of text 1 needs the place of slots, which move while a step of theirs is under
 * way. */
static void check_moves(const char *model)
{
    static struct draw drawn[ROUNDS][TEXTS];
    struct texts plain, ahead;
    open_texts(&plain, model, MEMORY);
    const struct engine_info *info = engine_info(plain.engine);
    open_texts(&ahead, model,
               5 * info->recurrent_bytes_per_text +
                   7 * info->kv_bytes_per_token * (size_t)info->kv_page_tokens);
    const char *slot = ahead.states[TEXTS - 1]->slot;
    run_plain(&plain, drawn);
    run_ahead(&ahead, drawn, model);
    bench_expect(&count, ahead.states[TEXTS - 1]->slot != slot, model, "a slot that moves", 0);
    for (int t = 0; t < TEXTS; t++)
        check_state(&ahead, &plain, t, model);
    close_texts(&plain);
    close_texts(&ahead);
}

/* What is cloned while two steps are under way is what there is after both. */
static void check_clones(const char *model)
{
    const bool live[TEXTS] = {true, true, true, true, true};
    struct texts texts;
    struct error err = ERROR_INIT;
    open_texts(&texts, model, MEMORY);
    for (int set = 0; set < 2; set++)
        submit(&texts, set, set == 1, live);
    struct texts clones = texts;
    for (int t = 0; t < TEXTS; t++)
        must(state_clone(&clones.states[t], texts.states[t], ROOM, &err), &err);
    for (int set = 0; set < 2; set++)
        must(engine_collect(texts.engine, &err), &err);
    for (int t = 0; t < TEXTS; t++) {
        check_state(&clones, &texts, t, model);
        state_free(clones.states[t]);
    }
    close_texts(&texts);
}

static void refuse(const struct texts *texts, struct span *spans, const char *words)
{
    struct error err = ERROR_INIT;
    bool refused = engine_submit(texts->engine, spans, 1, &err) == -1 &&
                   err.code == ERROR_INVALID && strstr(err.message, words) != NULL;
    bench_expect(&count, refused, words, err.message, 0);
}

/* What a second step may not be, and a third; the first two are as if nobody had asked. */
static void check_refusals(const char *model)
{
    struct texts texts;
    struct error err = ERROR_INIT;
    const bool live[TEXTS] = {true, true};
    open_texts(&texts, model, MEMORY);
    struct sampler *looks_back = open_sampler(texts.engine, &penalties);
    struct draw other = {.sampler = looks_back}, *next = &texts.draws[1][0];
    struct span none = {.state = texts.states[0], .num_tokens = 1, .draw = next};
    struct span stranger = {.state = texts.states[2], .num_tokens = 1, .draw = next};
    struct span two = {.state = texts.states[0], .num_tokens = 2, .draw = next};
    struct span same = {.state = texts.states[0], .num_tokens = 1, .draw = &texts.draws[0][0]};
    struct span back = {.state = texts.states[0], .num_tokens = 1, .draw = &other};
    struct span logits = {
        .state = texts.states[2], .tokens = texts.tokens, .num_tokens = 1, .num_logits = 1};
    bench_expect(&count, engine_collect(texts.engine, &err) == -1, model, "nothing to collect", 0);
    refuse(&texts, &none, "no tokens");
    submit(&texts, 0, false, live);
    refuse(&texts, &stranger, "no draw under way");
    refuse(&texts, &two, "no draw under way");
    refuse(&texts, &same, "cannot come before");
    refuse(&texts, &back, "cannot come before");
    refuse(&texts, &logits, "draws only");
    error_clear(&err);
    bench_expect(&count, engine_step(texts.engine, &logits, 1, &err) == -1, model, "a step", 0);
    submit(&texts, 1, true, live);
    refuse(&texts, &none, "collected first");
    for (int i = 0; i < 2; i++) {
        error_clear(&err);
        must(engine_collect(texts.engine, &err), &err);
    }
    bench_expect(&count, state_position(texts.states[0]) == 62, model, "position",
                 (double)state_position(texts.states[0]));
    sampler_free(looks_back);
    close_texts(&texts);
}

int main(void)
{
    /* the last one looks its tokens up in two tables */
    static const char *const models[] = {"hybrid_regla", "performer", "softmax_rope", "sliding_t5",
                                         "gemma4_text"};
    static const char *const without[] = {"mapped", "feed", "mapped,feed,draw"};
    if (cuda_devices() == 0) {
        printf("cuda-draws: skipped: no CUDA device\n");
        return BENCH_NO_DEVICE;
    }
    check_steps(models[0]);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_overlap(models[i]);
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        char *before = bench_without(without[i]);
        check_overlap(models[i % 2]);
        bench_restore("REGLA_CUDA_WITHOUT", before);
    }
    check_lists(models[0]);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_clones(models[i]);
    check_moves(models[0]);
    check_refusals(models[0]);
    printf("cuda-draws: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
