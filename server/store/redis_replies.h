/* SPDX-License-Identifier: Apache-2.0 */
/* Requests with an Idempotency-Key in Redis: a key for each. It says that a server is at work on
 * the request, for a lease's time, which is renewed; then its reply, for as long as replies are
 * kept. */
#ifndef SERVER_STORE_REDIS_REPLIES_H
#define SERVER_STORE_REDIS_REPLIES_H

#include "server/store/redis_keys.h"
#include "server/store/redis_place.h"

enum { REDIS_HASH_SIZE = 33 };

/* As store_sessions' end, of operations on replies [first, by `next`]. A claim that could not be
 * sent is not sent again: without the store a key is known to this server alone. */
struct store_op *redis_replies_run(struct store_place *place, struct store_op *first);

void redis_replies_key(const struct store_place *place, const struct store_reply *reply,
                       char key[REDIS_KEY_SIZE]);
/* A request's name, and the hash of its body, in hex. */
void redis_replies_hash(const struct store_reply *reply, char hash[REDIS_HASH_SIZE]);
void redis_replies_body(const struct store_reply *reply, char body[2 * STORE_BODY_BYTES + 1]);

#endif
