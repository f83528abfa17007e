/* SPDX-License-Identifier: Apache-2.0 */
/* States in Redis: each is the bytes of a state file, in pieces, with an end of its own, so that
 * the store may drop it. Whatever is missing or wrong of it, the tokens are computed again. */
#ifndef SERVER_STORE_REDIS_STATES_H
#define SERVER_STORE_REDIS_STATES_H

#include "server/store/redis_place.h"

enum { REDIS_STATE_SECONDS = 24 * 3600 }; /* since its last use */

/* As store_backend's write, read, remove and touch. */
int redis_states_write(struct store_place *place, const struct store_op *op, struct error *err);
int redis_states_read(struct store_place *place, struct store_op *op, struct error *err);
int redis_states_remove(struct store_place *place, const struct store_op *op, struct error *err);
int redis_states_touch(struct store_place *place, const struct store_op *op, struct error *err);

#endif
