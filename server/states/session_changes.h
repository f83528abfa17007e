/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of sessions, and when they are in the store. With --session-durability commit a change is
 * made when the store has it; a change that the store refuses is not made. With memory it is made
 * at once, and the store has it later. Without a store changes end at once, too. */
#ifndef SERVER_STATES_SESSION_CHANGES_H
#define SERVER_STATES_SESSION_CHANGES_H

#include "server/states/session.h"

/* The session, which is busy until the end, is to hold this (taken over). claim (NULL: none;
 * borrowed): the request with an Idempotency-Key whose turn that is. */
void session_changes_save(struct session *session, const struct session_content *wanted,
                          const struct store_reply *claim, session_done *done, void *context);
/* Removes it, with any durability from the store first. done NULL: nobody waits. */
void session_changes_remove(struct session *session, session_done *done, void *context);
/* The session, on which nobody is at work, now holds this (taken over), as the store does. */
void session_changes_take(struct session *session, const struct session_content *found);
/* Notes a use, where no change follows that would write it: once what the store has is behind by a
 * minute (or an eighth of a short time to live), it is set. */
void session_changes_use(struct session *session);
/* Writes sessions that the store does not have as they are: all at once; or one after the other
 * until one fails, and the next call begins after that one. */
void session_changes_retry(struct sessions *sessions, bool all);
/* Removes the row of a session that another row tells more of. */
void session_changes_discard(struct sessions *sessions, const char *name);
/* Tells everybody who waits that it ends so, whatever becomes of their changes. */
void session_changes_give_up(struct sessions *sessions, const struct api_error *err);

#endif
