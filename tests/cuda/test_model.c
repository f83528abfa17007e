/* SPDX-License-Identifier: Apache-2.0 */
/* The shipped model on a CUDA device beside itself on the CPU, in every format of the weights and,
 * on the device, with rounded activations: the log-probabilities of the whole vocabulary after each
 * token of a text, and its perplexity.
 *
 * Usage: cuda_test_model [FILE [TOKENS]]; without them, the beginnings of sentences that train/
 * samples with (where a device is emulated, not all). Status: 0, 1 when something is too far apart,
 * 77 without a device. */
#include "engine/cuda/backend.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/ops/sampler.h"
#include "lib/base/file.h"
#include "lib/text/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MODEL REGLA_SOURCE_DIR "/models/regla-books-7.7m"
#define TEXT REGLA_SOURCE_DIR "/train/prompts.txt"

enum { STEP = 100, MOST_BYTES = 1 << 28 };
#ifdef REGLA_CUDA_EMULATION
enum { TOKENS = 64 };
#else
enum { TOKENS = 100000 };
#endif

/* Of the device's model, and the most that log-probabilities and perplexity, as a share, may
 * differ. f32 weights mean f32 arithmetic; rounded activations are 9 bits of what the CPU
 * multiplies. */
static const struct model_case {
    enum weight_format weights;
    enum activation_format activations;
    double most_difference, most_of_perplexity;
} cases[] = {
    {WEIGHTS_F32, ACTIVATIONS_F32, 1e-3, 2e-3},   {WEIGHTS_BF16, ACTIVATIONS_F32, 2e-2, 2e-3},
    {WEIGHTS_F16, ACTIVATIONS_F32, 2e-2, 2e-3},   {WEIGHTS_Q8, ACTIVATIONS_F32, 2e-2, 2e-3},
    {WEIGHTS_BF16, ACTIVATIONS_16BIT, 0.2, 5e-3}, {WEIGHTS_Q8, ACTIVATIONS_16BIT, 0.2, 5e-3},
    {WEIGHTS_Q4, ACTIVATIONS_F32, 2e-2, 2e-3}};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void must(int result, const struct error *err)
{
    if (result != 0) {
        fprintf(stderr, "cuda-model: %s\n", err->message);
        exit(1);
    }
}

static void read_tokens(struct token_list *out, const char *path, size_t most)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    char *text;
    size_t length;
    must(tokenizer_open(&tokenizer, MODEL "/tokenizer.json", &err), &err);
    must(file_read(path, MOST_BYTES, &text, &length, &err), &err);
    must(tokenizer_encode(tokenizer, text, length, true, out, &err), &err);
    if (out->count > most)
        out->count = most;
    free(text);
    tokenizer_free(tokenizer);
}

/* The model on a device, and a text there. */
struct side {
    struct engine *engine;
    struct state *state;
    struct span span;
    double nll;
};

static void open_side(struct side *side, const char *device, enum weight_format weights,
                      enum activation_format activations, size_t tokens)
{
    struct error err = ERROR_INIT;
    const struct engine_options options = {.device = device,
                                           .weights = weights,
                                           .activations = activations,
                                           .max_step_tokens = STEP,
                                           .max_step_logits = STEP,
                                           .poison = true,
                                           .state_memory_bytes =
                                               ((size_t)16 << 20) + tokens * 8192};
    *side = (struct side){.nll = 0};
    must(engine_open(&side->engine, MODEL, &options, &err), &err);
    must(state_create(&side->state, side->engine, (int64_t)tokens, &err), &err);
}

static void close_side(struct side *side)
{
    state_free(side->state);
    engine_close(side->engine);
}

static void step(struct side *side, const struct token_list *text, size_t first, int count)
{
    struct error err = ERROR_INIT;
    side->span = (struct span){.state = side->state,
                               .tokens = text->ids + first,
                               .num_tokens = count,
                               .num_logits = count};
    must(engine_step(side->engine, &side->span, 1, &err), &err);
}

struct distance {
    double most, sum;
    size_t count;
};

static void compare(struct distance *distance, const struct span *a, const struct span *b,
                    int32_t vocab)
{
    for (int i = 0; i < a->num_logits; i++) {
        const float *x = a->logits + (size_t)i * (size_t)vocab;
        const float *y = b->logits + (size_t)i * (size_t)vocab;
        double to_x = (double)logprob_of(x, vocab, 0) - (double)x[0];
        double to_y = (double)logprob_of(y, vocab, 0) - (double)y[0];
        for (int32_t id = 0; id < vocab; id++) {
            double d = fabs((double)x[id] + to_x - (double)y[id] - to_y);
            if (!(d <= distance->most))
                distance->most = isnan(d) ? INFINITY : d;
            distance->sum += d;
            distance->count++;
        }
    }
}

/* Negative log-likelihood of what comes after each of the span's tokens. */
static void add_loss(struct side *side, const struct token_list *text, size_t first, int32_t vocab)
{
    for (size_t i = 0; i < (size_t)side->span.num_logits && first + i + 1 < text->count; i++)
        side->nll -= (double)logprob_of(side->span.logits + i * (size_t)vocab, vocab,
                                        text->ids[first + i + 1]);
}

/* Prints a line; whether the two are near enough to each other. */
static bool check(const struct model_case *c, const struct token_list *text)
{
    struct side cpu, cuda;
    struct distance distance = {0};
    open_side(&cpu, "cpu", c->weights, ACTIVATIONS_F32, text->count);
    open_side(&cuda, "cuda", c->weights, c->activations, text->count);
    int32_t vocab = engine_info(cpu.engine)->vocab_size;
    for (size_t first = 0; first < text->count; first += STEP) {
        int count = text->count - first < STEP ? (int)(text->count - first) : (int)STEP;
        step(&cpu, text, first, count);
        step(&cuda, text, first, count);
        compare(&distance, &cpu.span, &cuda.span, vocab);
        add_loss(&cpu, text, first, vocab);
        add_loss(&cuda, text, first, vocab);
    }
    double tokens = (double)text->count - 1;
    double ratio = exp((cuda.nll - cpu.nll) / tokens);
    printf("%-4s KV %-3s activations %-5s %zu tokens: log-probabilities differ by %.2e at most, "
           "%.2e on average; "
           "perplexity %.4f, of the CPU %.4f, ratio - 1: %+.2e\n",
           weight_format_name(c->weights), kv_format_name(engine_info(cuda.engine)->kv),
           activation_format_name(c->activations), text->count, distance.most,
           distance.sum / (double)distance.count, exp(cuda.nll / tokens), exp(cpu.nll / tokens),
           ratio - 1);
    close_side(&cpu);
    close_side(&cuda);
    return distance.most <= c->most_difference && fabs(ratio - 1) <= c->most_of_perplexity;
}

int main(int argc, char **argv)
{
    struct token_list text = {0};
    int failed = 0;
    if (cuda_devices() == 0) {
        printf("cuda-model: skipped: no CUDA device\n");
        return 77;
    }
    read_tokens(&text, argc > 1 ? argv[1] : TEXT,
                argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : (size_t)TOKENS);
    if (text.count < 2) {
        fprintf(stderr, "cuda-model: expected two tokens at least, got %zu\n", text.count);
        return 1;
    }
    for (int i = 0; i < NUM_CASES; i++)
        failed += !check(&cases[i], &text);
    token_list_clear(&text);
    printf("cuda-model: %d passed, %d failed\n", NUM_CASES - failed, failed);
    return failed > 0;
}
