/* SPDX-License-Identifier: Apache-2.0 */
/* The leases of sessions and requests that this server holds in a place that servers share: renews
 * them, from a thread of its own, since a long write to the place must not end them. One that
 * cannot be renewed ends by the place's clock, and its turn cannot be committed once another server
 * has taken the session. */
#ifndef SERVER_STORE_STORE_LEASES_H
#define SERVER_STORE_STORE_LEASES_H

#include "server/store/store_backend.h"

#include <pthread.h>

struct store_leases {
    const struct store_backend *backend;
    struct store_place *place; /* borrowed, as the accounts */
    struct store_accounts *accounts;
    double lease_s;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    struct store_held *first;
    bool closing;
};

int store_leases_start(struct store_leases *leases, const struct store_backend *backend,
                       struct store_place *place, double lease_s, struct store_accounts *accounts,
                       struct error *err);
/* Also of leases that were not started, which are all zero. */
void store_leases_stop(struct store_leases *leases);

/* An operation is to be run: what it gives back is held no longer. */
void store_leases_before(struct store_leases *leases, const struct store_op *op);
/* It has ended: what it took is held. Without memory it is not renewed. */
void store_leases_after(struct store_leases *leases, const struct store_op *op);

#endif
