/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_kept.h"

#include "lib/base/clock.h"

#include <math.h>

static const double PAUSE_SECONDS = 0.05, MOST_SECONDS = 10;

static struct store_op **end_of(struct store_op **first)
{
    while (*first != NULL)
        first = &(*first)->next;
    return first;
}

struct store_op *redis_kept_take(struct redis_kept *kept, struct store_op *first)
{
    if (kept->first == NULL || clock_seconds() < kept->due)
        return first;
    *end_of(&kept->first) = first;
    first = kept->first;
    kept->first = NULL;
    return first;
}

struct store_op *redis_kept_put(struct redis_kept *kept, struct store_op *first,
                                bool (*again)(const struct store_op *op))
{
    struct store_op *ended = NULL, **last = &ended, **behind = end_of(&kept->first);
    const double now = clock_seconds();
    for (struct store_op *op = first, *next; op != NULL; op = next) {
        struct store_op ***end = again(op) && now < op->until ? &behind : &last;
        next = op->next;
        op->next = NULL;
        **end = op;
        *end = &op->next;
    }
    if (kept->first != NULL && kept->due <= now)
        kept->due = now + PAUSE_SECONDS;
    return ended;
}

double redis_kept_until(double lease_s)
{
    return clock_seconds() + fmin(lease_s, MOST_SECONDS);
}

double redis_kept_due_in(const struct redis_kept *kept)
{
    return kept->first != NULL ? fmax(kept->due - clock_seconds(), 0) : INFINITY;
}
