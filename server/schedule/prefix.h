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
bool prefix_is_coming(struct sequence *sequence, const struct state_match *match);

/* The text is opened. Takes over the caller's reference of the space. */
void prefix_open(struct state_tree *tree, struct sequence *sequence, struct space *space);
/* The text is to begin on a match. */
void prefix_begin(struct sequence *sequence, const struct state_match *match);
/* The text is set aside: the tree gets its state. */
void prefix_set_aside(struct state_tree *tree, struct sequence *sequence);
/* Looks up what a text that was set aside may go on from. */
int prefix_match_own(struct state_tree *tree, struct sequence *sequence, struct state_match *match,
                     struct error *err);
/* The text ends: the tree gets its state, its session its tokens. */
void prefix_end(struct state_tree *tree, struct sequence *sequence);

/* Lets the text wait until `leader` has taken the first `at` tokens of its prompt. */
void prefix_follow(struct sequence *sequence, struct sequence *leader, int64_t at);
/* Lets the text wait for one of others [count] that is older and will compute more of its prompt
 * than it has, and than the text that it waits for already. */
void prefix_wait(struct state_tree *tree, struct sequence *sequence, struct sequence **others,
                 size_t count);
/* Others wait for the text where it is now: they will go on from what it leaves in the tree.
 * logits: as prefix_keep's. */
void prefix_share(struct state_tree *tree, struct sequence *leader, const float *logits);
/* The leader is where the text waits for it. */
void prefix_reached(struct sequence *sequence);

/* Tokens of the prompt that a step may take before a checkpoint is due; >= 1. */
int64_t prefix_until(const struct state_tree *tree, const struct sequence *sequence);
/* Tokens that a text that decodes may take then; >= 1. */
int64_t prefix_room(const struct state_tree *tree, const struct sequence *sequence);
/* After a step: keeps a checkpoint if one is due. logits: those after the prompt's last token, or
 * NULL. */
void prefix_keep(struct state_tree *tree, struct sequence *sequence, const float *logits);
/* Whether prefix_keep would keep one now. */
bool prefix_due(const struct state_tree *tree, const struct sequence *sequence);

#endif
