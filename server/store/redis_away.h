/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of a cluster that do not answer, of all links of a place. Whoever waited for one in vain
 * enters it. From then on nobody waits for it, but for a thread that has no other work: once it has
 * reached the node, that is in use again. */
#ifndef SERVER_STORE_REDIS_AWAY_H
#define SERVER_STORE_REDIS_AWAY_H

#include "server/store/redis_connection.h"

#include <pthread.h>

struct redis_away_node {
    struct redis_away_node *next;
    struct redis_connection connection; /* the thread's, but for its name, which stays as it is */
};

struct redis_away {
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    struct redis_away_node *first;
    bool closing;
};

int redis_away_start(struct redis_away *away, struct error *err);
void redis_away_stop(struct redis_away *away);

/* From any thread: the node of this connection, which does not answer. */
void redis_away_enter(struct redis_away *away, const struct redis_connection *connection);
bool redis_away_has(struct redis_away *away, const struct redis_connection *connection);

#endif
