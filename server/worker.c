/* SPDX-License-Identifier: Apache-2.0 */
#include "server/worker.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct worker_pool {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct work *head, *tail;
    bool closing;
    int num_threads;
    pthread_t threads[];
};

static void *worker_main(void *context)
{
    struct worker_pool *pool = context;
    pthread_setname_np(pthread_self(), "regla-tokenize");
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->head && !pool->closing)
            pthread_cond_wait(&pool->filled, &pool->lock);
        struct work *work = pool->head;
        if (!work)
            break;
        pool->head = work->next;
        if (!pool->head)
            pool->tail = NULL;
        pthread_mutex_unlock(&pool->lock);
        work->run(work);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int worker_pool_create(struct worker_pool **out, int threads, struct error *err)
{
    struct worker_pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof *pool->threads);
    if (!pool)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %d threads", threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->filled, NULL);
    for (int i = 0; i < threads; i++) {
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
    work->next = NULL;
    pthread_mutex_lock(&pool->lock);
    bool closing = pool->closing;
    if (!closing) {
        if (pool->tail)
            pool->tail->next = work;
        else
            pool->head = work;
        pool->tail = work;
        pthread_cond_signal(&pool->filled);
    }
    pthread_mutex_unlock(&pool->lock);
    if (closing)
        work->run(work);
}
