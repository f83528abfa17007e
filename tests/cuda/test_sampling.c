/* Drawing on a device: the host's tokens and log-probabilities, whatever else is drawn beside, also
 * in the steps of an engine. */
#include "engine/engine.h"
#include "engine/sampler.h"
#include "tests/cuda/bench.h"

enum { VOCAB = 5003, DRAWS = 3, MOST = 32 };

static struct bench_device cpu, cuda;
static struct bench_count count;

static const struct logit_bias biases[] = {{7, 5.0f}, {9, -100.0f}, {7, -2.5f}, {4000, 6.0f}};

/* Every setting by itself, and together. */
static const struct sampling settings[] = {
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1.5f, .frequency_penalty = 0.5f},
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 1},
    {.temperature = 0.3f, .top_p = 1, .repetition_penalty = 1, .seed = -2, .choice = 3},
    {.temperature = 1, .top_p = 1, .top_k = 1, .repetition_penalty = 1, .seed = 3},
    {.temperature = 2, .top_p = 1, .top_k = 700, .repetition_penalty = 1, .seed = 4},
    {.temperature = 1, .top_p = 0.9f, .repetition_penalty = 1, .seed = 5},
    {.temperature = 1, .top_p = 0, .repetition_penalty = 1, .seed = 6},
    {.temperature = 3, .top_p = 0.5f, .top_k = 2000, .repetition_penalty = 1, .seed = 7},
    {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repetition_penalty = 1, .seed = 8},
    {.temperature = 1.5f,
     .top_p = 0.95f,
     .min_p = 0.001f,
     .top_k = 400,
     .presence_penalty = 0.7f,
     .frequency_penalty = -0.4f,
     .repetition_penalty = 1.2f,
     .logit_bias = biases,
     .num_logit_bias = 4,
     .seed = 9},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static const int32_t prompt[] = {5, 17, 4000, 5, 0}, banned[] = {VOCAB - 1, 3, -1, VOCAB + 5, 17};

/* One row of a kind: smooth, in steps so that many are equal, or steep. */
static void fill_row(float *row, int kind, uint32_t seed)
{
    for (int i = 0; i < VOCAB; i++) {
        float x = bench_random(seed, (uint64_t)i);
        row[i] = kind == 0 ? 12 * x : kind == 1 ? (float)(int)(6 * x) : i % 50 ? -INFINITY : 30 * x;
    }
}

static struct sampler *open_sampler(const struct sampling *s)
{
    struct sampler *sampler;
    struct error err = ERROR_INIT;
    if (sampler_create(&sampler, s, VOCAB, prompt, 5, &err) != 0)
        bench_fatal("sampler", &err);
    return sampler;
}

/* Draws from logits [n, VOCAB] on the device. */
static void draw_there(const float *logits, struct draw *draws, int n)
{
    struct draw *all[MOST];
    for (int i = 0; i < n; i++)
        all[i] = &draws[i];
    cuda.ops->draw(cuda.backend, logits, VOCAB, all, n);
    cuda.ops->finish(cuda.backend, logits, 0);
    bench_check_status(&cuda);
}

/* What was drawn there and here, with whatever was asked for beside the token. */
static void check_draw(const struct draw *there, const struct draw *here, const char *name)
{
    bench_expect(&count, there->id == here->id, name, "the host's token", there->id - here->id);
    if (!here->wants_logprob)
        return;
    bench_expect(&count, there->logprob == here->logprob, name, "log-probability",
                 there->logprob - here->logprob);
    for (int i = 0; i < here->num_top; i++)
        bench_expect(&count,
                     there->top[i].id == here->top[i].id &&
                         there->top[i].logprob == here->top[i].logprob,
                     name, "of the best, number", i);
}

/* All settings beside each other, draw after draw; then each by itself. */
static void check_kind(int kind)
{
    size_t bytes = SETTINGS * VOCAB * sizeof(float);
    float *logits = malloc(bytes);
    float *device = bench_memory(&cuda, bytes, NULL);
    struct draw host[SETTINGS], alone[SETTINGS], draws[SETTINGS];
    for (int i = 0; i < SETTINGS; i++) {
        host[i] = (struct draw){.banned = banned,
                                .num_banned = i % 2 ? 5 : 0,
                                .wants_logprob = i % 3 != 0,
                                .num_top = i % 3 == 1 ? SAMPLER_MOST_TOP : i % 3};
        alone[i] = draws[i] = host[i];
        host[i].sampler = open_sampler(&settings[i]);
        alone[i].sampler = open_sampler(&settings[i]);
        draws[i].sampler = open_sampler(&settings[i]);
    }
    for (int n = 0; n < DRAWS; n++) {
        for (int i = 0; i < SETTINGS; i++)
            fill_row(logits + (size_t)i * VOCAB, kind, (uint32_t)(100 * n + i));
        cuda.ops->copy_in(cuda.backend, device, logits, bytes);
        draw_there(device, draws, SETTINGS);
        for (int i = 0; i < SETTINGS; i++) {
            char name[80];
            snprintf(name, sizeof name, "logits %d, settings %d, draw %d", kind, i, n);
            sampler_draw(&host[i], logits + (size_t)i * VOCAB);
            check_draw(&draws[i], &host[i], name);
            draw_there(device + (size_t)i * VOCAB, &alone[i], 1);
            check_draw(&alone[i], &host[i], name);
        }
    }
    for (int i = 0; i < SETTINGS; i++) {
        sampler_free(host[i].sampler);
        sampler_free(alone[i].sampler);
        sampler_free(draws[i].sampler);
    }
    bench_free(&cuda, device, bytes);
    free(logits);
}

/* Rows from which nothing can be drawn, or one token only, greedy and not. */
static void check_hopeless(void)
{
    enum { ROWS = 3 };
    size_t bytes = ROWS * VOCAB * sizeof(float);
    float *logits = malloc(bytes);
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = i == 4321 ? NAN : 1.0f;
        logits[VOCAB + i] = -INFINITY;
        logits[2 * VOCAB + i] = i == 4999 ? INFINITY : 1.0f;
    }
    float *device = bench_memory(&cuda, bytes, logits);
    static const int32_t ids[ROWS] = {-1, -1, 4999}, nan_ids[ROWS] = {4321, -1, -1};
    for (int s = 0; s < SETTINGS; s++) {
        struct draw draws[ROWS] = {{0}};
        for (int i = 0; i < ROWS; i++)
            draws[i].sampler = open_sampler(&settings[s]);
        draw_there(device, draws, ROWS);
        for (int i = 0; i < ROWS; i++) {
            bench_expect(&count, draws[i].id == ids[i], "hopeless", "row", i);
            bench_expect(&count, draws[i].nan_id == nan_ids[i], "hopeless", "NaN", i);
            sampler_free(draws[i].sampler);
        }
    }
    bench_free(&cuda, device, bytes);
    free(logits);
}

/* ---- in steps ---- */

enum { TEXTS = 5, ROUNDS = 10, ROOM = 40 };

/* Texts of an engine and the draw of each one's next token. */
struct texts {
    struct engine *engine;
    struct state *states[TEXTS];
    struct draw draws[TEXTS];
    int32_t tokens[TEXTS];
    struct span spans[TEXTS];
};

static void open_texts(struct texts *texts)
{
    const struct engine_options options = {.device = "cuda",
                                           .weights = WEIGHTS_F32,
                                           .max_step_tokens = 32,
                                           .max_step_logits = 16,
                                           .poison = true,
                                           .state_memory_bytes = (size_t)16 << 20};
    struct error err = ERROR_INIT;
    if (engine_open(&texts->engine, REGLA_SOURCE_DIR "/tests/golden/hybrid_regla", &options,
                    &err) != 0)
        bench_fatal("engine", &err);
    for (int t = 0; t < TEXTS; t++) {
        if (state_create(&texts->states[t], texts->engine, ROOM, &err) != 0)
            bench_fatal("state", &err);
        struct draw *draw = &texts->draws[t];
        *draw = (struct draw){.wants_logprob = true, .num_top = t};
        if (sampler_create(&draw->sampler, &settings[t], engine_info(texts->engine)->vocab_size,
                           NULL, 0, &err) != 0)
            bench_fatal("sampler", &err);
        texts->tokens[t] = 3 + 7 * t;
    }
}

static void close_texts(struct texts *texts)
{
    for (int t = 0; t < TEXTS; t++) {
        state_free(texts->states[t]);
        sampler_free(texts->draws[t].sampler);
    }
    engine_close(texts->engine);
}

/* Feeds each text its token, and text 0 two of them if the step is to be mixed: there, too, is one
 * whose logits come back. Bit t of `drawn`: the text draws. */
static void step_texts(struct texts *texts, int number, bool mixed, unsigned drawn)
{
    struct error err = ERROR_INIT;
    int32_t two[2] = {texts->tokens[0], 11};
    for (int t = 0; t < number; t++) {
        bool draws = (drawn >> t & 1) != 0;
        texts->spans[t] = (struct span){.state = texts->states[t],
                                        .tokens = mixed && t == 0 ? two : &texts->tokens[t],
                                        .num_tokens = 1 + (mixed && t == 0),
                                        .num_logits = !draws,
                                        .draw = draws ? &texts->draws[t] : NULL};
    }
    if (engine_step(texts->engine, texts->spans, number, &err) != 0)
        bench_fatal("engine_step", &err);
}

/* Decode steps come from graphs from the third of a kind on, behind which the draws come. */
static void check_steps(void)
{
    static const int numbers[ROUNDS] = {4, 3, 4, 5, 4, 3, 5, 4, 5, 3};
    struct texts there, here;
    open_texts(&there);
    open_texts(&here);
    for (int round = 0; round < ROUNDS; round++) {
        bool mixed = round % 4 == 3;
        unsigned drawn = mixed ? ~2u : ~0u; /* text 1 is drawn here in both */
        step_texts(&there, numbers[round], mixed, drawn);
        step_texts(&here, numbers[round], mixed, 0);
        for (int t = 0; t < numbers[round]; t++) {
            char name[80];
            snprintf(name, sizeof name, "step %d, text %d", round, t);
            sampler_draw(&here.draws[t], here.spans[t].logits);
            if ((drawn >> t & 1) == 0)
                sampler_draw(&there.draws[t], there.spans[t].logits);
            bench_expect(&count, here.draws[t].id >= 0, name, "a token", here.draws[t].id);
            check_draw(&there.draws[t], &here.draws[t], name);
            there.tokens[t] = here.tokens[t] = here.draws[t].id;
        }
    }
    close_texts(&there);
    close_texts(&here);
}

int main(void)
{
    bench_open(&cpu, &cuda, MOST);
    for (int kind = 0; kind < 3; kind++)
        check_kind(kind);
    check_hopeless();
    check_steps();
    cpu.ops->close(cpu.backend);
    cuda.ops->close(cuda.backend);
    printf("sampling: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
