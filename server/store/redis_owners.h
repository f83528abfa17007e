/* SPDX-License-Identifier: Apache-2.0 */
/* What the store keeps of an owner besides the sessions themselves, under keys of its own: the set
 * of their names. It may have names too many, and is put right by whoever lists. */
#ifndef SERVER_STORE_REDIS_OWNERS_H
#define SERVER_STORE_REDIS_OWNERS_H

#include "server/store/redis_place.h"

/* Puts the name of the op's session into its owner's set, with the time. Borrows from key. */
void redis_owners_name(struct redis_command *command, const struct store_place *place,
                       const struct store_op *op, char key[REDIS_KEY_SIZE]);
/* All sessions of the op's owner. Sets rows, or the error. The link is open. Names without a
 * session that are older than a day go. */
void redis_owners_list(struct store_place *place, struct store_op *op);

#endif
