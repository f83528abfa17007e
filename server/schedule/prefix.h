/* SPDX-License-Identifier: Apache-2.0 */
/* Lets texts share what they begin with. A text begins on a state from the tree. It waits for a
 * running text that computes what it needs, and leaves checkpoints for later texts. All functions
 * are for the engine thread. */
#ifndef SERVER_SCHEDULE_PREFIX_H
#define SERVER_SCHEDULE_PREFIX_H

#include "server/schedule/sequence.h"
#include "server/states/state_tree.h"

/* Looks a prompt up in a space of the tree. */
void prefix_match(struct state_tree *tree, struct space *space, const struct job *job,
                  const struct job_prompt *prompt, struct state_match *match);

/* Whether the text had better wait: another server may have computed more of the prompt than the
 * match has, and that is on its way. */
bool prefix_is_coming(struct space *space, struct job *job, const struct job_prompt *prompt,
                      const struct state_match *match);

/* The text begins on a match and has its state. Takes over the caller's reference of the space. */
void prefix_begin(struct state_tree *tree, struct sequence *sequence, struct space *space,
                  const struct state_match *match);
/* Undoes prefix_begin and prefix_follow: the text does not run after all. */
void prefix_cancel(struct state_tree *tree, struct sequence *sequence);
/* The text ends: the tree gets its state, its session its tokens. */
void prefix_end(struct state_tree *tree, struct sequence *sequence);

/* Lets the text wait until `leader` has taken the first `at` tokens of its prompt. */
void prefix_follow(struct sequence *sequence, struct sequence *leader, int64_t at);
/* Lets the text wait for one of running [count] that will compute more of its prompt than it has.
 */
void prefix_wait(struct state_tree *tree, struct sequence *sequence, struct sequence **running,
                 size_t count);
/* The leader has reached the position at which the text waits for it: the text continues from a
 * copy of its state. */
int prefix_adopt(struct sequence *sequence, struct error *err);
/* The leader has ended before that: the text continues from what the tree has now. */
void prefix_recover(struct state_tree *tree, struct sequence *sequence);

/* Tokens of the prompt that a step may take before a checkpoint is due; >= 1. */
int64_t prefix_until(const struct state_tree *tree, const struct sequence *sequence);
/* After a step: keeps a checkpoint if one is due. logits: those after the prompt's last token, or
 * NULL. */
void prefix_keep(struct state_tree *tree, struct sequence *sequence, const float *logits);
/* Whether prefix_keep would keep one now. */
bool prefix_due(const struct state_tree *tree, const struct sequence *sequence);

#endif
