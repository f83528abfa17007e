/* SPDX-License-Identifier: Apache-2.0 */
/* The files of sessions. A change is on disk before it is answered; a use that changes nothing is
 * noted later. Without a store changes end at once. */
#ifndef SERVER_STATES_SESSION_FILES_H
#define SERVER_STATES_SESSION_FILES_H

#include "server/states/session.h"

/* Writes the session as it is now, then ends the change that session_begin_change began. */
void session_files_save(struct session *session);
/* Removes the session and its file, then ends the change. A session whose file cannot be removed
 * stays. */
void session_files_remove(struct session *session);
/* Notes a use, where no change follows that would write it: once the file's time is behind by a
 * minute (or an eighth of a short time to live), it is set. */
void session_files_use(struct session *session);
/* Writes sessions whose last write failed: all at once; or one after the other until one fails, and
 * the next call begins after that one. */
void session_files_retry(struct sessions *sessions, bool all);
/* Removes the file of a session that another file tells more of. */
void session_files_discard(struct sessions *sessions, const char *name);

#endif
