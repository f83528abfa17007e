/* From logits to a token, and log-probabilities for people.
 *
 * Order (api.md): logits (f32) -> logit_bias -> penalties -> ban of EOS until min_tokens ->
 * temperature -> top_k -> top_p -> min_p -> draw. The generator is counter-based: the draw depends
 * on (seed, choice, number of tokens generated so far) and nothing else. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "engine/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    float temperature; /* 0: greedy (ties: the smallest id) */
    float top_p, min_p;
    int32_t top_k;                             /* <= 0: off */
    float presence_penalty, frequency_penalty; /* over generated tokens */
    float repetition_penalty;                  /* over prompt and generated tokens; 1: off */
    const struct logit_bias *logit_bias;       /* [num_logit_bias]; copied by sampler_create */
    size_t num_logit_bias;
    int64_t seed;
    int32_t choice; /* j: the choice within its prompt */
};

struct sampler; /* one text's: counts of its tokens */

/* prompt: [num_prompt] token ids, for the repetition penalty. Scratch of [vocab_size] is allocated
 * here, only when the settings need it; sampler_pick allocates nothing. */
int sampler_create(struct sampler **out, const struct sampling *sampling, int32_t vocab_size,
                   const int32_t *prompt, size_t num_prompt, struct error *err);
void sampler_free(struct sampler *sampler);

/* Draws the next token from logits [vocab_size] (not changed) and counts it as generated. banned:
 * [num_banned] ids that may not come now. Returns the id; -1 with *err when the logits hold a NaN
 * or nothing is left to draw. */
int32_t sampler_pick(struct sampler *sampler, const float *logits, const int32_t *banned,
                     size_t num_banned, struct error *err);

struct token_logprob {
    int32_t id;
    float logprob; /* natural logarithm, of the untouched logits */
};

/* log p(id) of the untouched logits [vocab_size]; accumulated in double, in one fixed order. */
float logprob_of(const float *logits, int32_t vocab_size, int32_t id);

/* The same, with the `count` best tokens in falling order (ties: the smallest id first) in top
 * [count]; returns log p(id), the same bits as its entry in top. count <= 20; entries that a
 * smaller vocabulary cannot fill have the id -1. */
float logprobs_top(const float *logits, int32_t vocab_size, int32_t id, int count,
                   struct token_logprob *top);

#endif
