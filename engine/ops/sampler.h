/* SPDX-License-Identifier: Apache-2.0 */
/* From logits to a token, and log-probabilities for people.
 *
 * Order (api.md): logits (f32) -> logit_bias -> penalties -> ban of EOS until min_tokens ->
 * temperature -> top_k -> top_p -> min_p -> draw. The generator is counter-based: the draw depends
 * on (seed, choice, number of tokens generated so far) and nothing else. */
#ifndef ENGINE_OPS_SAMPLER_H
#define ENGINE_OPS_SAMPLER_H

#include "engine/base/error.h"

#include <stdbool.h>
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
    const struct logit_bias *logit_bias;       /* [num_logit_bias <= V]; copied by sampler_create */
    size_t num_logit_bias;
    int64_t seed;
    int32_t choice; /* j: the choice within its prompt */
};

struct sampler; /* one text's: counts of its tokens */

/* prompt: [num_prompt] token ids, for the repetition penalty. Scratch of [vocab_size] is allocated
 * here, only when the settings need it; a draw allocates nothing. */
int sampler_create(struct sampler **out, const struct sampling *sampling, int32_t vocab_size,
                   const int32_t *prompt, size_t num_prompt, struct error *err);
void sampler_free(struct sampler *sampler);

struct token_logprob {
    int32_t id;
    float logprob; /* natural logarithm, of the untouched logits */
};

enum { SAMPLER_MOST_TOP = 20 };

/* A text's next token: what is asked for and what was drawn, wherever the logits are (engine.h). */
struct draw {
    struct sampler *sampler;
    const int32_t *banned; /* [num_banned <= V] ids that may not come now */
    size_t num_banned;
    bool wants_logprob;
    int num_top;         /* with wants_logprob: so many of the best, at most SAMPLER_MOST_TOP */
    const int32_t *ends; /* [num_ends <= V] ids that end the text: draw_ends */
    size_t num_ends;
    /* The engine's: its place in its step; the draw before it is not known yet; and its text has
     * ended by that one, so that nothing is drawn. */
    int number;
    bool ahead, dropped;
    /* out: */
    int32_t id;     /* -1: nothing, draw_check says why */
    int32_t nan_id; /* the first token whose logit is NaN; -1: none is */
    float logprob;
    struct token_logprob top[SAMPLER_MOST_TOP]; /* [num_top], as of logprobs_top */
};

/* Draws from logits [vocab_size] (not changed) and counts the token as generated. */
void sampler_draw(struct draw *draw, const float *logits);
/* 0, or -1 when the logits held a NaN or nothing was left to draw. */
int draw_check(const struct draw *draw, struct error *err);

/* Whether no token follows what was drawn. */
bool draw_ends(const struct draw *draw);
/* Whether a draw depends on the tokens drawn before it: penalties do. */
bool sampler_looks_back(const struct sampler *sampler);

/* The parts of sampler_draw, for a device that draws by itself: what it needs beside the logits,
 * which points into the sampler, and the count of what it drew. */
struct sampler_request {
    const struct sampling *settings;
    bool greedy;
    const int32_t *seen, *counts; /* [num_seen] distinct ids; by id, how often generated */
    int32_t num_seen;
    double uniform; /* of this draw, in [0, 1) */
};
struct sampler_request sampler_request(const struct draw *draw);
void sampler_accept(struct sampler *sampler, int32_t id);

/* log p(id) of the untouched logits [vocab_size]; accumulated in double, in one fixed order. */
float logprob_of(const float *logits, int32_t vocab_size, int32_t id);

/* The same from parts: total is the sum of exp(l - max) over all logits l, of which max is the
 * largest. */
float logprob_from(float logit, float max, double total);

/* logprob_of, with the `count` best tokens in falling order (ties: the smallest id first) in top
 * [count]; returns log p(id), the same bits as its entry in top. count <= SAMPLER_MOST_TOP; entries
 * that a smaller vocabulary cannot fill have the id -1. */
float logprobs_top(const float *logits, int32_t vocab_size, int32_t id, int count,
                   struct token_logprob *top);

#endif
