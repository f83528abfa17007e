/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/tasks.h"

void tasks_run(struct backend *backend, threads_task *task, void *job, int tasks, int64_t elements)
{
    if (elements < backend->share_elements)
        for (int i = 0; i < tasks; i++)
            task(job, i, 0);
    else
        threads_run(backend->threads, task, job, tasks);
}

void heads_run(struct backend *backend, threads_task *task, const void *arguments, int items,
               int heads, int64_t elements)
{
    struct head_job job = {backend, arguments, heads};
    tasks_run(backend, task, &job, items * heads, elements);
}
