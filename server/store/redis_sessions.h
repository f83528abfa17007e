/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions in Redis: one row each, a hash, with its tokens and its turns in strings beside it,
 * changed by one script (redis_scripts.h). A set of each owner has the names. */
#ifndef SERVER_STORE_REDIS_SESSIONS_H
#define SERVER_STORE_REDIS_SESSIONS_H

#include "server/store/redis_place.h"

/* As store_sessions' end, of operations on sessions [first, by `next`]. All commands go
 * out together. A change whose reply is lost is kept and sent again, since the script knows it, for
 * a lease's time and 10 s at most: nobody else waits for it. */
struct store_op *redis_sessions_run(struct store_place *place, struct store_op *first);

#endif
