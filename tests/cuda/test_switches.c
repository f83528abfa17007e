/* SPDX-License-Identifier: Apache-2.0 */
/* Every switch of the CUDA backend (engine/cuda/switches.h) off alone, and all off: the logits of
 * prompts and of decode steps of changing numbers of texts, and what steps draw that begin before
 * the last has ended, are the same bits as with all on. */
#include "engine/engine.h"
#include "engine/ops/sampler.h"
#include "tests/cuda/bench.h"

enum { TEXTS = 9, PROMPT = 30, DECODES = 9, DRAWS = 5, ROOM = 64 };

static struct bench_count count;

struct kind {
    const char *model;
    enum weight_format weights;
    enum activation_format activations;
};

static void must(int result, const struct error *err)
{
    if (result != 0)
        bench_fatal("engine", err);
}

static struct engine *open_engine(const struct kind *kind)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    char folder[512];
    snprintf(folder, sizeof folder, REGLA_SOURCE_DIR "/tests/golden/%s", kind->model);
    const struct engine_options options = {.device = "cuda",
                                           .weights = kind->weights,
                                           .activations = kind->activations,
                                           .kv = KV_F16,
                                           .max_step_tokens = 256,
                                           .max_step_logits = 32,
                                           .poison = true,
                                           .state_memory_bytes = (size_t)32 << 20};
    must(engine_open(&engine, folder, &options, &err), &err);
    return engine;
}

/* All prompts in one step, each of another length. */
static void read_prompts(struct engine *engine, struct state **states)
{
    struct error err = ERROR_INIT;
    struct span spans[TEXTS];
    static int32_t tokens[TEXTS][PROMPT];
    int vocab = engine_info(engine)->vocab_size, rows = 0;
    for (int t = 0; t < TEXTS; t++) {
        int length = t == 0 ? PROMPT : 5 + t % 2;
        for (int i = 0; i < length; i++)
            tokens[t][i] = (7 * i * (t + 1) + 3 * t) % vocab;
        must(state_create(&states[t], engine, ROOM, &err), &err);
        spans[t] = (struct span){.state = states[t], .tokens = tokens[t], .num_tokens = length};
        rows += length;
    }
    if (rows <= 64)
        bench_fatal("the prompts do not fill a step for many rows", NULL);
    must(engine_step(engine, spans, TEXTS, &err), &err);
}

/* Decode steps whose logits come back, one by one and padded: of those with as many texts the first
 * runs, two are recorded, and the fourth is a graph that came before (graphs.cu). */
static float *decode(struct engine *engine, struct state **states, float *out)
{
    static const int counts[DECODES] = {1, 1, 1, 1, TEXTS, TEXTS, TEXTS, TEXTS, 3};
    struct error err = ERROR_INIT;
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    for (int round = 0; round < DECODES; round++) {
        struct span spans[TEXTS];
        int32_t tokens[TEXTS];
        for (int t = 0; t < counts[round]; t++) {
            tokens[t] = (int32_t)((size_t)(11 * round + 5 * t) % vocab);
            spans[t] = (struct span){
                .state = states[t], .tokens = &tokens[t], .num_tokens = 1, .num_logits = 1};
        }
        must(engine_step(engine, spans, counts[round], &err), &err);
        for (int t = 0; t < counts[round]; t++, out += vocab)
            memcpy(out, spans[t].logits, vocab * sizeof *out);
    }
    return out;
}

/* Steps that draw, each begun before the last has been looked at. */
static float *draw(struct engine *engine, struct state **states, float *out)
{
    struct error err = ERROR_INIT;
    struct sampler *samplers[TEXTS];
    static struct draw draws[2][TEXTS];
    struct span spans[2][TEXTS];
    int32_t token = 5;
    for (int t = 0; t < TEXTS; t++) {
        const struct sampling how = {.temperature = t % 3 == 0 ? 0.0f : 1.0f,
                                     .top_p = t % 3 == 1 ? 0.8f : 1.0f,
                                     .top_k = t % 4 == 1 ? 20 : 0,
                                     .repetition_penalty = 1,
                                     .seed = (uint64_t)t};
        must(sampler_create(&samplers[t], &how, engine_info(engine)->vocab_size, NULL, 0, &err),
             &err);
    }
    for (int round = 0; round <= DRAWS; round++) {
        int set = round % 2;
        for (int t = 0; t < TEXTS && round < DRAWS; t++) {
            draws[set][t] =
                (struct draw){.sampler = samplers[t], .wants_logprob = true, .num_top = t % 4};
            spans[set][t] = (struct span){.state = states[t],
                                          .tokens = round == 0 ? &token : NULL,
                                          .num_tokens = 1,
                                          .draw = &draws[set][t]};
        }
        if (round < DRAWS)
            must(engine_submit(engine, spans[set], TEXTS, &err), &err);
        if (round == 0)
            continue;
        must(engine_collect(engine, &err), &err);
        for (int t = 0; t < TEXTS; t++) {
            const struct draw *drawn = &draws[1 - set][t];
            *out++ = (float)drawn->id;
            *out++ = drawn->logprob;
            for (int i = 0; i < drawn->num_top; i++)
                *out++ = drawn->top[i].logprob;
        }
    }
    for (int t = 0; t < TEXTS; t++)
        sampler_free(samplers[t]);
    return out;
}

/* What a model computes with these switches off; *numbers of them. The caller frees it. */
static float *run(const struct kind *kind, const char *without, size_t *numbers)
{
    char *before = bench_without(without);
    struct engine *engine = open_engine(kind);
    struct state *states[TEXTS];
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    float *all = calloc((DECODES + DRAWS) * TEXTS * (vocab + 8), sizeof *all);
    read_prompts(engine, states);
    float *end = draw(engine, states, decode(engine, states, all));
    *numbers = (size_t)(end - all);
    for (int t = 0; t < TEXTS; t++)
        state_free(states[t]);
    engine_close(engine);
    bench_restore("REGLA_CUDA_WITHOUT", before);
    return all;
}

static void compare(const struct kind *kind, const char *without, const float *expected,
                    size_t numbers)
{
    size_t got_numbers;
    float *got = run(kind, without, &got_numbers);
    bool same = got_numbers == numbers && memcmp(got, expected, numbers * sizeof *got) == 0;
    bench_expect(&count, same, kind->model, without, (double)got_numbers);
    free(got);
}

static void check_kind(const struct kind *kind)
{
    size_t numbers;
    float *expected = run(kind, "", &numbers);
    char all[512] = "";
    const char *name;
    for (int i = 0; (name = cuda_switch_name(i)) != NULL; i++) {
        compare(kind, name, expected, numbers);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i > 0 ? "," : "", name);
    }
    compare(kind, all, expected, numbers);
    char *before = bench_set("REGLA_CUDA_STREAMED_ROWS", "8");
    compare(kind, "", expected, numbers);
    compare(kind, all, expected, numbers);
    bench_restore("REGLA_CUDA_STREAMED_ROWS", before);
    free(expected);
}

static void refuse(const char *variable, const char *value, const char *words)
{
    const struct cuda_options options = {.device = 0};
    struct error err = ERROR_INIT;
    struct backend *backend;
    char *before = bench_set(variable, value);
    bool refused = cuda_open(&backend, &options, &err) == -1 && err.code == ERROR_INVALID &&
                   strstr(err.message, words) != NULL;
    bench_expect(&count, refused, variable, err.message, 0);
    bench_restore(variable, before);
}

/* What was off when the program started stays off. */
static void check_without(void)
{
    static const char name[] = "REGLA_CUDA_WITHOUT";
    char *start = bench_set(name, "overlap"), *before = bench_without("row");
    bench_expect(&count, strcmp(getenv(name), "overlap,row") == 0, name, getenv(name), 0);
    bench_restore(name, before);
    bench_expect(&count, strcmp(getenv(name), "overlap") == 0, name, getenv(name), 0);
    bench_restore(name, bench_without(""));
    bench_expect(&count, strcmp(getenv(name), "overlap") == 0, name, getenv(name), 0);
    bench_restore(name, start);
}

int main(void)
{
    static const struct kind kinds[] = {
        {"hybrid_regla", WEIGHTS_BF16, ACTIVATIONS_F32},
        {"regla_tied_glu_wide", WEIGHTS_Q8, ACTIVATIONS_16BIT},
        {"gla_fla", WEIGHTS_F16, ACTIVATIONS_F32},
        {"sliding_t5", WEIGHTS_F32, ACTIVATIONS_F32},
    };
    if (cuda_devices() == 0) {
        printf("switches: skipped: no CUDA device\n");
        return BENCH_NO_DEVICE;
    }
    check_without();
    refuse("REGLA_CUDA_WITHOUT", "overlap,nothing", "nothing");
    refuse("REGLA_CUDA_WITHOUT", "overlap,,row", "expected some of overlap, row");
    refuse("REGLA_CUDA_STREAMED_ROWS", "7", "from 8 to 256, got 7");
    refuse("REGLA_CUDA_STREAMED_ROWS", "8x", "got 8x");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        check_kind(&kinds[i]);
    printf("switches: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
