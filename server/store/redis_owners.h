/* SPDX-License-Identifier: Apache-2.0 */
/* What the store keeps of owners besides the sessions themselves, under keys of its own: the set of
 * all owners, and each one's set of names. These may have more than there is, and are put right by
 * whoever lists; but who makes a session puts the names there first. */
#ifndef SERVER_STORE_REDIS_OWNERS_H
#define SERVER_STORE_REDIS_OWNERS_H

#include "server/store/redis_place.h"

/* Puts the name of the op's session into its owner's set, with the time; and the owner's into that
 * of all, for a session that is made. What is sent is to be received. */
void redis_owners_send_name(struct store_place *place, const struct store_session_op *op);
void redis_owners_receive_name(struct store_place *place, const struct store_session_op *op);

/* Sets rows, or the error. The link is open. Names without a session that are older than a day go.
 */
void redis_owners_list(struct store_place *place, struct store_list *list);

/* The time that the session lives unused; 0: for ever. */
int64_t redis_owners_ttl_ms(const struct store_place *place, const char *id);
/* Removes that of the owner's responses which has been unused for longest and on which nobody
 * works. False: there is none. */
bool redis_owners_drop_response(struct store_place *place, const char *owner, struct error *err);
/* Every now and then: removes sessions of all owners that have lived their time. */
void redis_owners_sweep(struct store_place *place);

#endif
