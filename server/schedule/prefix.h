/* SPDX-License-Identifier: Apache-2.0 */
/* How texts share what they begin with: what a text takes from the tree of states, which running
 * text it waits for instead of computing the same, and the checkpoints it leaves on its way. All
 * functions are for the engine thread. */
#ifndef SERVER_SCHEDULE_PREFIX_H
#define SERVER_SCHEDULE_PREFIX_H

#include "server/schedule/sequence.h"
#include "server/states/state_tree.h"

/* What is there of a prompt, in a space. */
void prefix_match(struct state_tree *tree, struct space *space, const struct job *job,
                  const struct job_prompt *prompt, struct state_match *match);

/* The text begins on a match, whose state it has: keeps the caller's reference of the space. */
void prefix_begin(struct state_tree *tree, struct sequence *sequence, struct space *space,
                  const struct state_match *match);
/* It does not begin after all. */
void prefix_cancel(struct state_tree *tree, struct sequence *sequence);
/* The text ends: leaves its state to the tree, its tokens to its session. */
void prefix_end(struct state_tree *tree, struct sequence *sequence);

/* Lets the text wait for `leader` to have taken the first `at` tokens of its prompt. */
void prefix_follow(struct sequence *sequence, struct sequence *leader, int64_t at);
/* Lets it wait if one of running [count] is about to compute more of its prompt than it has. */
void prefix_wait(struct state_tree *tree, struct sequence *sequence, struct sequence **running,
                 size_t count);
/* The leader stands where the text waits for it: goes on from a copy of its state. */
int prefix_adopt(struct sequence *sequence, struct error *err);
/* Its leader has gone: goes on from what there is now. */
void prefix_recover(struct state_tree *tree, struct sequence *sequence);

/* Tokens of the prompt until the text has to stop for a checkpoint; >= 1. */
int64_t prefix_until(const struct state_tree *tree, const struct sequence *sequence);
/* After a step: keeps a checkpoint if one is due. logits: after the prompt's last token; or NULL.
 */
void prefix_keep(struct state_tree *tree, struct sequence *sequence, const float *logits);
/* Whether prefix_keep would, where the text is. */
bool prefix_due(const struct state_tree *tree, const struct sequence *sequence);

#endif
