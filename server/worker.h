/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that does what would hold up an event loop: parse long bodies, tokenize, write
 * long replies. First come, first served. */
#ifndef SERVER_WORKER_H
#define SERVER_WORKER_H

#include "engine/base/error.h"

struct work {
    void (*run)(struct work *work); /* on a thread of the pool; it may free `work` */
    struct work *next;              /* the pool's */
};

struct worker_pool;

int worker_pool_create(struct worker_pool **out, int threads, struct error *err);
/* Runs what is queued, then ends the threads. Work that is submitted later runs in its caller's
 * thread. May be called twice, and with NULL. */
void worker_pool_stop(struct worker_pool *pool);
void worker_pool_free(struct worker_pool *pool); /* stops it first */

void worker_submit(struct worker_pool *pool, struct work *work);

#endif
