/* SPDX-License-Identifier: Apache-2.0 */
/* Renews leases in Redis, as store_sessions has it, over a link of its own. */
#ifndef SERVER_STORE_REDIS_LEASES_H
#define SERVER_STORE_REDIS_LEASES_H

#include "server/store/redis_place.h"
#include "server/store/store_backend.h"

int64_t redis_leases_renew(struct store_place *place, struct store_held *first, struct error *err);

#endif
