#include "engine/cpu/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum {
    MOST_THREADS = 1024,
    SPINS = 2500 /* some 40 microseconds: longer than the gaps between the jobs of a step */
};

struct worker {
    struct threads *threads;
    pthread_t id;
    int index;
};

struct threads {
    int count;              /* with the caller */
    struct worker *workers; /* [count - 1] */
    int started;

    pthread_mutex_t mutex;
    pthread_cond_t wake, idle;
    atomic_uint generation; /* of jobs; written under the mutex */
    atomic_int active;      /* workers inside the job */
    bool open, stop, caller_waits;
    int sleepers;

    threads_task *task;
    void *context;
    int num_tasks;
    atomic_int next;
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

static void work(struct threads *threads, int index)
{
    for (;;) {
        int task = atomic_fetch_add_explicit(&threads->next, 1, memory_order_relaxed);
        if (task >= threads->num_tasks)
            return;
        threads->task(threads->context, task, index);
    }
}

/* Waits for a job after `seen`; false: the pool is closing. Counts itself in. */
static bool join_job(struct threads *threads, unsigned *seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&threads->generation, memory_order_relaxed) != *seen)
            break;
        pause_briefly();
    }
    pthread_mutex_lock(&threads->mutex);
    for (;;) {
        unsigned generation = atomic_load_explicit(&threads->generation, memory_order_relaxed);
        if (threads->stop) {
            pthread_mutex_unlock(&threads->mutex);
            return false;
        }
        if (generation != *seen) {
            *seen = generation;
            if (threads->open)
                break;
        }
        threads->sleepers++;
        pthread_cond_wait(&threads->wake, &threads->mutex);
        threads->sleepers--;
    }
    atomic_fetch_add_explicit(&threads->active, 1, memory_order_relaxed);
    pthread_mutex_unlock(&threads->mutex);
    return true;
}

static void leave_job(struct threads *threads)
{
    pthread_mutex_lock(&threads->mutex);
    int before = atomic_fetch_sub_explicit(&threads->active, 1, memory_order_release);
    if (before == 1 && threads->caller_waits)
        pthread_cond_signal(&threads->idle);
    pthread_mutex_unlock(&threads->mutex);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    unsigned seen = 0;
    threads_flush_denormals();
    while (join_job(worker->threads, &seen)) {
        work(worker->threads, worker->index);
        leave_job(worker->threads);
    }
    return NULL;
}

void threads_run(struct threads *threads, threads_task *task, void *context, int num_tasks)
{
    if (threads->count == 1 || num_tasks <= 1) {
        for (int i = 0; i < num_tasks; i++)
            task(context, i, 0);
        return;
    }
    pthread_mutex_lock(&threads->mutex);
    threads->task = task;
    threads->context = context;
    threads->num_tasks = num_tasks;
    atomic_store_explicit(&threads->next, 0, memory_order_relaxed);
    threads->open = true;
    atomic_fetch_add_explicit(&threads->generation, 1, memory_order_relaxed);
    if (threads->sleepers > 0)
        pthread_cond_broadcast(&threads->wake);
    pthread_mutex_unlock(&threads->mutex);

    work(threads, 0);

    pthread_mutex_lock(&threads->mutex);
    threads->open = false; /* who has not joined by now never will */
    pthread_mutex_unlock(&threads->mutex);
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&threads->active, memory_order_acquire) == 0)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&threads->mutex);
    threads->caller_waits = true;
    while (atomic_load_explicit(&threads->active, memory_order_acquire) != 0)
        pthread_cond_wait(&threads->idle, &threads->mutex);
    threads->caller_waits = false;
    pthread_mutex_unlock(&threads->mutex);
}

/* CPUs that the control group pays for, rounded up; 0: no limit. */
static int quota_cpus(void)
{
    long long quota = -1, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file != NULL) {
        if (fscanf(file, "%lld %lld", &quota, &period) != 2)
            quota = -1; /* "max" */
        fclose(file);
    } else {
        static const char *const names[2] = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
                                             "/sys/fs/cgroup/cpu/cpu.cfs_period_us"};
        long long *values[2] = {&quota, &period};
        for (int i = 0; i < 2; i++) {
            file = fopen(names[i], "re");
            if (file == NULL)
                return 0;
            if (fscanf(file, "%lld", values[i]) != 1)
                quota = -1;
            fclose(file);
        }
    }
    if (quota <= 0 || period <= 0)
        return 0;
    long long cpus = quota / period + (quota % period != 0);
    return cpus > MOST_THREADS ? 0 : (int)cpus;
}

static int default_count(void)
{
    cpu_set_t set;
    int count = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        count = CPU_COUNT(&set);
    int quota = quota_cpus();
    if (quota > 0 && quota < count)
        count = quota;
    return count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
}

int threads_open(struct threads **out, int count, struct error *err)
{
    if (count < 0 || count > MOST_THREADS)
        return error_set(err, ERROR_INVALID, "threads: expected 0 to %d, got %d", MOST_THREADS,
                         count);
    struct threads *threads = calloc(1, sizeof *threads);
    if (threads == NULL)
        return error_set(err, ERROR_NO_MEMORY, "threads: no memory");
    threads->count = count == 0 ? default_count() : count;
    pthread_mutex_init(&threads->mutex, NULL);
    pthread_cond_init(&threads->wake, NULL);
    pthread_cond_init(&threads->idle, NULL);
    threads->workers = calloc((size_t)threads->count, sizeof *threads->workers);
    if (threads->workers == NULL) {
        threads_close(threads);
        return error_set(err, ERROR_NO_MEMORY, "threads: no memory");
    }
    for (int i = 0; i < threads->count - 1; i++) {
        struct worker *worker = &threads->workers[i];
        worker->threads = threads;
        worker->index = i + 1;
        int result = pthread_create(&worker->id, NULL, worker_main, worker);
        if (result != 0) {
            threads_close(threads);
            return error_set(err, ERROR_IO, "threads: cannot start thread %d: %s", i + 1,
                             strerror(result));
        }
        threads->started++;
    }
    *out = threads;
    return 0;
}

void threads_close(struct threads *threads)
{
    if (threads == NULL)
        return;
    pthread_mutex_lock(&threads->mutex);
    threads->stop = true;
    atomic_fetch_add_explicit(&threads->generation, 1, memory_order_relaxed);
    pthread_cond_broadcast(&threads->wake);
    pthread_mutex_unlock(&threads->mutex);
    for (int i = 0; i < threads->started; i++)
        pthread_join(threads->workers[i].id, NULL);
    pthread_cond_destroy(&threads->wake);
    pthread_cond_destroy(&threads->idle);
    pthread_mutex_destroy(&threads->mutex);
    free(threads->workers);
    free(threads);
}

int threads_count(const struct threads *threads)
{
    return threads->count;
}
