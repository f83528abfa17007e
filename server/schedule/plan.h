/* SPDX-License-Identifier: Apache-2.0 */
/* What goes into one step of the engine. A pure function, so that its fairness can be tested.
 *
 * Texts that decode go first, one token each; what is left of the budget goes to prompts, in
 * chunks. While prompts wait, decoding leaves a part of the budget to them (of pages, what the
 * oldest needs, but in turns with a text that has no room beside it), and the first text that did
 * not fit goes first in the next step. Of the prompts, the oldest may have half of what is left,
 * the rest goes to those with the least to do: a long prompt neither starves nor holds up short
 * ones. */
#ifndef SERVER_SCHEDULE_PLAN_H
#define SERVER_SCHEDULE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct plan_row {
    bool idle;       /* takes no part in the step */
    int64_t prefill; /* tokens of the prompt not yet taken; 0: the text decodes */
    int64_t until;   /* prefill: a step ends at the latest after so many of them; 0: anywhere */
    bool wants_all;  /* prefill: logits of every position (echo with logprobs) */
    bool wants_none; /* prefill: no logits at all, not even the last position's */
    int64_t pages;   /* of KV, at the end of the step at most; <= the limit */
    int tokens;      /* out: tokens to take in this step */
    int logits;      /* out: positions that ask for logits, the last ones */
};

struct plan_limits {
    int max_tokens, max_logits; /* of a step; >= 2 each */
    int max_chunk;              /* tokens of one prompt in a step; 0: no limit */
    int64_t max_pages;          /* of KV, of all that take part in a step */
};

/* Of the texts that decode. */
struct plan_turn {
    size_t row;    /* goes first */
    bool left_out; /* its pages did not fit although it went first */
};

/* rows: [count], oldest first. *turn: of this step; moved on for the next. */
void plan_step(struct plan_row *rows, size_t count, const struct plan_limits *limits,
               struct plan_turn *turn);

#endif
