/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_away.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct redis_away_node **place_of(struct redis_away *away, const char *name)
{
    struct redis_away_node **link = &away->first;
    while (*link != NULL && strcmp((*link)->connection.address.name, name) != 0)
        link = &(*link)->next;
    return link;
}

static void free_node(struct redis_away_node *node)
{
    redis_connection_close(&node->connection);
    free(node);
}

/* With the mutex held, but not while a node is asked. Only this thread takes nodes out. */
static void try_all(struct redis_away *away)
{
    struct redis_away_node *next;
    for (struct redis_away_node *at = away->first; at != NULL && !away->closing; at = next) {
        struct error ignored = ERROR_INIT; /* it is tried again, after a pause of its own */
        pthread_mutex_unlock(&away->mutex);
        bool back = redis_connection_open(&at->connection, false, &ignored) == 0;
        pthread_mutex_lock(&away->mutex);
        next = at->next;
        if (back) {
            *place_of(away, at->connection.address.name) = next;
            free_node(at);
        }
    }
}

static void *away_main(void *context)
{
    struct redis_away *away = context;
    const long pause = 50 * 1000000, second = 1000000000;
    pthread_setname_np(pthread_self(), "regla-away");
    pthread_mutex_lock(&away->mutex);
    while (!away->closing) {
        if (away->first == NULL) {
            pthread_cond_wait(&away->changed, &away->mutex);
            continue;
        }
        try_all(away);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += pause;
        until.tv_sec += until.tv_nsec / second;
        until.tv_nsec %= second;
        if (!away->closing)
            pthread_cond_timedwait(&away->changed, &away->mutex, &until);
    }
    pthread_mutex_unlock(&away->mutex);
    return NULL;
}

int redis_away_start(struct redis_away *away, struct error *err)
{
    pthread_condattr_t monotonic;
    *away = (struct redis_away){0};
    pthread_mutex_init(&away->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&away->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int code = pthread_create(&away->thread, NULL, away_main, away);
    away->started = code == 0;
    return code == 0 ? 0 : error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
}

void redis_away_stop(struct redis_away *away)
{
    if (!away->started)
        return;
    pthread_mutex_lock(&away->mutex);
    away->closing = true;
    pthread_cond_signal(&away->changed);
    pthread_mutex_unlock(&away->mutex);
    pthread_join(away->thread, NULL);
    for (struct redis_away_node *at = away->first, *next; at != NULL; at = next) {
        next = at->next;
        free_node(at);
    }
    pthread_mutex_destroy(&away->mutex);
    pthread_cond_destroy(&away->changed);
    away->started = false;
}

void redis_away_enter(struct redis_away *away, const struct redis_connection *connection)
{
    pthread_mutex_lock(&away->mutex);
    struct redis_away_node **link = place_of(away, connection->address.name);
    if (*link == NULL && (*link = calloc(1, sizeof **link)) != NULL) {
        redis_connection_init(&(*link)->connection, &connection->address, connection->timeout_s);
        pthread_cond_signal(&away->changed);
    }
    pthread_mutex_unlock(&away->mutex);
}

bool redis_away_has(struct redis_away *away, const struct redis_connection *connection)
{
    pthread_mutex_lock(&away->mutex);
    bool has = *place_of(away, connection->address.name) != NULL;
    pthread_mutex_unlock(&away->mutex);
    return has;
}
