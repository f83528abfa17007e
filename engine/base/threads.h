/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that share the tasks of one job at a time and park between jobs.
 *
 * Each thread has a share of neighbouring tasks, so that it walks memory forward, and claims a part
 * of those that are left at a time, the last ones one by one; who has finished its own takes what
 * is left of the others'. So a thread that lost its core, or wakes late, delays only the tasks it
 * holds. What a task computes never depends on who runs it. The caller works too. A job costs no
 * lock while the threads are awake; they stay so for some 100 microseconds without work. Who wakes
 * one after a pause keeps it off its own CPU, if there is another. Every thread runs with denormals
 * flushed to zero. */
#ifndef ENGINE_BASE_THREADS_H
#define ENGINE_BASE_THREADS_H

#include "engine/base/error.h"

struct threads;

/* thread: 0..count-1, the caller is 0. */
typedef void threads_task(void *context, int task, int thread);

/* count 0: as many as this process may use (cpus.h). */
int threads_open(struct threads **out, int count, struct error *err);
void threads_close(struct threads *threads); /* NULL is allowed */
int threads_count(const struct threads *threads);

/* Runs task 0..num_tasks-1, each once; returns when all are done. One caller at a time. A task that
 * is worth claiming takes some microseconds. */
void threads_run(struct threads *threads, threads_task *task, void *context, int num_tasks);

/* What the thread will read first in a job to come, for the next times that it waits for one: it
 * then asks memory for it, some way. A hint, which may point anywhere. */
void threads_ahead(struct threads *threads, int thread, const void *memory);

/* Turns flush-to-zero on in the calling thread; returns what threads_restore_float takes. */
unsigned threads_flush_denormals(void);
void threads_restore_float(unsigned saved);

#endif
