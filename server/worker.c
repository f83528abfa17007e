/* SPDX-License-Identifier: Apache-2.0 */
#include "server/worker.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct lane {
    struct work *first; /* of the tenant whose turn it is; by work->turn the others' */
};

struct worker_pool {
    const char *name;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct lane brief, lengthy;
    uint64_t submitted;
    int at_length, most_at_length; /* threads that do long work */
    bool closing;
    int num_threads;
    pthread_t threads[];
};

static bool is_long(const struct work *work)
{
    return work->bytes > WORK_SHORT_BYTES;
}

/* The lane whose next work came first, of those that may be done now; NULL: there is none. */
static struct lane *next_lane(struct worker_pool *pool)
{
    const struct work *work = pool->brief.first, *other = pool->lengthy.first;
    if (!other || pool->at_length == pool->most_at_length)
        return work ? &pool->brief : NULL;
    return work && work->order < other->order ? &pool->brief : &pool->lengthy;
}

/* Puts it behind all that its tenant has, and a tenant that had nothing behind all others. */
static void put(struct lane *lane, struct work *work)
{
    struct work **link = &lane->first;
    while (*link && (*link)->tenant != work->tenant)
        link = &(*link)->turn;
    work->next = work->turn = NULL;
    if (*link) {
        (*link)->last->next = work;
        (*link)->last = work;
    } else {
        *link = work->last = work;
    }
}

/* Takes the first of the tenant whose turn it is. */
static struct work *take(struct lane *lane)
{
    struct work *work = lane->first, *rest = work->next;
    lane->first = work->turn;
    if (!rest)
        return work;
    struct work **link = &lane->first;
    while (*link)
        link = &(*link)->turn;
    rest->last = work->last;
    rest->turn = NULL;
    *link = rest;
    return work;
}

/* Long work that is left waiting goes to who does long work now. */
static void *worker_main(void *context)
{
    struct worker_pool *pool = context;
    struct lane *lane;
    pthread_setname_np(pthread_self(), pool->name);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!(lane = next_lane(pool)) && !pool->closing)
            pthread_cond_wait(&pool->filled, &pool->lock);
        if (!lane)
            break;
        struct work *work = take(lane);
        bool lengthy = is_long(work);
        pool->at_length += lengthy;
        pthread_mutex_unlock(&pool->lock);
        work->run(work);
        pthread_mutex_lock(&pool->lock);
        pool->at_length -= lengthy;
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int worker_pool_create(struct worker_pool **out, const char *name, int threads, struct error *err)
{
    struct worker_pool *pool =
        calloc(1, sizeof *pool + ((size_t)threads + 1) * sizeof *pool->threads);
    if (!pool)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %d threads", threads);
    pool->name = name;
    pool->most_at_length = threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->filled, NULL);
    for (int i = 0; i < threads + 1; i++) {
        int code = pthread_create(&pool->threads[i], NULL, worker_main, pool);
        if (code) {
            worker_pool_free(pool);
            return error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
        }
        pool->num_threads++;
    }
    *out = pool;
    return 0;
}

void worker_pool_stop(struct worker_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->filled);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->num_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pool->num_threads = 0;
}

void worker_pool_free(struct worker_pool *pool)
{
    if (!pool)
        return;
    worker_pool_stop(pool);
    pthread_cond_destroy(&pool->filled);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void worker_submit(struct worker_pool *pool, struct work *work)
{
    pthread_mutex_lock(&pool->lock);
    bool closing = pool->closing;
    if (!closing) {
        work->order = pool->submitted++;
        put(is_long(work) ? &pool->lengthy : &pool->brief, work);
        pthread_cond_signal(&pool->filled);
    }
    pthread_mutex_unlock(&pool->lock);
    if (closing)
        work->run(work);
}
