/* SPDX-License-Identifier: Apache-2.0 */
/* The tenants (server/tenant.h) that have something at the engine thread, and what each has had of
 * it. All functions are for the engine thread. */
#ifndef SERVER_SCHEDULE_TENANTS_H
#define SERVER_SCHEDULE_TENANTS_H

#include "server/schedule/inbox.h"

struct tenant {
    uint64_t name;
    struct job_list waiting; /* have prompts to start, oldest first */
    size_t open;             /* its texts, in the batch and aside */
    size_t places;           /* of these, in the batch */
    /* Tokens that were computed for it. Who comes, or had nothing to compute, begins with what the
     * least served of the others has: nobody saves up. */
    int64_t served;
    int64_t seen;            /* `served` in the last turn */
    size_t held;             /* bytes of its states, when they were last measured (room.c) */
    bool blocked;            /* in this turn it gets no more places */
    struct sequence *oldest; /* of its texts that are aside and can go on, in this turn; or NULL */
    struct tenant *next;
};

struct tenants {
    struct tenant *first;
    int64_t clock; /* what the least served had, of those that had something to compute */
};

void tenants_clear(struct tenants *tenants);
/* Finds or makes a tenant, which stays until a turn finds that it has nothing. NULL: no memory. */
struct tenant *tenants_get(struct tenants *tenants, uint64_t name);
/* A turn begins. */
void tenants_turn(struct tenants *tenants);

#endif
