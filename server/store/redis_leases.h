/* SPDX-License-Identifier: Apache-2.0 */
/* Renews the leases of sessions and requests that this server holds, from a thread of its own: a
 * long write to the store must not end them. A lease that cannot be renewed ends by the store's
 * clock, and its turn cannot be committed once another server has taken the session. */
#ifndef SERVER_STORE_REDIS_LEASES_H
#define SERVER_STORE_REDIS_LEASES_H

#include "server/store/redis_keys.h"
#include "server/store/redis_link.h"
#include "server/store/redis_scripts.h"
#include "server/store/store_accounts.h"

#include <pthread.h>

struct redis_lease {
    struct redis_lease *next;
    char key[REDIS_KEY_SIZE], holder[STORE_NAME_SIZE];
    struct redis_script *script; /* that renews it: ARGV holder, lease in ms */
};

struct redis_leases {
    struct redis_link link; /* the thread's */
    double lease_s;
    struct store_accounts *accounts; /* borrowed */
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    struct redis_lease *first;
    bool closing;
};

/* away: borrowed, of the link; NULL: it is no cluster. */
int redis_leases_start(struct redis_leases *leases, const struct redis_address *address,
                       double lease_s, double timeout_s, struct redis_away *away,
                       struct store_accounts *accounts, struct error *err);
void redis_leases_stop(struct redis_leases *leases);

/* From any thread. key: of what is held; script: renews it (redis_scripts.h). -1: no memory. */
int redis_leases_add(struct redis_leases *leases, const char *key, const char *holder,
                     struct redis_script *script, struct error *err);
/* Whether it was held. */
bool redis_leases_drop(struct redis_leases *leases, const char *holder);

#endif
