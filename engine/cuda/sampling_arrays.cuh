/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs and results of draws: arrays on the device that the step fills (draws.cu) and the
 * kernel reads (sampling.cu). */
#ifndef ENGINE_CUDA_SAMPLING_ARRAYS_CUH
#define ENGINE_CUDA_SAMPLING_ARRAYS_CUH

#include "engine/cuda/device.h"

extern "C" {
#include "engine/ops/sampler.h"
}

enum { SAMPLING_BLOCK = 256 }; /* weights whose sums are added first, as in engine/ops/sampler.c */

struct seen_token {
    int32_t id, count;
};

/* A text's settings, and where its lists lie: number i of an array that begins where the first
 * text's settings do. */
struct sampling_text {
    struct sampling settings; /* but for its lists, which are the host's */
    int32_t num_top;
    bool greedy, wants_sum;
    bool absent; /* there is no text: nothing is drawn, and the rest is not set */
    double uniform;
    int32_t bias, num_bias, seen, num_seen, banned, num_banned, end, num_ends;
    int32_t allowed, num_allowed, wanted, num_wanted; /* num_wanted: 0, or num_top */
    int32_t mask;                                     /* words, one for 32 tokens */
    bool masked;
};

struct token_logit {
    int32_t id;
    float logit;
};

struct sampling_drawn {
    int32_t id, nan_id; /* as in struct draw */
    int32_t next;       /* the id, or -1 if it ends the text: draw_ends */
    float max;          /* of the untouched logits */
    double sum;
    float logit;
    token_logit top[SAMPLER_MOST_WANTED]; /* of which num_top are set, and told */
};

/* [count][vocab_size] each; sums: [count][vocab_size / SAMPLING_BLOCK + 1]. */
struct sampling_scratch {
    float *work, *weights;
    int32_t *ids;
    double *sums;
};

#endif
