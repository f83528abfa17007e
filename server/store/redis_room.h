/* SPDX-License-Identifier: Apache-2.0 */
/* Under --session-quota an owner's kept responses make room, those first that have been unused for
 * longest, before anybody is refused. */
#ifndef SERVER_STORE_REDIS_ROOM_H
#define SERVER_STORE_REDIS_ROOM_H

#include "server/store/redis_place.h"

/* As redis_quota_reserve. */
void redis_room_reserve(struct store_place *place, struct store_reserve *reserve);

#endif
