/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: models of GGUF files and of folders, their logits, and files with something changed.
 */
#ifndef TESTS_UNIT_GGUF_MODELS_H
#define TESTS_UNIT_GGUF_MODELS_H

#include "engine/engine.h"
#include "engine/model/model_load.h"

#include "tests/unit/checkpoint.h"

#include <unistd.h>

#define DATA REGLA_SOURCE_DIR "/tests/data/gguf/"

/* The engine's logits after each of the tokens 1, 2, ... */
static inline float *logits_of(struct model *model, enum weight_format weights, size_t *size)
{
    enum { TOKENS = 24 };
    int32_t tokens[TOKENS];
    struct engine_options options = {.weights = weights,
                                     .device = "cpu",
                                     .threads = 1,
                                     .state_memory_bytes = (size_t)32 << 20,
                                     .max_step_tokens = TOKENS,
                                     .max_step_logits = TOKENS};
    struct engine *engine;
    struct state *state;
    struct error err = ERROR_INIT;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = 1 + i * 7;
    cr_assert(engine_open_model(&engine, model, &options, &err) == 0, "%s", err.message);
    cr_assert(state_create(&state, engine, TOKENS, &err) == 0, "%s", err.message);
    struct span span = {state, tokens, TOKENS, TOKENS, NULL, NULL};
    cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
    *size = TOKENS * (size_t)engine_info(engine)->vocab_size * sizeof(float);
    float *logits = malloc(*size);
    memcpy(logits, span.logits, *size);
    state_free(state);
    engine_close(engine);
    return logits;
}

static inline struct model *open_model(const char *path)
{
    struct model *model;
    struct error err = ERROR_INIT;
    cr_assert(model_open(&model, path, &err) == 0, "%s: %s", path, err.message);
    return model;
}

static inline void expect_same_logits(const char *what, struct model *one, struct model *other,
                                      enum weight_format weights)
{
    size_t size, other_size;
    float *logits = logits_of(one, weights, &size);
    float *others = logits_of(other, weights, &other_size);
    cr_expect(size == other_size && memcmp(logits, others, size) == 0, "%s: other bits", what);
    free(logits);
    free(others);
}

/* One word in place of another of the same length, at its first place. */
static inline void replace_word(char *bytes, size_t size, const char *from, const char *to)
{
    char *at = memmem(bytes, size, from, strlen(from));
    cr_assert(at && strlen(from) == strlen(to), "%s", from);
    memcpy(at, to, strlen(to));
}

/* The bytes as a file x.gguf, which is gone afterwards. */
static inline int open_bytes(struct model **model, const void *bytes, size_t size,
                             struct error *err)
{
    char directory[] = "/tmp/regla-gguf-XXXXXX", path[64];
    cr_assert(mkdtemp(directory));
    write_whole(directory, "x.gguf", bytes, size);
    snprintf(path, sizeof path, "%s/x.gguf", directory);
    int result = model_open(model, path, err);
    unlink(path);
    rmdir(directory);
    return result;
}

/* message: NULL: it opens. */
static inline void expect_opened(const char *what, const void *bytes, size_t size,
                                 const char *message)
{
    struct model *model;
    struct error err = ERROR_INIT;
    int result = open_bytes(&model, bytes, size, &err);
    cr_expect_eq(result, message ? -1 : 0, "%s: %s", what, err.message);
    if (message)
        cr_expect_str_eq(err.message, message, "%s:\n got %s\nwant %s", what, err.message, message);
    if (result == 0)
        model_close(model);
}

#endif
