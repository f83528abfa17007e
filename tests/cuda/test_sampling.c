/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing on a device: the host's tokens and log-probabilities, whatever else is drawn beside. */
#include "engine/ops/sampler.h"
#include "tests/cuda/bench.h"

/* No vocabulary is a multiple of what threads read at a time; the largest is more than one batch of
 * a block. */
enum { VOCAB = 5003, LARGEST = 17003, DRAWS = 3, MOST = 32, KINDS = 7 };

static struct bench_device cpu, cuda;
static struct bench_count count;

static const int32_t some[] = {4999, 7, 9, 250, 4000, 3, 7};
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
    {.temperature = 1, .top_p = 0.99999994f, .repetition_penalty = 1, .seed = 10},
    {.temperature = 50, .top_p = 0.7f, .repetition_penalty = 1, .seed = 11},
    {.temperature = 1e-3f, .top_p = 0.999f, .min_p = 1, .repetition_penalty = 1, .seed = 12},
    {.temperature = 1, .top_p = 1e-6f, .top_k = 50, .repetition_penalty = 1, .seed = 13},
    {.temperature = 1, .top_p = 1, .top_k = VOCAB - 1, .repetition_penalty = 1, .seed = 14},
    {.temperature = 1, .top_p = 1, .typical_p = 0.3f, .repetition_penalty = 1, .seed = 15},
    {.temperature = 2,
     .top_p = 0.9f,
     .min_p = 0.2f,
     .top_k = 900,
     .typical_p = 0.95f,
     .repetition_penalty = 1,
     .seed = 16},
    {.temperature = 0.2f, .top_p = 1, .typical_p = 1e-7f, .repetition_penalty = 1, .seed = 17},
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .allowed = some, .num_allowed = 7},
    {.temperature = 1,
     .top_p = 1,
     .typical_p = 0.9f,
     .repetition_penalty = 1.2f,
     .allowed = some,
     .num_allowed = 6,
     .logit_bias = biases,
     .num_logit_bias = 4,
     .seed = 18},
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .masked = true},
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 19, .masked = true},
    {.temperature = 2,
     .top_p = 0.9f,
     .min_p = 0.01f,
     .top_k = 300,
     .typical_p = 0.95f,
     .presence_penalty = 0.7f,
     .repetition_penalty = 1.2f,
     .allowed = some,
     .num_allowed = 7,
     .logit_bias = biases,
     .num_logit_bias = 4,
     .seed = 20,
     .masked = true},
};
static const int32_t prompt[] = {5, 17, 4000, 5, 0}, banned[] = {VOCAB - 1, 3, -1, VOCAB + 5, 17};
enum { SETTINGS = sizeof settings / sizeof *settings, BANNED = sizeof banned / sizeof *banned };

/* One logit of a row: smooth, in steps so that many are equal, steep, all equal, one or two by
 * themselves, in few threads of a block, or below zero and far apart. */
static float logit_of(int kind, int i, float x)
{
    switch (kind) {
    case 0:
        return 12 * x;
    case 1:
        return (float)(int)(6 * x);
    case 2:
        return i % 50 ? -INFINITY : 30 * x;
    case 3:
        return 2.5f;
    case 4:
        return i == 0 || i == 4001 ? 1 : -INFINITY;
    case 5:
        return i % 1024 < 3 ? 10 + x : x;
    default:
        return -expf(30 * x);
    }
}

static void fill_row(float *row, int vocab, int kind, uint32_t seed)
{
    for (int i = 0; i < vocab; i++)
        row[i] = logit_of(kind, i, bench_random(seed, (uint64_t)i));
}

/* Words with all tokens, with none, and with some. `some` may come, unless they are banned. */
static void fill_mask(uint32_t *mask, int vocab)
{
    for (int i = 0; i < (vocab + 31) / 32; i++)
        mask[i] = i % 3 == 0 ? UINT32_MAX : i % 3 == 1 ? 0 : 0x6000B005u * (uint32_t)(i + 1);
    for (int i = 0; i < 7; i++)
        mask[some[i] % vocab / 32] |= UINT32_C(1) << some[i] % vocab % 32;
}

/* For a vocabulary that may lack some of the ids. */
static struct sampler *open_sampler(const struct sampling *s, int vocab)
{
    struct sampler *sampler;
    struct sampling here = *s;
    struct logit_bias here_biases[4];
    int32_t here_prompt[5], here_allowed[7];
    struct error err = ERROR_INIT;
    for (int i = 0; i < 4; i++)
        here_biases[i] = (struct logit_bias){biases[i].id % vocab, biases[i].bias};
    for (int i = 0; i < 5; i++)
        here_prompt[i] = prompt[i] % vocab;
    for (int i = 0; i < 7; i++)
        here_allowed[i] = some[i] % vocab;
    if (s->num_allowed > 0)
        here.allowed = here_allowed;
    if (s->num_allowed > (size_t)vocab)
        here.num_allowed = (size_t)vocab;
    if (s->num_logit_bias > 0)
        here.logit_bias = here_biases;
    if (s->num_logit_bias > (size_t)vocab)
        here.num_logit_bias = (size_t)vocab;
    if (sampler_create(&sampler, &here, vocab, here_prompt, 5, &err) != 0)
        bench_fatal("sampler", &err);
    return sampler;
}

/* Draws from logits [n, vocab] on the device, in a step without operations. */
static void draw_there(const float *logits, int vocab, struct draw *draws, int n)
{
    static const int32_t token = 0;
    static const int64_t position = 0;
    static const struct batch_span span = {.num_rows = 1};
    static const struct batch batch = {
        .num_rows = 1, .num_spans = 1, .tokens = &token, .positions = &position, .spans = &span};
    struct draw *all[MOST];
    for (int i = 0; i < n; i++)
        all[i] = &draws[i];
    cuda.ops->begin(cuda.backend, &batch);
    cuda.ops->draw(cuda.backend, logits, vocab, all, n);
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

/* All settings beside each other, draw after draw; then each by itself. Some may not draw `ids`,
 * with which all end. */
static void check_kind(int kind, int vocab, int num_draws, const int32_t *ids, size_t num_ids)
{
    size_t bytes = SETTINGS * (size_t)vocab * sizeof(float);
    float *logits = malloc(bytes);
    float *device = bench_memory(&cuda, bytes, NULL);
    struct draw host[SETTINGS], alone[SETTINGS], draws[SETTINGS];
    int32_t wanted[SAMPLER_MOST_WANTED];
    uint32_t mask[(LARGEST + 31) / 32];
    for (int i = 0; i < SAMPLER_MOST_WANTED; i++)
        wanted[i] = (i * 37 + 11) % vocab;
    fill_mask(mask, vocab);
    for (int i = 0; i < SETTINGS; i++) {
        host[i] = (struct draw){.banned = ids,
                                .num_banned = i % 2 ? num_ids : 0,
                                .ends = ids,
                                .num_ends = num_ids,
                                .mask = mask,
                                .wants_logprob = i % 3 != 0,
                                .num_top = i % 3 == 1 ? SAMPLER_MOST_TOP : i % 3,
                                .wanted = i % 4 == 3 ? wanted : NULL};
        if (i % 8 == 7)
            host[i].num_top = SAMPLER_MOST_WANTED;
        alone[i] = draws[i] = host[i];
        host[i].sampler = open_sampler(&settings[i], vocab);
        alone[i].sampler = open_sampler(&settings[i], vocab);
        draws[i].sampler = open_sampler(&settings[i], vocab);
    }
    for (int n = 0; n < num_draws; n++) {
        for (int i = 0; i < SETTINGS; i++)
            fill_row(logits + (size_t)i * (size_t)vocab, vocab, kind, (uint32_t)(100 * n + i));
        cuda.ops->copy_in(cuda.backend, device, logits, bytes);
        draw_there(device, vocab, draws, SETTINGS);
        for (int i = 0; i < SETTINGS; i++) {
            char name[80];
            snprintf(name, sizeof name, "%d logits %d, settings %d, draw %d", vocab, kind, i, n);
            sampler_draw(&host[i], logits + (size_t)i * (size_t)vocab);
            check_draw(&draws[i], &host[i], name);
            draw_there(device + (size_t)i * (size_t)vocab, vocab, &alone[i], 1);
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
            draws[i].sampler = open_sampler(&settings[s], VOCAB);
        draw_there(device, VOCAB, draws, ROWS);
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
    struct ops_limits limits = bench_limits(MOST);
    limits.vocab_size = LARGEST;
    bench_open(&cpu, &cuda, &limits);
    for (int kind = 0; kind < KINDS; kind++)
        check_kind(kind, VOCAB, kind < 3 ? DRAWS : 1, banned, BANNED);
    check_kind(0, 1, 1, banned, BANNED);
    check_kind(1, 33, 1, banned, BANNED);
    check_kind(0, 1023, 1, banned, BANNED);
    check_kind(0, LARGEST, 1, banned, BANNED);
    check_kind(1, LARGEST, 1, banned, BANNED);
    /* lists of 1.6 MB in all, so that there is not room for all at once */
    static int32_t many[LARGEST - 3];
    for (int i = 0; i < LARGEST - 3; i++)
        many[i] = i;
    check_kind(0, LARGEST, 1, many, LARGEST - 3);
    check_hopeless();
    cpu.ops->close(cpu.backend);
    cuda.ops->close(cuda.backend);
    printf("sampling: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
