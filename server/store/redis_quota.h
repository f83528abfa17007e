/* SPDX-License-Identifier: Apache-2.0 */
/* --session-quota in Redis: what each session of an owner counts, or may come to count once the
 * request at work has ended, under a key of the owner's own. A server that dies leaves too much
 * there: so before anybody is refused, all sessions are counted anew that nobody works on. */
#ifndef SERVER_STORE_REDIS_QUOTA_H
#define SERVER_STORE_REDIS_QUOTA_H

#include "server/store/redis_place.h"

/* The session is to count wanted_bytes. The link is open. Sets the error, or the refusal with
 * held_bytes. */
void redis_quota_reserve(struct store_place *place, struct store_reserve *reserve);
/* What the sessions of these operations, which have ended, count from now on. */
void redis_quota_count(struct store_place *place, const struct store_op *first);
/* Sends that the session is gone. Whether that has a reply, which the caller takes. */
bool redis_quota_send_forget(struct store_place *place, const char *owner, const char *id);

/* Whether the owner's sessions without responses would leave room for what was refused. */
bool redis_quota_may_fit(struct store_place *place, const struct store_reserve *reserve);

#endif
