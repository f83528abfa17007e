/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that say how to draw, in one table: requests, what a model's author recommends
 * (author_sampling.h), the command line, and the sampler on each device go by it. */
#ifndef ENGINE_MODEL_SAMPLING_H
#define ENGINE_MODEL_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, type, lowest, highest, whether the lowest itself is not allowed, what is usual, the key
 * in GGUF files, transformers' own default as fields_ask_nothing takes it). The last two are NULL
 * where files have none. temperature 0 is greedy (ties: the smallest id). Off are top_k <= 0,
 * typical_p outside (0, 1) and repetition_penalty 1, which is about the prompt, too; the other
 * penalties are about generated tokens. */
#define SAMPLING_NUMBERS(X)                                                                   \
    X(temperature, float, 0, 2, false, 1, "general.sampling.temp", "1")                       \
    X(top_p, float, 0, 1, false, 1, "general.sampling.top_p", "1")                            \
    X(top_k, int32_t, -1, INT32_MAX, false, 0, "general.sampling.top_k", "50")                \
    X(min_p, float, 0, 1, false, 0, "general.sampling.min_p", "0")                            \
    X(typical_p, float, 0, 1, true, 1, NULL, "1")                                             \
    X(repetition_penalty, float, 0, FLT_MAX, true, 1, "general.sampling.penalty_repeat", "1") \
    X(presence_penalty, float, -2, 2, false, 0, NULL, NULL)                                   \
    X(frequency_penalty, float, -2, 2, false, 0, NULL, NULL)

#define SAMPLING_MEMBER(name, type, ...) type name;
#define SAMPLING_ENUMERATOR(name, ...) SAMPLING_##name,

enum sampling_number { SAMPLING_NUMBERS(SAMPLING_ENUMERATOR) SAMPLING_COUNT };

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    SAMPLING_NUMBERS(SAMPLING_MEMBER)
    const struct logit_bias *logit_bias; /* [num_logit_bias <= V]; copied by sampler_create */
    size_t num_logit_bias;
    const int32_t *allowed; /* [num_allowed <= V]: no others may come; none: all may; copied */
    size_t num_allowed;
    bool masked; /* each draw brings a mask */
    int64_t seed;
    int32_t choice; /* j: the choice within its prompt */
};

struct sampling_row {
    const char *name; /* as requests call it */
    double low, high;
    bool above; /* low itself is not allowed */
    bool whole; /* an integer */
    double usual;
    const char *gguf, *library; /* NULL: files have it not */
};
extern const struct sampling_row sampling_rows[SAMPLING_COUNT];

/* value: as its row allows. */
void sampling_set(struct sampling *sampling, enum sampling_number number, double value);

#endif
