/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_room.h"

#include "lib/base/clock.h"
#include "server/store/redis_owners.h"
#include "server/store/redis_quota.h"

/* How long it may keep others waiting: who comes next goes on from there. Some go in any case: a
 * store that answers slowly has room all the same. */
static const double ROOM_SECONDS = 0.1;
enum { LEAST_DROPS = 8 };

void redis_room_reserve(struct store_place *place, struct store_reserve *reserve)
{
    struct store_op *op = &reserve->session.op;
    const double until = clock_seconds() + ROOM_SECONDS;
    redis_quota_reserve(place, reserve);
    if (op->refusal != STORE_QUOTA || !redis_quota_may_fit(place, reserve))
        return;
    struct error failed = ERROR_INIT;
    for (int drops = 0;
         op->refusal == STORE_QUOTA && (drops < LEAST_DROPS || clock_seconds() < until) &&
         redis_owners_drop_response(place, reserve->session.owner, &failed);
         drops++) {
        op->refusal = STORE_ACCEPTED;
        error_clear(&op->error);
        redis_quota_reserve(place, reserve);
    }
}
