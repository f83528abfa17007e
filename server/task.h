/* SPDX-License-Identifier: Apache-2.0 */
/* The work for one request on other threads than its own. A kind of task is a struct that begins
 * with this one; it says what runs where, and what is to be freed at the end.
 *
 * The request and the threads that work for it hold a reference each (ticket.h). One thread at a
 * time works on a task and may write it, but for what the ticket's lock guards; when it is done
 * nothing of it changes any more, and the HTTP thread reads it. */
#ifndef SERVER_TASK_H
#define SERVER_TASK_H

#include "api/reply_warnings.h"
#include "server/service.h"
#include "server/ticket.h"

/* A body of so many bytes is parsed in about a millisecond, whatever it holds. Longer ones are left
 * to the workers: they would hold up all other connections of the event loop. */
enum { TASK_SHORT_BODY_BYTES = WORK_SHORT_BYTES };

struct task {
    struct ticket ticket; /* first: a request knows its task by it */
    struct work work;
    struct service *service;
    uint64_t tenant;                /* whose it is (tenant.h) */
    struct strbuf body;             /* of the request, until it has been parsed */
    int64_t reserved;               /* bytes of the budget for bodies and replies */
    struct api_error error;         /* API_OK: all went well */
    struct strbuf reply;            /* the body of the reply, if a worker makes it */
    struct reply_warnings warnings; /* of the reply */
    void (*run)(struct task *task);
    void (*destroy)(struct task *task);
};

/* A zeroed struct of `size` bytes that begins with a task. The caller holds the first reference.
 * destroy frees what the struct holds beyond the task, or is NULL. NULL: out of memory. */
void *task_create(size_t size, struct service *service, uint64_t tenant,
                  void (*destroy)(struct task *task));

/* What runs next, for a thread's queue (worker_submit, scheduler_post); the queue takes over the
 * reference of the thread that worked on the task until now. */
struct work *task_work(struct task *task, void (*run)(struct task *task));
/* bytes: what it works on, by which long work is told from short. Only renderers render. */
void task_to_workers(struct task *task, void (*run)(struct task *task), size_t bytes);
void task_to_renderers(struct task *task, void (*run)(struct task *task), size_t bytes);

/* Takes so many bytes more of the budget for bodies and replies, until the task is destroyed.
 * False: there is no room for them. */
bool task_reserve(struct task *task, int64_t bytes);
/* The body is not needed: frees it, and gives back all that is reserved. */
void task_drop_body(struct task *task);

/* Tells the request that the task is done, and gives the thread's reference back. */
void task_done(struct task *task);

#endif
