/* SPDX-License-Identifier: Apache-2.0 */
/* Asks Sentinels where the master is: one after the other, until one says it. What they say is
 * hostile. Whether it is one the connection to it finds out; then another Sentinel is asked. */
#ifndef SERVER_STORE_REDIS_SENTINEL_H
#define SERVER_STORE_REDIS_SENTINEL_H

#include "server/store/redis_connection.h"

/* Sets the connection's host and port. A Sentinel that wants a password gets that of the address.
 */
int redis_sentinel_find(struct redis_connection *connection, struct error *err);
/* The same by the reply to SENTINEL GET-MASTER-ADDR-BY-NAME. asked: the Sentinel, for people. */
int redis_sentinel_take(struct redis_address *address, const redisReply *reply, const char *asked,
                        struct error *err);

#endif
