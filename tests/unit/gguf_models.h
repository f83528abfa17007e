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
    struct span span = {
        .state = state, .tokens = tokens, .num_tokens = TOKENS, .num_logits = TOKENS};
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

/* A file that is written anew from what was read of another. */
struct gguf_draft {
    char *bytes;
    size_t size, capacity;
};

static inline void draft_put(struct gguf_draft *draft, const void *bytes, size_t size)
{
    if (draft->size + size > draft->capacity) {
        draft->capacity = 2 * (draft->size + size);
        draft->bytes = realloc(draft->bytes, draft->capacity);
        cr_assert(draft->bytes);
    }
    if (size > 0)
        memcpy(draft->bytes + draft->size, bytes, size);
    draft->size += size;
}

static inline void draft_text(struct gguf_draft *draft, const char *text, size_t length)
{
    const uint64_t size = length;
    draft_put(draft, &size, sizeof size);
    draft_put(draft, text, length);
}

static inline size_t value_size(enum gguf_type type)
{
    static const size_t sizes[GGUF_NUM_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

static inline void draft_entry(struct gguf_draft *draft, const struct gguf_entry *entry)
{
    const uint32_t type = entry->type, array = GGUF_ARRAY;
    draft_text(draft, entry->key, strlen(entry->key));
    draft_put(draft, entry->array ? &array : &type, 4);
    if (entry->array) {
        draft_put(draft, &type, 4);
        draft_put(draft, &entry->count, 8);
    }
    const unsigned char *end = entry->data;
    for (uint64_t i = 0; entry->type == GGUF_STRING && i < entry->count; i++)
        gguf_next_text(&end);
    const size_t size = entry->type == GGUF_STRING ? (size_t)(end - entry->data)
                                                   : entry->count * value_size(entry->type);
    draft_put(draft, entry->data, size);
}

/* The file of these entries [count], and of the tensors of `from`. */
static inline char *draft_file(const struct gguf *from, const struct gguf_entry *entries,
                               size_t count, size_t *size)
{
    struct gguf_draft draft = {0};
    const uint64_t counts[] = {from->num_tensors, count};
    const uint32_t version = 3;
    draft_put(&draft, "GGUF", 4);
    draft_put(&draft, &version, 4);
    draft_put(&draft, counts, sizeof counts);
    for (size_t i = 0; i < count; i++)
        draft_entry(&draft, &entries[i]);
    for (size_t i = 0; i < from->num_tensors; i++) {
        const struct gguf_tensor *tensor = &from->tensors[i];
        const uint32_t rank = (uint32_t)tensor->rank;
        draft_text(&draft, tensor->name, strlen(tensor->name));
        draft_put(&draft, &rank, 4);
        for (int d = tensor->rank - 1; d >= 0; d--)
            draft_put(&draft, &tensor->shape[d], 8);
        draft_put(&draft, &tensor->type, 4);
        draft_put(&draft, &tensor->offset, 8);
    }
    while (draft.size % from->alignment != 0)
        draft_put(&draft, "", 1);
    draft_put(&draft, from->data, from->data_bytes);
    *size = draft.size;
    return draft.bytes;
}

#endif
