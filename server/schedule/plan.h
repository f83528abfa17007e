/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what goes into one step of the engine. It is a pure function, so that tests can check its
 * fairness.
 *
 * Texts that decode go first, one token each. The rest of the budget goes to prompts, in chunks,
 * and what these leave to drafts. Where there is not enough for all, tenants share: of the texts
 * that decode, one of the tenant that has had the least goes next, and of its texts the one that
 * has waited longest. Prompts of each tenant get an equal part of the rest, and of what others
 * leave.
 *
 * While prompts wait, decoding leaves them a part of the budget. Of KV pages that is what the
 * oldest prompt needs; a text that does not fit together with it alternates with it, step by step.
 * The oldest is that of the tenant that has had the least.
 *
 * Of the prompts of a tenant, the oldest may take half of what there is for them. The rest goes to
 * those with the least to do. So a long prompt neither starves nor holds up short ones.
 *
 * The budget of prompts is seconds too, since a token deep in a text costs many times what a first
 * one does. The oldest and the shortest of the first tenant always get PLAN_LEAST_CHUNK tokens. A
 * prompt is slow where these alone take longer than a step should. Slow prompts take turns, and
 * each of their steps is followed by one without them, if there is another text to run. */
#ifndef SERVER_SCHEDULE_PLAN_H
#define SERVER_SCHEDULE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLAN_LEAST_CHUNK = 16 };

struct plan_row {
    uint64_t tenant;
    int64_t served;   /* tokens that the tenant has had; the same in all of its rows */
    bool idle;        /* takes no part in the step */
    int64_t prefill;  /* tokens of the prompt still to take; 0: the text decodes */
    int64_t position; /* prefill: of the next of them */
    int64_t until;    /* prefill: a step takes at most so many of them; 0: any number */
    bool wants_all;   /* prefill: logits of every position (echo with logprobs) */
    bool wants_none;  /* prefill: no logits at all, not even the last position's */
    int drafts;       /* decode: most guesses of what comes next that the step may check */
    int64_t pages;    /* most KV pages at the end of the step; <= the limit */
    uint64_t stepped; /* when it last decoded, by turn.taken: in, and out */
    int tokens;       /* out: tokens to take in this step */
    int logits;       /* out: positions that ask for logits, the last ones; as many as tokens
                         where some of these are drafts */
    bool asked;       /* plan_step's own */
};

struct plan_limits {
    int max_tokens, max_logits; /* of a step; >= 2 each */
    int max_chunk;              /* tokens of one prompt in a step; 0: no limit */
    int64_t max_pages;          /* of KV, of all that take part in a step */
    int max_drafts;             /* of all texts of a step */
};

/* In seconds. */
struct plan_time {
    double token, position; /* of a prompt's token, and more for each position before it */
    double most;            /* that prompts should take of a step */
};

struct plan_turn {
    uint64_t taken; /* tokens that were decoded, so far */
    bool left_out;  /* in it the pages of the text that went first did not fit */
    size_t slow;    /* where the search for the next slow prompt begins */
    bool rests;     /* slow prompts are left out, if another text is to run */
};

/* rows: [count], oldest first; those that are left out become idle. *turn is this step's, and
 * becomes the next one's. */
void plan_step(struct plan_row *rows, size_t count, const struct plan_limits *limits,
               const struct plan_time *time, struct plan_turn *turn);

/* Seconds of a prompt's next `tokens` tokens. */
double plan_seconds(const struct plan_time *time, const struct plan_row *row, int64_t tokens);

#endif
