/* Drawing on a device: the host's tokens and log-probabilities, whatever else is drawn beside. */
#include "engine/cuda/sampling.h"
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

static void draw(const float *device_logits, struct sample *samples, int n)
{
    struct error err = ERROR_INIT;
    if (cuda_sample(cuda.backend, device_logits, VOCAB, samples, n, &err) != 0)
        bench_fatal("cuda_sample", &err);
}

static void check_logprobs(const struct sample *sample, const float *row, const char *name)
{
    struct token_logprob top[SAMPLE_MOST_TOP];
    float of = logprobs_top(row, VOCAB, sample->id, sample->num_top, top);
    bench_expect(&count, of == sample->logprob, name, "log-probability", sample->logprob - of);
    for (int i = 0; i < sample->num_top; i++)
        bench_expect(&count,
                     top[i].id == sample->top[i].id && top[i].logprob == sample->top[i].logprob,
                     name, "of the best, number", i);
}

/* All settings beside each other, draw after draw; then each by itself. */
static void check_kind(int kind)
{
    size_t bytes = SETTINGS * VOCAB * sizeof(float);
    float *logits = malloc(bytes);
    float *device = bench_memory(&cuda, bytes, NULL);
    struct sampler *hosts[SETTINGS], *alone[SETTINGS];
    struct sample samples[SETTINGS];
    memset(samples, 0, sizeof samples);
    for (int i = 0; i < SETTINGS; i++) {
        hosts[i] = open_sampler(&settings[i]);
        alone[i] = open_sampler(&settings[i]);
        samples[i].sampler = open_sampler(&settings[i]);
        samples[i].banned = banned;
        samples[i].num_banned = i % 2 ? 5 : 0;
        samples[i].wants_logprob = i % 3 != 0;
        samples[i].num_top = i % 3 == 1 ? SAMPLE_MOST_TOP : i % 3;
    }
    for (int n = 0; n < DRAWS; n++) {
        for (int i = 0; i < SETTINGS; i++)
            fill_row(logits + (size_t)i * VOCAB, kind, (uint32_t)(100 * n + i));
        cuda.ops->copy_in(cuda.backend, device, logits, bytes);
        draw(device, samples, SETTINGS);
        for (int i = 0; i < SETTINGS; i++) {
            char name[80];
            const float *row = logits + (size_t)i * VOCAB;
            snprintf(name, sizeof name, "logits %d, settings %d, draw %d", kind, i, n);
            int32_t id = sampler_pick(hosts[i], row, banned, samples[i].num_banned, NULL);
            bench_expect(&count, samples[i].id == id, name, "the host's token", samples[i].id - id);
            if (samples[i].wants_logprob)
                check_logprobs(&samples[i], row, name);
            struct sample single = samples[i];
            single.sampler = alone[i];
            draw(device + (size_t)i * VOCAB, &single, 1);
            bench_expect(&count, single.id == samples[i].id, name, "the same alone", single.id);
        }
    }
    for (int i = 0; i < SETTINGS; i++) {
        sampler_free(hosts[i]);
        sampler_free(alone[i]);
        sampler_free(samples[i].sampler);
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
    static const int32_t expected[ROWS] = {-1, -1, 4999};
    for (int s = 0; s < SETTINGS; s++) {
        struct sample samples[ROWS];
        memset(samples, 0, sizeof samples);
        for (int i = 0; i < ROWS; i++)
            samples[i].sampler = open_sampler(&settings[s]);
        draw(device, samples, ROWS);
        for (int i = 0; i < ROWS; i++) {
            bench_expect(&count, samples[i].id == expected[i], "hopeless", "row", i);
            sampler_free(samples[i].sampler);
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
