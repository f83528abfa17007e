/* Drawing on a device: the host's tokens and log-probabilities, whatever else is drawn beside. */
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
    cuda.ops->send(cuda.backend, logits, 0);
    cuda.ops->receive(cuda.backend);
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

int main(void)
{
    bench_open(&cpu, &cuda, MOST);
    for (int kind = 0; kind < 3; kind++)
        check_kind(kind);
    check_hopeless();
    cpu.ops->close(cpu.backend);
    cuda.ops->close(cuda.backend);
    printf("sampling: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
