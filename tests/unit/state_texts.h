/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: an engine of a golden case, and texts that are taken a few tokens at a time. */
#ifndef TESTS_UNIT_STATE_TEXTS_H
#define TESTS_UNIT_STATE_TEXTS_H

#include "engine/engine.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline struct engine *open_golden(const char *name, bool poison)
{
    const struct engine_options options = {.threads = 1,
                                           .state_memory_bytes = (size_t)16 << 20,
                                           .max_step_tokens = 64,
                                           .max_step_logits = 64,
                                           .poison = poison};
    char path[512];
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s", name);
    cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s: %s", name, err.message);
    return engine;
}

/* Token `i` of text number `text`. */
static inline int32_t text_token(const struct engine *engine, int text, int64_t i)
{
    uint32_t x = (uint32_t)(i * 2654435761 + text * 40503 + 12345);
    x ^= x >> 15;
    return (int32_t)(x % (uint32_t)engine_info(engine)->vocab_size);
}

/* Takes the tokens of a text from the state's position up to `end`; the last one's logits
 * [vocab_size], valid until the next step; NULL when there was none to take. */
static inline const float *take_text(struct engine *engine, struct state *state, int text,
                                     int64_t end)
{
    int32_t tokens[64];
    struct span span = {.state = state, .tokens = tokens, .num_tokens = 0, .num_logits = 1};
    while (state_position(state) < end) {
        int64_t at = state_position(state);
        struct error err = ERROR_INIT;
        span.num_tokens = end - at < 64 ? (int)(end - at) : 64;
        for (int i = 0; i < span.num_tokens; i++)
            tokens[i] = text_token(engine, text, at + i);
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
    }
    return span.logits;
}

/* The most positions below `wanted` that the model has. */
static inline int64_t model_length(const struct engine *engine, int64_t wanted)
{
    int64_t limit = engine_info(engine)->max_positions;
    return limit > 0 && limit < wanted ? limit : wanted;
}

/* A state that has taken a text's first `position` tokens. */
static inline struct state *text_state(struct engine *engine, int text, int64_t position)
{
    struct state *state;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&state, engine, position, &err) == 0, "%s", err.message);
    take_text(engine, state, text, position);
    return state;
}

/* Its image; the caller frees it. */
static inline char *text_image(struct engine *engine, int text, int64_t position)
{
    struct state *state = text_state(engine, text, position);
    char *image = malloc(state_image_bytes(engine, position) + 1);
    memset(image, 0x5a, state_image_bytes(engine, position));
    state_save(state, image, NULL);
    state_free(state);
    return image;
}

#endif
