/* SPDX-License-Identifier: Apache-2.0 */
/* The store in Redis or Valkey, --store: the backend that servers share. Sessions are rows
 * (redis_sessions.h) with one writer each (redis_leases.h); states are values in pieces
 * (redis_states.h), which the store may drop. */
#ifndef SERVER_STORE_STORE_REDIS_H
#define SERVER_STORE_STORE_REDIS_H

#include "server/store/store_backend.h"

extern const struct store_backend store_redis;

#endif
