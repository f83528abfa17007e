/* SPDX-License-Identifier: Apache-2.0 */
/* States in Redis: each is the bytes of a state file, in pieces, with an end of its own, so that
 * the store may drop it. Whatever is missing or wrong of it, the tokens are computed again. */
#ifndef SERVER_STORE_REDIS_STATES_H
#define SERVER_STORE_REDIS_STATES_H

#include "server/store/blob_op.h"
#include "server/store/redis_place.h"

enum { REDIS_STATE_SECONDS = 24 * 3600 }; /* since its last use */

/* As store_blobs has them. Checkpoints of prompts lie there as those of sessions do, under keys of
 * their own. */
int redis_states_put(struct store_place *place, struct store_put *put);
int redis_states_get(struct store_place *place, struct store_get *get);
int redis_states_find(struct store_place *place, struct store_find *find);
int redis_states_remove(struct store_place *place, struct store_remove *removal);
int redis_states_touch(struct store_place *place, struct store_touch *touch);

#endif
