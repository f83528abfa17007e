/* SPDX-License-Identifier: Apache-2.0 */
/* The engine on a CUDA device beside itself on the CPU: states that go from one to the other,
 * decode steps from graphs, forks, and what it says where something is missing. Status 77: there is
 * no device. */
#include "engine/cuda/backend.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/model/preset.h"
#include "engine/ops/profile.h"
#include "engine/ops/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN REGLA_SOURCE_DIR "/tests/golden/"

enum { TEXTS = 8, PROMPT = 58, STEPS = 12, ROOM = 128 };

#ifdef REGLA_CUDA_EMULATION
void emulation_memory(size_t *free_bytes, size_t *total_bytes);
#else
/* Others may use the device. */
static void emulation_memory(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = 0;
}
#endif

static int passed, failed;

#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (condition) {                                                    \
            passed++;                                                       \
        } else {                                                            \
            failed++;                                                       \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fprintf(stderr, "\n");                                          \
        }                                                                   \
    } while (0)

static void must(int result, const struct error *err)
{
    if (result != 0) {
        fprintf(stderr, "cuda-engine: %s\n", err->message);
        exit(1);
    }
}

static struct engine *open_engine(const char *model, const char *device, enum kv_format kv)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    char folder[512];
    snprintf(folder, sizeof folder, GOLDEN "%s", model);
    const struct engine_options options = {.device = device,
                                           .weights = WEIGHTS_F32,
                                           .kv = kv,
                                           .threads = 1,
                                           .max_step_tokens = 96,
                                           .max_step_logits = 16,
                                           .poison = true,
                                           .state_memory_bytes = (size_t)16 << 20};
    must(engine_open(&engine, folder, &options, &err), &err);
    return engine;
}

/* Token number i of text t. */
static int32_t token(const struct engine *engine, int t, int64_t i)
{
    return (int32_t)((7 * i * (t + 1) + 3 * t + i / 5) % engine_info(engine)->vocab_size);
}

/* The next `count` tokens of a text by itself; the logits after the last into out, if not NULL. */
static void feed(struct engine *engine, struct state *state, int text, int count, float *out)
{
    struct error err = ERROR_INIT;
    int32_t tokens[PROMPT];
    for (int i = 0; i < count; i++)
        tokens[i] = token(engine, text, state_position(state) + i);
    struct span span = {
        .state = state, .tokens = tokens, .num_tokens = count, .num_logits = out != NULL};
    must(engine_step(engine, &span, 1, &err), &err);
    if (out != NULL)
        memcpy(out, span.logits, (size_t)engine_info(engine)->vocab_size * sizeof *out);
}

static struct state *new_text(struct engine *engine, int text, int tokens)
{
    struct error err = ERROR_INIT;
    struct state *state;
    must(state_create(&state, engine, ROOM, &err), &err);
    feed(engine, state, text, tokens, NULL);
    return state;
}

static float difference(const float *a, const float *b, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= most))
            most = fabsf(a[i] - b[i]);
    return most;
}

/* A text that began on one device and goes on, as the same bytes, on the other. */
static void travels(const char *model, const char *from, const char *to, enum kv_format kv)
{
    struct error err = ERROR_INIT;
    struct engine *here = open_engine(model, from, kv), *there = open_engine(model, to, kv);
    int vocab = engine_info(here)->vocab_size;
    float *stayed = malloc((size_t)vocab * sizeof *stayed);
    float *went = malloc((size_t)vocab * sizeof *went);
    struct state *state = new_text(here, 0, PROMPT), *moved;
    size_t bytes = state_image_bytes(here, PROMPT);
    char *image = calloc(2, bytes);
    CHECK(bytes == state_image_bytes(there, PROMPT), "%s", model);
    must(state_save(state, image, &err), &err);
    must(state_restore(&moved, there, image, PROMPT, ROOM, &err), &err);
    must(state_save(moved, image + bytes, &err), &err);
    CHECK(memcmp(image, image + bytes, bytes) == 0, "%s from %s to %s", model, from, to);
    float most = 0;
    for (int i = 0; i < STEPS; i++) {
        feed(here, state, 0, 1, stayed);
        feed(there, moved, 0, 1, went);
        most = fmaxf(most, difference(stayed, went, vocab));
    }
    CHECK(most < 1e-3f, "%s from %s to %s: logits differ by %g", model, from, to, (double)most);
    state_free(state);
    state_free(moved);
    engine_close(here);
    engine_close(there);
    free(image);
    free(stayed);
    free(went);
}

/* One token each of the first `count` texts, together. */
static void step_together(struct engine *engine, struct state **states, int count, float *out)
{
    struct error err = ERROR_INIT;
    struct span spans[TEXTS];
    int32_t tokens[TEXTS];
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    for (int t = 0; t < count; t++) {
        tokens[t] = token(engine, t, state_position(states[t]));
        spans[t] = (struct span){
            .state = states[t], .tokens = &tokens[t], .num_tokens = 1, .num_logits = 1};
    }
    must(engine_step(engine, spans, count, &err), &err);
    for (int t = 0; t < count; t++)
        memcpy(out + (size_t)t * vocab, spans[t].logits, vocab * sizeof *out);
}

/* Decode steps of changing numbers of texts come from graphs, padded; the same texts one by one in
 * an engine that is profiled do not. They pass position 64, where another page, and another graph,
 * begins. */
static void graphs_change_nothing(const char *model)
{
    static const int counts[] = {1, 3, 4, 8, 5, 3, 2, 7, 3, 1, 6, 8};
    struct engine *graphs = open_engine(model, "cuda", KV_F32);
    struct engine *plain = open_engine(model, "cuda", KV_F32);
    double seconds[PROFILE_SECONDS] = {0};
    engine_profile(plain, seconds);
    size_t free_before, free_after, total;
    emulation_memory(&free_before, &total);
    size_t vocab = (size_t)engine_info(plain)->vocab_size;
    float *together = malloc(TEXTS * vocab * sizeof *together);
    float *alone = malloc(vocab * sizeof *alone);
    struct state *a[TEXTS], *b[TEXTS];
    for (int t = 0; t < TEXTS; t++) {
        a[t] = new_text(graphs, t, PROMPT - t % 3);
        b[t] = new_text(plain, t, PROMPT - t % 3);
    }
    bool same = true;
    for (int round = 0; round < 3 * STEPS; round++) {
        int count = counts[round % STEPS];
        step_together(graphs, a, count, together);
        for (int t = 0; t < count; t++) {
            feed(plain, b[t], t, 1, alone);
            same &= memcmp(alone, together + (size_t)t * vocab, vocab * sizeof *alone) == 0;
        }
    }
    CHECK(same, "%s", model);
    emulation_memory(&free_after, &total);
    CHECK(free_before == free_after, "%s: steps took %zu bytes of the device", model,
          free_before - free_after);
    CHECK(seconds[PROFILE_PRODUCT] > 0, "%s", model);
    for (int t = 0; t < TEXTS; t++) {
        state_free(a[t]);
        state_free(b[t]);
    }
    engine_close(graphs);
    engine_close(plain);
    free(together);
    free(alone);
}

/* A fork goes on as what it was forked from, and neither touches the other. */
static void forks(const char *model)
{
    struct error err = ERROR_INIT;
    struct engine *engine = open_engine(model, "cuda", KV_F16);
    int vocab = engine_info(engine)->vocab_size;
    float *logits = malloc(3 * (size_t)vocab * sizeof *logits);
    struct state *first = new_text(engine, 0, PROMPT), *fork, *last;
    must(state_clone(&fork, first, ROOM, &err), &err);
    must(state_clone(&last, first, ROOM, &err), &err);
    feed(engine, fork, 3, 30, NULL); /* other tokens */
    feed(engine, first, 0, STEPS, logits);
    feed(engine, last, 0, STEPS, logits + vocab);
    CHECK(memcmp(logits, logits + vocab, (size_t)vocab * sizeof *logits) == 0, "%s", model);
    struct state *again = new_text(engine, 0, PROMPT);
    feed(engine, again, 0, STEPS, logits + 2 * vocab);
    CHECK(memcmp(logits, logits + 2 * vocab, (size_t)vocab * sizeof *logits) == 0, "%s", model);
    state_free(first);
    state_free(fork);
    state_free(last);
    state_free(again);
    engine_close(engine);
    free(logits);
}

#ifdef REGLA_CUDA_EMULATION
long emulation_kernels(void);
long emulation_graphs(void);
long emulation_copies(void);

/* What a decode step of one text launches, where no page begins: it costs a time for each kernel.
 */
static void launches(const char *model, int expected)
{
    struct engine *engine = open_engine(model, "cuda", KV_F32);
    float *logits = malloc((size_t)engine_info(engine)->vocab_size * sizeof *logits);
    struct state *state = new_text(engine, 0, 40);
    long counts[STEPS];
    for (int i = 0; i < STEPS; i++) {
        long before = emulation_kernels();
        feed(engine, state, 0, 1, logits);
        counts[i] = emulation_kernels() - before;
    }
    for (int i = 0; i < STEPS; i++)
        CHECK(counts[i] == expected, "%s: %ld kernels in step %d, expected %d", model, counts[i], i,
              expected);
    state_free(state);
    engine_close(engine);
    free(logits);
}

/* What a step launches, and what it copies to or from the device, with these switches off: one
 * text, each of whose steps begins before the last has been looked at. */
static void chain(const char *model, const char *without, long kernels, long copies)
{
    setenv("REGLA_CUDA_WITHOUT", without, 1);
    struct engine *engine = open_engine(model, "cuda", KV_F32);
    const struct sampling how = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    struct error err = ERROR_INIT;
    struct state *state = new_text(engine, 0, 30);
    struct draw draws[2] = {{0}};
    struct span spans[2];
    struct sampler *sampler;
    int32_t first = 3;
    must(sampler_create(&sampler, &how, engine_info(engine)->vocab_size, NULL, 0, &err), &err);
    for (int i = 0; i <= STEPS; i++) {
        long kernels_before = emulation_kernels(), copies_before = emulation_copies();
        struct draw *draw = &draws[i % 2];
        draw->sampler = sampler;
        spans[i % 2] = (struct span){
            .state = state, .tokens = i == 0 ? &first : NULL, .num_tokens = 1, .draw = draw};
        must(engine_submit(engine, &spans[i % 2], 1, &err), &err);
        if (i > 0) /* runs the step before */
            must(engine_collect(engine, &err), &err);
        long ran = emulation_kernels() - kernels_before,
             copied = emulation_copies() - copies_before;
        CHECK(i < 2 || (ran == kernels && copied == copies),
              "%s without \"%s\": %ld kernels and %ld copies in step %d, expected %ld and %ld",
              model, without, ran, copied, i, kernels, copies);
    }
    must(engine_collect(engine, &err), &err);
    sampler_free(sampler);
    state_free(state);
    engine_close(engine);
    unsetenv("REGLA_CUDA_WITHOUT");
}

/* Graphs that one text's steps to `end` make: the first step of a kind is without one, and each
 * costs the time that it takes to make it. */
static void recordings(const char *model, const char *without, int end, long expected)
{
    setenv("REGLA_CUDA_WITHOUT", without, 1);
    struct engine *engine = open_engine(model, "cuda", KV_F32);
    float *logits = malloc((size_t)engine_info(engine)->vocab_size * sizeof *logits);
    struct error err = ERROR_INIT;
    struct state *state;
    must(state_create(&state, engine, end, &err), &err);
    long before = emulation_graphs();
    while (state_position(state) < end)
        feed(engine, state, 0, 1, logits);
    long made = emulation_graphs() - before;
    CHECK(made == expected, "%s: %ld graphs up to %d, expected %ld", model, made, end, expected);
    state_free(state);
    engine_close(engine);
    free(logits);
    unsetenv("REGLA_CUDA_WITHOUT");
}
#endif

static void expect_error(const char *device, size_t device_memory, enum error_code code,
                         const char *words)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    const struct engine_options options = {.device = device, .device_memory_bytes = device_memory};
    int result = engine_open(&engine, GOLDEN "hybrid_regla", &options, &err);
    CHECK(result == -1 && err.code == code && strstr(err.message, words) != NULL,
          "expected code %d, \"%s\", got %d, \"%s\"", code, words, err.code, err.message);
}

/* One softmax layer with one head of a size. */
#define CONFIG                                                                                \
    "{\"model_type\": \"regla\", \"hidden_size\": 64, \"num_attention_heads\": 1,"            \
    " \"intermediate_size\": 64, \"vocab_size\": 64, \"num_hidden_layers\": 1,"               \
    " \"hidden_act\": \"gelu\", \"norm_type\": \"layernorm\", \"norm_eps\": 1e-05,"           \
    " \"parallel_residual\": false, \"tie_word_embeddings\": false, \"bos_token_id\": null, " \
    "\"eos_token_id\": null,"                                                                 \
    " \"position_embedding\": \"none\", \"embedding_norm\": false, \"layer_types\": [\"m\"]," \
    " \"mixers\": {\"m\": {\"kind\": \"softmax\"}}, \"shapes\": {\"head_dim\": %d,"           \
    " \"value_dim\": %d, \"features\": 64, \"glu\": false, \"bias\": false}}"

static struct engine *open_hidden(void)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    const struct engine_options options = {.device = "cuda",
                                           .weights = WEIGHTS_F32,
                                           .kv = KV_F32,
                                           .threads = 1,
                                           .max_step_tokens = 96,
                                           .poison = true,
                                           .hidden = true,
                                           .state_memory_bytes = (size_t)16 << 20};
    must(engine_open(&engine, GOLDEN "hybrid_regla", &options, &err), &err);
    return engine;
}

/* Graphs of decode steps have no hidden rows: a step that wants some is launched. */
static void hidden_rows_of_decodes(void)
{
    struct error err = ERROR_INIT;
    struct engine *engine = open_hidden();
    const size_t bytes = (size_t)engine_model(engine)->hidden_size * sizeof(float);
    float *logits = malloc((size_t)engine_info(engine)->vocab_size * sizeof *logits);
    float *hidden = malloc(bytes);
    struct state *state = new_text(engine, 0, 5), *whole;
    int32_t tokens[16];
    for (int i = 0; i < 5; i++)
        step_together(engine, &state, 1, logits);
    for (int i = 0; i <= 10; i++)
        tokens[i] = token(engine, 0, i);
    struct span span = {
        .state = state, .tokens = &tokens[10], .num_tokens = 1, .num_logits = 1, .num_hidden = 1};
    must(engine_step(engine, &span, 1, &err), &err);
    memcpy(hidden, span.hidden, bytes);
    must(state_create(&whole, engine, ROOM, &err), &err);
    span = (struct span){.state = whole, .tokens = tokens, .num_tokens = 11, .num_hidden = 1};
    must(engine_step(engine, &span, 1, &err), &err);
    CHECK(memcmp(hidden, span.hidden, bytes) == 0, "hidden rows of a decode step");
    state_free(state);
    state_free(whole);
    engine_close(engine);
    free(logits);
    free(hidden);
}

/* A token of a text with so many pages of segments alone; its logits. */
static void after_segments(const char *device, int64_t position, float *out)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    struct state *state;
    const int32_t one = 7;
    const struct engine_options options = {.device = device,
                                           .weights = WEIGHTS_F32,
                                           .kv = KV_F32,
                                           .threads = 1,
                                           .max_step_tokens = 2,
                                           .max_step_logits = 1,
                                           .state_memory_bytes = (size_t)280 << 20};
    must(engine_open(&engine, GOLDEN "long_short_rank3_alibi", &options, &err), &err);
    char *image = calloc(1, state_image_bytes(engine, position));
    must(state_restore(&state, engine, image, position, position + 1, &err), &err);
    struct span span = {.state = state, .tokens = &one, .num_tokens = 1, .num_logits = 1};
    must(engine_step(engine, &span, 1, &err), &err);
    memcpy(out, span.logits, (size_t)engine_info(engine)->vocab_size * sizeof *out);
    free(image);
    state_free(state);
    engine_close(engine);
}

/* More than the lists of draws, behind which they lie, would leave them. */
static void many_pages_of_segments(void)
{
    static float logits[2][4096];
    const int64_t position = 64 * 12000;
    after_segments("cpu", position, logits[0]);
    after_segments("cuda", position, logits[1]);
    const float most = difference(logits[0], logits[1], 200);
    CHECK(most < 1e-3f, "logits differ by %g", (double)most);
}

/* No text's pages are more than a step has room for. */
static void long_texts(void)
{
    struct error err = ERROR_INIT;
    struct engine *with_pages = open_engine("softmax_rope", "cuda", KV_F32);
    struct engine *without = open_engine("regla", "cuda", KV_F32);
    struct state *state;
    int64_t most = 64 * engine_info(with_pages)->max_step_pages;
    CHECK(state_create(&state, with_pages, most + 1, &err) == -1 && err.code == ERROR_INVALID &&
              strstr(err.message, "on this device") != NULL,
          "code %d, \"%s\"", err.code, err.message);
    must(state_create(&state, without, most + 1, &err), &err);
    state_free(state);
    engine_close(with_pages);
    engine_close(without);
}

/* A softmax head that no block has memory for is refused when the model is opened, not at its first
 * step; one that just fits takes a step. */
static void wide_heads(void)
{
    static const struct {
        int head_dim;
        bool fits;
    } cases[] = {{3072, true}, {16384, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[1024];
        snprintf(config, sizeof config, CONFIG, cases[i].head_dim, cases[i].head_dim);
        struct error err = ERROR_INIT;
        const struct engine_options options = {.device = "cuda"};
        struct model *model;
        struct engine *engine;
        must(preset_load(&model, "wide", config, &err), &err);
        int result = engine_open_model(&engine, model, &options, &err);
        if (result != 0) {
            CHECK(!cases[i].fits && strstr(err.message, "softmax head of") != NULL, "%d: %s",
                  cases[i].head_dim, err.message);
            continue;
        }
        float logits[64];
        struct state *state = new_text(engine, 0, 40);
        feed(engine, state, 0, 1, logits);
        CHECK(cases[i].fits && isfinite(logits[0]), "%d", cases[i].head_dim);
        state_free(state);
        engine_close(engine);
    }
}

/* All that is allocated at the start is said, and what device_memory bounds. */
static void counts_memory(void)
{
    enum { GIVEN = 200 << 20, COPIES = 32 << 20 };
    struct error err = ERROR_INIT;
    struct engine *engine;
    const struct engine_options options = {.device = "cuda", .device_memory_bytes = GIVEN};
    must(engine_open(&engine, GOLDEN "hybrid_regla", &options, &err), &err);
    const struct engine_info *info = engine_info(engine);
    size_t all = info->weights_bytes + info->workspace_bytes + info->state_memory_bytes;
    CHECK(info->workspace_bytes > COPIES && info->pinned_bytes > COPIES, "%zu and %zu bytes",
          info->workspace_bytes, info->pinned_bytes);
    CHECK(all == GIVEN, "%zu bytes of %d", all, GIVEN);
#ifdef REGLA_CUDA_EMULATION
    size_t free_bytes, total, rounded = 256; /* what is left of the states' budget */
    emulation_memory(&free_bytes, &total);
    CHECK(total - free_bytes <= GIVEN && total - free_bytes + rounded > GIVEN, "%zu bytes taken",
          total - free_bytes);
#endif
    engine_close(engine);
}

/* A model has the bytes that another format's said of this one. */
static void formats(void)
{
    struct engine *engine = open_engine("hybrid_regla", "cuda", KV_F32);
    const struct engine_info info = *engine_info(engine);
    engine_close(engine);
    for (int format = WEIGHTS_F32; format < WEIGHT_FORMAT_COUNT; format++) {
        struct error err = ERROR_INIT;
        const struct engine_options options = {.device = "cuda",
                                               .weights = (enum weight_format)format};
        must(engine_open(&engine, GOLDEN "hybrid_regla", &options, &err), &err);
        const size_t bytes = engine_info(engine)->weights_bytes;
        CHECK(bytes > 0 && bytes == info.weights_bytes_as[format], "%zu bytes as %s, expected %zu",
              bytes, weight_format_name(options.weights), info.weights_bytes_as[format]);
        engine_close(engine);
    }
}

static void measures(void)
{
    struct error err = ERROR_INIT;
    struct engine *engine = open_engine("regla", "cuda", KV_F32);
    double bytes = 0, operations = 0;
    must(engine_measure(engine, &bytes, &operations, &err), &err);
    CHECK(bytes > 0 && isfinite(bytes) && operations > 0 && isfinite(operations), "%g %g", bytes,
          operations);
    CHECK(!engine_failed(engine), "regla");
    engine_close(engine);
}

int main(void)
{
    static const char *const models[] = {
        "hybrid_regla", "performer",  "block_kerple_dpfp",  "gla_fla",
        "softmax_rope", "sliding_t5", "regla_tied_glu_wide"};
    if (cuda_devices() == 0) {
        printf("cuda-engine: skipped: no CUDA device\n");
        return 77;
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        travels(models[i], "cpu", "cuda", KV_F32);
        travels(models[i], "cuda", "cpu", KV_F16);
        graphs_change_nothing(models[i]);
        forks(models[i]);
    }
    wide_heads();
    hidden_rows_of_decodes();
    many_pages_of_segments();
    long_texts();
    expect_error("cuda:99", 0, ERROR_INVALID, "expected a device from 0 to");
    expect_error("cuda:x", 0, ERROR_INVALID, "expected auto, cpu, cuda or cuda:N");
    expect_error("gpu", 0, ERROR_INVALID, "expected auto, cpu, cuda or cuda:N");
    expect_error("cuda", 1000, ERROR_NO_MEMORY, "device_memory");
    expect_error("cpu", 1000, ERROR_NO_MEMORY, "device_memory");
    counts_memory();
    formats();
    measures();
#ifdef REGLA_CUDA_EMULATION
    /* embed, angles and the head; of a layer project, recurrence, output, up and down, or project,
     * positions, attention, output, up and down */
    launches("regla", 3 + 5 * 2);
    launches("softmax_rope", 3 + 6 * 2);
    /* The draw is one more. Copied are the batch, what the draw asks for, and its result; one more
     * kernel brings the batch or the token where the embedding does not. */
    chain("regla", "", 14, 0);
    chain("softmax_rope", "", 16, 0);
    chain("regla", "mapped", 14, 2);
    chain("regla", "feed", 15, 0);
    chain("regla", "draw", 14, 1);
    chain("regla", "mapped,feed,draw", 15, 3);
    /* until it ends past 64, 128 and 256; never; until the window of 20 has all its splits. One for
     * each of the host's images of the batch. */
    recordings("softmax_rope", "", 200, 2 * 3);
    recordings("regla", "", 200, 2 * 1);
    recordings("regla", "mapped", 200, 1);
    recordings("sliding_t5", "", 520, 2 * 3);
#endif
    printf("cuda-engine: %d passed, %d failed\n", passed, failed);
    return failed > 0;
}
