/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of prompts in Redis, which all servers find by name. They lie there as states of
 * sessions do (redis_states.h), under keys of their own. */
#ifndef SERVER_STORE_REDIS_PREFIXES_H
#define SERVER_STORE_REDIS_PREFIXES_H

#include "server/store/redis_place.h"

/* As store_backend's find: one round trip, however many names. */
int redis_prefixes_find(struct store_place *place, struct store_op *op, struct error *err);

/* FULL: the store drops nothing (noeviction), and what is left of it is for sessions. */
enum redis_prefix_want { REDIS_PREFIX_WANTED, REDIS_PREFIX_THERE, REDIS_PREFIX_FULL };
/* Whether one of so many bytes is to be written. key: of its head. The link is open. */
int redis_prefixes_ask(struct store_place *place, const char *key, int64_t bytes,
                       enum redis_prefix_want *want, struct error *err);

/* Count one. */
void redis_prefixes_wrote(struct store_place *place, int64_t bytes);
void redis_prefixes_read(struct store_place *place, int64_t bytes);

#endif
