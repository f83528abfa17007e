/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that does what would hold up an event loop: parse long bodies, render chat
 * templates, tokenize, write long replies. Long work never has all threads: one is left for what is
 * short. Of each kind, and of a tenant (tenant.h), first come, first served; tenants take turns. */
#ifndef SERVER_WORKER_H
#define SERVER_WORKER_H

#include "lib/base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Work on more bytes is long. So many take some milliseconds. */
enum { WORK_SHORT_BYTES = 32 * 1024 };

struct work {
    void (*run)(struct work *work); /* on a thread of the pool; it may free `work` */
    size_t bytes;                   /* that it works on */
    uint64_t tenant;
    uint64_t order;    /* the pool's, as what follows */
    struct work *next; /* of the same tenant */
    struct work *last; /* of the tenant's first, its last */
    struct work *turn; /* of the tenant's first, that of the next tenant */
};

struct worker_pool;

/* At most `threads` do long work at once; there is one more. name: of the threads, borrowed. */
int worker_pool_create(struct worker_pool **out, const char *name, int threads, struct error *err);
/* Runs what is queued, then ends the threads. Work that is submitted later runs in its caller's
 * thread. May be called twice, and with NULL. */
void worker_pool_stop(struct worker_pool *pool);
void worker_pool_free(struct worker_pool *pool); /* stops it first */

void worker_submit(struct worker_pool *pool, struct work *work);

#endif
