/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a token from logits, and computes log-probabilities for replies.
 *
 * Order (api.md): logits (f32) -> mask, allowed -> logit_bias -> penalties -> bans -> temperature
 * -> top_k -> typical_p -> top_p -> min_p -> draw. The generator is counter-based: a draw depends
 * only on (seed, choice, number of tokens generated so far). */
#ifndef ENGINE_OPS_SAMPLER_H
#define ENGINE_OPS_SAMPLER_H

#include "engine/model/sampling.h"
#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sampler; /* of one text: settings and counts of its tokens */

/* Words of a mask. Token i is bit i % 32 of word i / 32. */
static inline size_t sampler_mask_words(int32_t vocab_size)
{
    return ((size_t)vocab_size + 31) / 32;
}

/* What a sampler allocates. */
size_t sampler_bytes(const struct sampling *sampling, int32_t vocab_size);

/* prompt: [num_prompt] token ids, for the repetition penalty. Allocates scratch of [vocab_size] if
 * the settings need it, so that a draw allocates nothing. */
int sampler_create(struct sampler **out, const struct sampling *sampling, int32_t vocab_size,
                   const int32_t *prompt, size_t num_prompt, struct error *err);
void sampler_free(struct sampler *sampler);

struct token_logprob {
    int32_t id;
    float logprob; /* natural logarithm, of the untouched logits */
};

enum { SAMPLER_MOST_TOP = 20, SAMPLER_MOST_WANTED = 128 };

/* A text's next token: the request and its result, wherever the logits are (engine.h). */
struct draw {
    struct sampler *sampler;
    const int32_t *banned; /* [num_banned <= V] ids that may not come now */
    size_t num_banned;
    const uint32_t
        *mask; /* with sampling.masked: [sampler_mask_words], a bit a token: it may come */
    bool wants_logprob;
    int num_top;           /* with wants_logprob: how many of the best, at most SAMPLER_MOST_TOP */
    const int32_t *wanted; /* [num_top <= SAMPLER_MOST_WANTED]: of these instead; NULL: the best */
    const int32_t *ends;   /* [num_ends <= V] ids that end the text: draw_ends */
    size_t num_ends;
    /* Set by the engine. number: its place in its step. ahead: the text's draw before it is not
     * known yet. dropped: that draw ended the text, so nothing is drawn. */
    int number;
    bool ahead, dropped;
    /* out: */
    int32_t id;     /* -1: none; draw_check says why */
    int32_t nan_id; /* the first token whose logit is NaN; -1: there is none */
    float logprob;
    struct token_logprob top[SAMPLER_MOST_WANTED]; /* [num_top], as from logprobs_top */
};

/* Draws from logits [vocab_size] (not changed) and counts the token as generated. */
void sampler_draw(struct draw *draw, const float *logits);
/* 0, or -1 when the logits held a NaN or nothing was left to draw. */
int draw_check(const struct draw *draw, struct error *err);

/* Whether the drawn token ends the text. */
bool draw_ends(const struct draw *draw);
/* Whether a draw depends on the tokens drawn before it, as with penalties and masks. */
bool sampler_looks_back(const struct sampler *sampler);

/* The parts of sampler_draw, for a device that draws by itself. sampler_request gives what it needs
 * besides the logits; it points into the sampler. sampler_accept counts the token that was drawn.
 */
struct sampler_request {
    const struct sampling *settings;
    const uint32_t *mask; /* [mask_words]; none: all may come */
    size_t mask_words;
    bool greedy;
    const int32_t *seen,
        *counts; /* seen: [num_seen] distinct ids; counts: by id, how often it was generated */
    int32_t num_seen;
    double uniform; /* the random number of this draw, in [0, 1) */
};
struct sampler_request sampler_request(const struct draw *draw);
void sampler_accept(struct sampler *sampler, int32_t id);

/* log p(id) of the untouched logits [vocab_size], summed in double, in one fixed order. */
float logprob_of(const float *logits, int32_t vocab_size, int32_t id);

/* The same from parts. max: the largest logit. total: the sum of exp(l - max) over all logits l. */
float logprob_from(float logit, float max, double total);

/* Like logprob_of; also writes the `count` best tokens, best first (ties: the smallest id first),
 * into top [count]. log p(id) has the same bits as its entry in top. count <= SAMPLER_MOST_TOP.
 * Entries that a smaller vocabulary cannot fill have the id -1. */
float logprobs_top(const float *logits, int32_t vocab_size, int32_t id, int count,
                   struct token_logprob *top);

/* The number of a token among all, the best first: 1 and more, in the order of logprobs_top. */
int32_t logprob_rank(const float *logits, int32_t vocab_size, int32_t id);

#endif
