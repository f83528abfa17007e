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

/* A text's settings, and where its lists begin in the lists of all texts. */
struct sampling_text {
    float temperature, top_p, min_p, presence, frequency, repetition;
    int32_t top_k, num_top;
    bool greedy, wants_sum;
    double uniform;
    int32_t bias, num_bias, seen, num_seen, banned, num_banned, end, num_ends;
};

struct sampling_drawn {
    int32_t id, nan_id; /* as in struct draw */
    int32_t next;       /* the id, or -1 if it ends the text: draw_ends */
    float max;          /* of the untouched logits */
    double sum;
    float logit, top_logits[SAMPLER_MOST_TOP];
    int32_t top[SAMPLER_MOST_TOP];
};

struct sampling_lists {
    const sampling_text *texts;
    const logit_bias *biases;
    const seen_token *seen;
    const int32_t *ids; /* banned ones and ends */
};

/* [count][vocab_size] each; sums: [count][vocab_size / SAMPLING_BLOCK + 1]. */
struct sampling_scratch {
    float *work, *weights;
    int32_t *ids;
    double *sums;
};

#endif
