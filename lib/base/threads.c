/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/threads.h"

#include "lib/base/clock.h"
#include "lib/base/cpus.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { MOST_THREADS = 1024, CACHE_LINE = 64, SPINS_PER_LOOK = 16 };

enum {
    CLAIM_PART = 4,          /* of a share's tasks that are left */
    AHEAD_BYTES = 128 * 1024 /* well under a core's second cache */
};

/* Longer than the gaps between the jobs of a step, short beside the slices of a scheduler. */
static const double SPIN_SECONDS = 100e-6;

/* Something that happens again and again, which threads wait for. */
struct event {
    alignas(CACHE_LINE) atomic_uint count; /* of times it happened */
    atomic_int sleepers; /* at least as many as wait for `wake` and were not woken; under the mutex,
                            but for the first look */
    pthread_cond_t wake;
};

/* A thread's share of a job's tasks in one word, the next of them << 32 | their end: who claims one
 * adds to it once, and a claim that comes too late is either past the end, or of the next job. */
struct share {
    alignas(CACHE_LINE) atomic_uint_least64_t word;
    atomic_uintptr_t ahead; /* threads_ahead */
    uintptr_t asked;        /* the thread's own: what it has asked memory for of that */
    uintptr_t asked_bytes;
};

/* How long a thread has slept when it is that none had work. Where another process has a CPU,
 * threads sleep and wake within a step, and Linux places them well. */
static const double PAUSE_SECONDS = 5e-3;

/* A thread while it sleeps. Linux may wake it on the CPU of who wakes it though others are idle,
 * and takes some 10 ms to part the two, which is a step or two: so it is kept off that CPU, and may
 * be on each again as soon as it is awake. */
struct sleeper {
    pid_t id;     /* 0: it is awake */
    double since; /* clock_seconds */
    bool kept_off;
    cpu_set_t cpus; /* if so: those it had */
};

struct worker {
    struct threads *threads;
    pthread_t id;
    int index;
    bool near_memory;
    cpu_set_t cpus; /* that it keeps to, if so */
};

struct threads {
    int count;              /* with the caller */
    struct worker *workers; /* [count - 1] */
    int started;
    double spin_seconds;

    pthread_mutex_t mutex;    /* of the events' sleepers */
    struct sleeper *sleepers; /* [count] */
    struct event posted;      /* a job */
    struct event finished;    /* by a worker */
    atomic_bool stop;

    /* the job: written while no task is left, read by who has claimed one */
    threads_task *task;
    void *context;
    struct share *shares;                   /* [count] */
    alignas(CACHE_LINE) atomic_int pending; /* tasks that are not done */
};

unsigned threads_flush_denormals(void)
{
#if defined(__x86_64__)
    unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040); /* FTZ, DAZ */
    return saved;
#elif defined(__aarch64__)
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(saved | (1u << 24)));
    return (unsigned)saved;
#else
    return 0;
#endif
}

void threads_restore_float(unsigned saved)
{
#if defined(__x86_64__)
    _mm_setcsr(saved);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved));
#else
    (void)saved;
#endif
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void keep_sleepers_off(struct threads *threads, int cpu)
{
    double now = clock_seconds();
    if (threads->spin_seconds == 0) /* there are too few CPUs */
        return;
    for (int i = 0; i < threads->count; i++) {
        struct sleeper *sleeper = &threads->sleepers[i];
        if (sleeper->id != 0 && now - sleeper->since > PAUSE_SECONDS &&
            (sleeper->kept_off || cpus_of(sleeper->id, &sleeper->cpus)))
            sleeper->kept_off |= cpus_keep_off(sleeper->id, &sleeper->cpus, cpu);
    }
}

/* Wakes at most `most` of those who wait. */
static void event_raise(struct threads *threads, struct event *event, int most)
{
    atomic_fetch_add(&event->count, 1);
    if (atomic_load(&event->sleepers) == 0) /* who counts itself later sees the new count */
        return;
    pthread_mutex_lock(&threads->mutex);
    keep_sleepers_off(threads, cpus_current());
    for (; most > 0 && atomic_load(&event->sleepers) > 0; most--) {
        atomic_fetch_sub(&event->sleepers, 1);
        pthread_cond_signal(&event->wake);
    }
    pthread_mutex_unlock(&threads->mutex);
}

/* Asks memory for one more line of what the thread will read, or rests. */
static void use_time(struct share *share)
{
    uintptr_t ahead = atomic_load_explicit(&share->ahead, memory_order_relaxed);
    if (share->asked != ahead) {
        share->asked = ahead;
        share->asked_bytes = 0;
    }
    if (ahead != 0 && share->asked_bytes < AHEAD_BYTES) {
        __builtin_prefetch((const void *)(ahead + share->asked_bytes), 0, 3);
        share->asked_bytes += CACHE_LINE;
    } else {
        pause_briefly();
    }
}

static bool spin(const struct threads *threads, struct event *event, unsigned seen, int index)
{
    double end = clock_seconds() + threads->spin_seconds;
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (atomic_load_explicit(&event->count, memory_order_acquire) != seen)
                return true;
            use_time(&threads->shares[index]);
        }
    } while (clock_seconds() < end);
    return false;
}

static void sleep_until(struct threads *threads, struct event *event, unsigned seen, int index)
{
    struct sleeper *sleeper = &threads->sleepers[index], woken;
    pthread_mutex_lock(&threads->mutex);
    *sleeper = (struct sleeper){.id = gettid(), .since = clock_seconds()};
    for (;;) {
        atomic_fetch_add(&event->sleepers, 1);
        if (atomic_load(&event->count) != seen)
            break;
        pthread_cond_wait(&event->wake, &threads->mutex);
    }
    atomic_fetch_sub(&event->sleepers, 1);
    woken = *sleeper;
    sleeper->id = 0;
    pthread_mutex_unlock(&threads->mutex);
    if (woken.kept_off)
        cpus_use(&woken.cpus);
}

/* Waits, as thread `index`, until the count is not `seen`, and returns it. */
static unsigned event_await(struct threads *threads, struct event *event, unsigned seen, int index)
{
    if (!spin(threads, event, seen, index))
        sleep_until(threads, event, seen, index);
    return atomic_load_explicit(&event->count, memory_order_acquire);
}

/* Runs tasks of a share while there are any; returns how many. A claim waits for all that the core
 * has asked of memory before, so there are few. */
static int run_share(struct threads *threads, struct share *share, int index)
{
    int done = 0;
    uint64_t word = atomic_load_explicit(&share->word, memory_order_relaxed);
    while (word >> 32 < (uint32_t)word) {
        uint64_t claim = ((uint32_t)word - (word >> 32) + CLAIM_PART - 1) / CLAIM_PART;
        word = atomic_fetch_add_explicit(&share->word, claim << 32, memory_order_acquire);
        uint64_t task = word >> 32, end = (uint32_t)word;
        end = task + claim < end ? task + claim : end;
        for (; task < end; task++, done++)
            threads->task(threads->context, (int)task, index);
        word += claim << 32;
    }
    return done;
}

/* Runs the thread's own share, then what is left of the others'. True: no task is left. */
static bool work(struct threads *threads, int index)
{
    int done = 0;
    for (int i = 0; i < threads->count; i++)
        done += run_share(threads, &threads->shares[(index + i) % threads->count], index);
    return done > 0 && atomic_fetch_sub(&threads->pending, done) == done;
}

static void *worker_main(void *argument)
{
    const struct worker *worker = argument;
    struct threads *threads = worker->threads;
    unsigned seen = 0;
    pthread_setname_np(pthread_self(), "regla-compute");
    if (worker->near_memory)
        cpus_use(&worker->cpus);
    threads_flush_denormals();
    for (;;) {
        seen = event_await(threads, &threads->posted, seen, worker->index);
        if (atomic_load(&threads->stop))
            return NULL;
        if (work(threads, worker->index))
            event_raise(threads, &threads->finished, 1);
    }
}

void threads_run(struct threads *threads, threads_task *task, void *context, int num_tasks)
{
    if (threads->count == 1 || num_tasks <= 1) {
        for (int i = 0; i < num_tasks; i++)
            task(context, i, 0);
        return;
    }
    unsigned seen = atomic_load(&threads->finished.count);
    threads->task = task;
    threads->context = context;
    atomic_store(&threads->pending, num_tasks);
    uint64_t count = (uint64_t)threads->count, first = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t end = (uint64_t)num_tasks * (i + 1) / count;
        atomic_store_explicit(&threads->shares[i].word, first << 32 | end, memory_order_release);
        first = end;
    }
    event_raise(threads, &threads->posted, num_tasks - 1);
    if (!work(threads, 0))
        event_await(threads, &threads->finished, seen, 0);
}

void threads_ahead(struct threads *threads, int thread, const void *memory)
{
    atomic_store_explicit(&threads->shares[thread].ahead, (uintptr_t)memory, memory_order_relaxed);
}

static void event_init(struct event *event)
{
    atomic_init(&event->count, 0);
    atomic_init(&event->sleepers, 0);
    pthread_cond_init(&event->wake, NULL);
}

/* The caller's thread is not the pool's to move: what it starts later would move with it. */
static int start_workers(struct threads *threads, const char *nodes, struct error *err)
{
    cpu_set_t allowed;
    const bool known = cpus_of(0, &allowed);
    for (int i = 0; i < threads->count - 1; i++) {
        struct worker *worker = &threads->workers[i];
        worker->threads = threads;
        worker->index = i + 1;
        worker->near_memory =
            known && cpus_of_node(nodes, &allowed, worker->index, threads->count, &worker->cpus);
        int result = pthread_create(&worker->id, NULL, worker_main, worker);
        if (result != 0)
            return error_set(err, ERROR_IO, "threads: cannot start thread %d: %s", i + 1,
                             strerror(result));
        threads->started++;
    }
    return 0;
}

int threads_open_on(const char *nodes, struct threads **out, int count, struct error *err)
{
    if (count < 0 || count > MOST_THREADS)
        return error_set(err, ERROR_INVALID, "threads: expected 0 to %d, got %d", MOST_THREADS,
                         count);
    struct threads *threads = aligned_alloc(alignof(struct threads), sizeof *threads);
    if (threads == NULL)
        return error_set(err, ERROR_NO_MEMORY, "threads: no memory");
    int cpus = cpus_allowed();
    *threads = (struct threads){.count = count > 0             ? count
                                         : cpus < MOST_THREADS ? cpus
                                                               : MOST_THREADS};
    /* Threads that share a core with each other must not keep it from each other. */
    threads->spin_seconds = threads->count > cpus ? 0 : SPIN_SECONDS;
    pthread_mutex_init(&threads->mutex, NULL);
    event_init(&threads->posted);
    event_init(&threads->finished);
    threads->workers = calloc((size_t)threads->count, sizeof *threads->workers);
    threads->shares =
        aligned_alloc(alignof(struct share), (size_t)threads->count * sizeof *threads->shares);
    threads->sleepers = calloc((size_t)threads->count, sizeof *threads->sleepers);
    int result;
    if (threads->workers == NULL || threads->shares == NULL || threads->sleepers == NULL) {
        result = error_set(err, ERROR_NO_MEMORY, "threads: no memory");
    } else {
        memset(threads->shares, 0, (size_t)threads->count * sizeof *threads->shares);
        result = start_workers(threads, nodes, err);
    }
    if (result != 0)
        threads_close(threads);
    else
        *out = threads;
    return result;
}

int threads_open(struct threads **out, int count, struct error *err)
{
    return threads_open_on(CPUS_NODES, out, count, err);
}

void threads_close(struct threads *threads)
{
    if (threads == NULL)
        return;
    atomic_store(&threads->stop, true);
    event_raise(threads, &threads->posted, threads->count);
    for (int i = 0; i < threads->started; i++)
        pthread_join(threads->workers[i].id, NULL);
    pthread_cond_destroy(&threads->posted.wake);
    pthread_cond_destroy(&threads->finished.wake);
    pthread_mutex_destroy(&threads->mutex);
    free(threads->sleepers);
    free(threads->shares);
    free(threads->workers);
    free(threads);
}

int threads_count(const struct threads *threads)
{
    return threads->count;
}
