/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: guesses of the tokens that a text will draw. A step takes them behind the text's own
 * token. Each is kept if it is the one that is drawn where it stands; the text goes back over the
 * rest. So its tokens and its state are those of a text without drafts, to the bit.
 *
 * All functions are for the engine thread. */
#ifndef SERVER_SCHEDULE_DRAFTS_H
#define SERVER_SCHEDULE_DRAFTS_H

#include "server/schedule/sequence.h"
#include "server/states/state_tree.h"

/* What an engine is opened with for drafts: so many of all texts of a step. */
enum { DRAFTS_OF_STEP = 128 };

/* The most drafts that a step may check of a text that decodes. */
int drafts_most(const struct state_tree *tree, const struct sequence *sequence);
/* Writes the text's next token and `count` drafts behind it to tokens [1 + count]. */
void drafts_write(const struct sequence *sequence, int count, int32_t *tokens);
/* After the step: draws from the logits of the span, which has drafts, and takes what it draws up
 * to the first that was not guessed. Adds to *generated like sequence_take. */
int drafts_take(struct sequence *sequence, const struct span *span, double now, int *generated,
                struct error *err);
/* Or: the text ends, and nothing is drawn. Its state is behind its own token. */
int drafts_drop(struct sequence *sequence, const struct span *span, struct error *err);

#endif
