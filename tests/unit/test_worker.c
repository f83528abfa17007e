/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of workers: of a tenant first come, first served, and turns of tenants. */
#include "server/worker.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

struct note {
    struct work work; /* the first member */
    char name;
};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool began;
static char order[16];
static size_t ran;

static void run(struct work *work)
{
    atomic_store(&began, true);
    pthread_mutex_lock(&gate); /* the first waits here until all are queued */
    order[ran++] = ((struct note *)work)->name;
    pthread_mutex_unlock(&gate);
}

Test(worker, tenants_take_turns)
{
    alarm(60);
    static const struct {
        char name;
        uint64_t tenant;
    } submitted[] = {{'a', 1}, {'b', 1}, {'c', 1}, {'d', 1}, {'x', 2}, {'y', 2}, {'p', 3}};
    struct note notes[sizeof submitted / sizeof *submitted];
    struct worker_pool *pool;
    cr_assert_eq(worker_pool_create(&pool, "test", 1, NULL), 0);
    /* Of long work one thread does one after the other. */
    const size_t bytes = WORK_SHORT_BYTES + 1;
    struct note first = {{.run = run, .bytes = bytes, .tenant = 1}, '-'};
    pthread_mutex_lock(&gate);
    worker_submit(pool, &first.work);
    while (!atomic_load(&began))
        usleep(1000);
    for (size_t i = 0; i < sizeof submitted / sizeof *submitted; i++) {
        notes[i] = (struct note){{.run = run, .bytes = bytes, .tenant = submitted[i].tenant},
                                 submitted[i].name};
        worker_submit(pool, &notes[i].work);
    }
    pthread_mutex_unlock(&gate);
    worker_pool_stop(pool);
    cr_assert_str_eq(order, "-axpbycd");
    worker_pool_free(pool);
}
