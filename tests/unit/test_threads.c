/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/threads.h"

#include "lib/base/clock.h"
#include "lib/base/cpus.h"

#include <criterion/criterion.h>
#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TASKS = 2000 };

struct tally {
    atomic_int counts[MOST_TASKS];
    atomic_int denormals; /* tasks that saw a denormal survive */
    atomic_int strays;    /* tasks with a thread number out of range */
    int threads;
};

static void count_task(void *context, int task, int thread)
{
    struct tally *tally = context;
    volatile float tiny = FLT_MIN;
    volatile float half = tiny * 0.5f;
    atomic_fetch_add(&tally->counts[task], 1);
    if (half != 0.0f)
        atomic_fetch_add(&tally->denormals, 1);
    if (thread < 0 || thread >= tally->threads)
        atomic_fetch_add(&tally->strays, 1);
}

Test(threads, every_task_runs_once)
{
    static struct tally tally;
    for (int count = 1; count <= 5; count++) {
        struct threads *threads;
        struct error err = ERROR_INIT;
        cr_assert(threads_open(&threads, count, &err) == 0, "%s", err.message);
        cr_expect(threads_count(threads) == count);
        tally.threads = count;
        for (int job = 0; job < 300; job++) {
            int tasks = job * 37 % MOST_TASKS;
            memset(&tally.counts, 0, sizeof tally.counts);
            threads_run(threads, count_task, &tally, tasks);
            cr_assert(tally.strays == 0);
            for (int i = 0; i < MOST_TASKS; i++)
                cr_assert(tally.counts[i] == (i < tasks), "task %d of %d on %d threads", i, tasks,
                          count);
        }
        threads_close(threads);
    }
}

static void busy_task(void *context, int task, int thread)
{
    volatile int *steps = context;
    (void)task;
    (void)thread;
    for (int i = 0; i < *steps; i++)
        ;
}

/* Processor time of the whole process for many small jobs: the least of some tries. */
static double cost_of_jobs(int count)
{
    enum { TRIES = 3, JOBS = 400, TASKS = 32 };
    double least = DBL_MAX;
    struct threads *threads;
    int steps = 20000;
    cr_assert(threads_open(&threads, count, NULL) == 0);
    for (int try = 0; try < TRIES; try++) {
        struct timespec from, to;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        for (int job = 0; job < JOBS; job++)
            threads_run(threads, busy_task, &steps, TASKS);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        double seconds =
            (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        least = seconds < least ? seconds : least;
    }
    threads_close(threads);
    return least;
}

/* Threads that wait for each other on one CPU sleep at once. They are woken and switched for every
 * job, which costs something; but not as much again as the work. */
Test(threads, more_of_them_than_cpus_take_little_more_time)
{
    enum { TRIES = 10 }; /* a machine that does other things as well makes switches dearer */
    const int cpus = cpus_allowed();
    double fitting = 0, too_many = 1;
    for (int try = 0; try < TRIES && too_many >= 2 * fitting; try++) {
        fitting = cost_of_jobs(1);
        too_many = cost_of_jobs(4 * cpus + 4);
    }
    cr_expect(too_many < 2 * fitting, "%g s of processor time, alone %g s", too_many, fitting);
}

enum { MET = 4 };

/* Ends when MET threads are in it, so that each of them runs one task (or after 10 s). */
static void meet_task(void *context, int task, int thread)
{
    static atomic_int arrived;
    const struct timespec pause = {.tv_nsec = 1000000};
    atomic_fetch_add(&arrived, 1);
    for (int i = 0; i < 10000 && arrived < MET; i++)
        nanosleep(&pause, NULL);
    count_task(context, task, arrived == MET ? thread : -1);
}

Test(threads, every_thread_flushes_denormals)
{
    static struct tally tally = {.threads = MET};
    struct threads *threads;
    cr_assert(threads_open(&threads, MET, NULL) == 0);
    unsigned saved = threads_flush_denormals();
    threads_run(threads, meet_task, &tally, MET);
    threads_restore_float(saved);
    cr_expect(tally.strays == 0, "the threads did not meet");
    cr_expect(tally.denormals == 0);
    threads_close(threads);
}

static void sleep_task(void *context, int task, int thread)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    (void)task;
    (void)thread;
    nanosleep(&pause, NULL);
    atomic_fetch_add((atomic_int *)context, 1);
}

Test(threads, a_job_ends_only_when_its_last_task_has)
{
    atomic_int done = 0;
    struct threads *threads;
    cr_assert(threads_open(&threads, 3, NULL) == 0);
    for (int job = 1; job <= 20; job++) {
        threads_run(threads, sleep_task, &done, 3);
        cr_assert(atomic_load(&done) == 3 * job);
    }
    threads_close(threads);
}

/* What threads are told to read next may lie anywhere: nothing reads it. */
Test(threads, a_hint_may_point_anywhere)
{
    static struct tally tally;
    static const char memory[64];
    const char *const places[] = {NULL, memory, memory + 63, (const char *)1, (const char *)-1};
    struct threads *threads;
    struct error err = ERROR_INIT;
    cr_assert(threads_open(&threads, 3, &err) == 0, "%s", err.message);
    tally.threads = 3;
    for (int job = 0; job < 500; job++) {
        for (int i = 0; i < 3; i++)
            threads_ahead(threads, i, places[(job + i) % 5]);
        threads_run(threads, count_task, &tally, 7);
    }
    cr_expect(tally.strays == 0);
    for (int i = 0; i < 7; i++)
        cr_expect(tally.counts[i] == 500, "task %d", i);
    threads_close(threads);
}

/* Idle threads park: a pool that is open for 200 ms must not burn a fraction of a core. */
Test(threads, idle_threads_use_no_time)
{
    static struct tally tally = {.threads = 4};
    const struct timespec pause = {.tv_nsec = 200000000};
    struct timespec before, after;
    struct threads *threads;
    cr_assert(threads_open(&threads, 4, NULL) == 0);
    threads_run(threads, count_task, &tally, 4);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    cr_expect(used < 0.02, "%g s", used);
    threads_close(threads);
}

Test(threads, a_senseless_count_is_refused)
{
    struct threads *threads = NULL;
    struct error err = ERROR_INIT;
    cr_expect(threads_open(&threads, -1, &err) == -1 && err.code == ERROR_INVALID);
    error_clear(&err);
    cr_expect(threads_open(&threads, 1 << 20, &err) == -1 && err.code == ERROR_INVALID);
}

Test(threads, the_default_is_at_least_one)
{
    struct threads *threads;
    cr_assert(threads_open(&threads, 0, NULL) == 0);
    cr_expect(threads_count(threads) >= 1);
    threads_close(threads);
}

enum { NAPS = 20 };

struct places {
    atomic_int worker; /* gettid, once it has run a task */
    bool together;
};

/* Where the kernel has put a thread, whether or not it has run there yet. */
static int processor_of(pid_t thread)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    FILE *file = fopen(path, "re");
    cr_assert(file != NULL && fgets(line, sizeof line, file) != NULL, "%s", path);
    fclose(file);
    const char *at = strrchr(line, ')');
    for (int field = 2; field < 39 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    cr_assert(at != NULL, "%s", line);
    return atoi(at + 1);
}

static void place_task(void *context, int task, int thread)
{
    struct places *places = context;
    double end = clock_seconds() + 1e-3;
    if (thread == 1)
        places->worker = gettid();
    else if (task == 0 && places->worker != 0)
        places->together = processor_of(places->worker) == cpus_current();
    while (clock_seconds() < end)
        ;
}

/* A step after a pause has the CPUs that the steps before it had. */
Test(threads, who_wakes_leaves_the_callers_cpu)
{
    const struct timespec nap = {.tv_nsec = 10000000};
    struct places places = {0};
    struct threads *threads;
    struct error err = ERROR_INIT;
    int together = 0;
    if (cpus_allowed() < 2)
        cr_skip("one CPU");
    cr_assert(threads_open(&threads, 2, &err) == 0, "%s", err.message);
    for (int i = 0; i < 10000 && places.worker == 0; i++)
        threads_run(threads, place_task, &places, 2);
    cr_assert(places.worker != 0);
    for (int i = 0; i < NAPS; i++) {
        nanosleep(&nap, NULL);
        threads_run(threads, place_task, &places, 2);
        together += places.together;
    }
    threads_close(threads);
    cr_expect(together <= NAPS / 5, "%d of %d times on one CPU", together, NAPS);
}
