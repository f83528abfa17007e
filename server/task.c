/* SPDX-License-Identifier: Apache-2.0 */
#include "server/task.h"

#include <stddef.h>
#include <stdlib.h>

static void destroy(struct ticket *ticket)
{
    struct task *task = (struct task *)ticket;
    if (task->destroy)
        task->destroy(task);
    strbuf_clear(&task->body);
    strbuf_clear(&task->reply);
    reply_warnings_clear(&task->warnings);
    admission_body(&task->service->admission, -task->reserved);
    ticket_clear(&task->ticket);
    free(task);
}

void *task_create(size_t size, struct service *service, uint64_t tenant,
                  void (*destroy_kind)(struct task *task))
{
    struct task *task = calloc(1, size);
    if (!task)
        return NULL;
    ticket_init(&task->ticket, destroy);
    task->service = service;
    task->tenant = tenant;
    task->destroy = destroy_kind;
    return task;
}

static void run(struct work *work)
{
    struct task *task = (struct task *)((char *)work - offsetof(struct task, work));
    task->run(task);
}

struct work *task_work(struct task *task, void (*run_kind)(struct task *task))
{
    task->run = run_kind;
    task->work.run = run;
    task->work.tenant = task->tenant;
    return &task->work;
}

static void to_pool(struct worker_pool *pool, struct task *task,
                    void (*run_kind)(struct task *task), size_t bytes)
{
    struct work *work = task_work(task, run_kind);
    work->bytes = bytes;
    worker_submit(pool, work);
}

void task_to_workers(struct task *task, void (*run_kind)(struct task *task), size_t bytes)
{
    to_pool(task->service->workers, task, run_kind, bytes);
}

void task_to_renderers(struct task *task, void (*run_kind)(struct task *task), size_t bytes)
{
    to_pool(task->service->renderers, task, run_kind, bytes);
}

bool task_reserve(struct task *task, int64_t bytes)
{
    if (!admission_body(&task->service->admission, bytes))
        return false;
    task->reserved += bytes;
    return true;
}

void task_drop_body(struct task *task)
{
    strbuf_clear(&task->body);
    admission_body(&task->service->admission, -task->reserved);
    task->reserved = 0;
}

void task_done(struct task *task)
{
    ticket_lock(&task->ticket);
    task->ticket.done = true;
    ticket_wake(&task->ticket);
    ticket_unlock(&task->ticket);
    ticket_release(&task->ticket);
}
