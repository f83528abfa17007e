/* SPDX-License-Identifier: Apache-2.0 */
/* What sessions may take: of memory all together, of --session-quota each API key's. */
#ifndef SERVER_STATES_SESSION_QUOTA_H
#define SERVER_STATES_SESSION_QUOTA_H

#include "server/states/session.h"

/* Whether there is memory for so many more, with so many tokens. */
bool session_quota_fit(const struct sessions *sessions, size_t more, int64_t tokens);
/* The same; but kept responses make room. */
bool session_quota_make_fit(struct sessions *sessions, size_t more, int64_t tokens);
/* The error of a start for which there is not: ERROR_NO_MEMORY. */
int session_quota_too_many(const struct sessions *sessions, size_t more, int64_t tokens,
                           struct error *err);

/* Whether there is memory and, of the owner's quota, room for `session` (NULL: another) to hold so
 * many tokens, and so many more bytes of turns. Kept responses make room, those first that have
 * been unused for longest: anybody's of memory, the owner's of the quota. Of the quota of a store
 * that servers share it says nothing. */
int session_quota_check(struct sessions *sessions, const char *owner, const struct session *session,
                        int64_t tokens, int64_t turns, struct api_error *err);

/* In a store that servers share: takes of the owner's quota what the session, which is busy, is
 * promised. Calls `done`, perhaps at once; API_SESSION_QUOTA: there is not so much. What the
 * session does not need after all is given back with its lease, or its commit. */
void session_quota_reserve(struct session *session, session_done *done, void *context);

#endif
