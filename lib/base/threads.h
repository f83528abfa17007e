/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads. They share the tasks of one job at a time and sleep between jobs.
 *
 * Each thread has a share of neighbouring tasks, so that it walks memory forward. It claims a part
 * of what is left of its share at a time, the last tasks one by one; when its share is done, it
 * helps the others. So a thread that loses its core, or wakes late, delays only the tasks that it
 * has claimed. What a task computes never depends on the thread that runs it. The caller works too.
 *
 * While the threads are awake a job takes no lock; without work they stay awake for some 100
 * microseconds. A thread that wakes another after a pause keeps it off its own CPU, if there is
 * another. Every thread flushes denormals to zero. Where CPUs are beside several memories
 * (sockets), each thread of the pool's own keeps to those beside one, and so near to what it wrote
 * first. */
#ifndef LIB_BASE_THREADS_H
#define LIB_BASE_THREADS_H

#include "lib/base/error.h"

struct threads;

/* thread: 0..count-1; the caller is thread 0. */
typedef void threads_task(void *context, int task, int thread);

/* count 0: as many as this process may use (cpus.h). */
int threads_open(struct threads **out, int count, struct error *err);
/* The same where a directory says which CPUs are beside which memory (cpus_of_node). */
int threads_open_on(const char *nodes, struct threads **out, int count, struct error *err);
void threads_close(struct threads *threads); /* NULL is allowed */
int threads_count(const struct threads *threads);

/* Runs tasks 0..num_tasks-1, each once, and returns when all are done. One caller at a time. A task
 * should take some microseconds, to be worth claiming. */
void threads_run(struct threads *threads, threads_task *task, void *context, int num_tasks);

/* A hint: what the thread will read first in a later job. While it waits for jobs, it prefetches
 * some of it. The pointer may point anywhere. */
void threads_ahead(struct threads *threads, int thread, const void *memory);

/* Turns flush-to-zero on in the calling thread. Give the result to threads_restore_float. */
unsigned threads_flush_denormals(void);
void threads_restore_float(unsigned saved);

#endif
