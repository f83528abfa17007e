/* SPDX-License-Identifier: Apache-2.0 */
/* The division of an operation into tasks, on one thread or on all. */
#ifndef ENGINE_CPU_TASKS_H
#define ENGINE_CPU_TASKS_H

#include "engine/cpu/device.h"

/* Each task is one text (or group of queries), task / heads, and one head, task % heads. */
struct head_job {
    struct backend *backend;
    const void *arguments;
    int heads;
};

/* Runs tasks [0, tasks), on several threads if the operation has enough elements. */
void tasks_run(struct backend *backend, threads_task *task, void *job, int tasks, int64_t elements);

/* Runs items * heads tasks, whose context is a struct head_job. elements: of all tasks together, to
 * decide whether sharing pays. */
void heads_run(struct backend *backend, threads_task *task, const void *arguments, int items,
               int heads, int64_t elements);

#endif
