/* SPDX-License-Identifier: Apache-2.0 */
/* --store-replicas: that the store's own replicas have what was changed. All changes of a batch
 * wait together, once for each node: a replica that is away holds them up no longer than one. */
#ifndef SERVER_STORE_REDIS_REPLICAS_H
#define SERVER_STORE_REDIS_REPLICAS_H

#include "server/store/redis_place.h"

/* The operation's reply, which has just come, says that it is done, or that an earlier one was. */
void redis_replicas_note(const struct store_place *place, struct store_session_op *session);
/* Waits for the replicas of those that were noted. Sets the errors: ERROR_INVALID with STORE_AWAY
 * where too few have it, ERROR_IO where that is not known. */
void redis_replicas_wait(struct store_place *place, struct store_op *first);

#endif
