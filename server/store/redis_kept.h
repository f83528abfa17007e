/* SPDX-License-Identifier: Apache-2.0 */
/* Operations whose end is not known, and that are sent again: with what has come meanwhile, or
 * after a pause. */
#ifndef SERVER_STORE_REDIS_KEPT_H
#define SERVER_STORE_REDIS_KEPT_H

#include "server/store/store_op.h"

struct redis_kept {
    struct store_op *first;
    double due; /* clock_seconds(), where there are any */
};

/* Those that are due, before the others. */
struct store_op *redis_kept_take(struct redis_kept *kept, struct store_op *first);
/* Keeps those that are to be sent again, as long as their time (until) is not over. Returns the
 * others. */
struct store_op *redis_kept_put(struct redis_kept *kept, struct store_op *first,
                                bool (*again)(const struct store_op *op));
/* Until when what is sent now is sent again: for the time of a lease, but not for long. */
double redis_kept_until(double lease_s);
/* In so many seconds; INFINITY: none is kept. */
double redis_kept_due_in(const struct redis_kept *kept);

#endif
