/* Drawing tokens where the logits are, so that a few bytes per text come back instead of a row of
 * the vocabulary: what engine/sampler.h describes, in its order. Weights, their sums and the place
 * of the draw are the host's bits; only where top_p cuts may the last place of a sum of doubles
 * decide otherwise. The token depends on the row and its sampler alone. */
#ifndef ENGINE_CUDA_SAMPLING_H
#define ENGINE_CUDA_SAMPLING_H

#include "engine/sampler.h"

#include <stdbool.h>

struct backend;

enum { SAMPLE_MOST_TOP = 20 };

struct sample {
    struct sampler *sampler; /* counts the token */
    const int32_t *banned;   /* [num_banned] */
    size_t num_banned;
    bool wants_logprob;
    int num_top; /* with wants_logprob; at most SAMPLE_MOST_TOP */
    /* out: -1 where a logit is NaN or nothing is left to draw */
    int32_t id;
    float logprob;
    struct token_logprob top[SAMPLE_MOST_TOP];
};

/* logits: [count, vocab_size] on the device. Waits. */
int cuda_sample(struct backend *backend, const float *logits, int32_t vocab_size,
                struct sample *samples, int count, struct error *err);

#endif
