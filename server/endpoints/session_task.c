/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/session_task.h"

#include "server/endpoints/idempotency.h"
#include "server/schedule/scheduler.h"

#include <stdio.h>
#include <string.h>

static struct session_task *of_task(struct task *task)
{
    return (struct session_task *)task;
}

int session_task_reserve(struct session_task *task, size_t bytes)
{
    if (bytes < INT64_MAX / 4 && task_reserve(&task->task, (int64_t)bytes))
        return 0;
    return api_error_set(&task->task.error, API_OUT_OF_MEMORY, NULL,
                         "the state takes %zu bytes, more than --max-body-memory has left", bytes);
}

int session_task_out_of_memory(struct session_task *task)
{
    return api_error_set(&task->task.error, API_OUT_OF_MEMORY, NULL,
                         "out of memory for this request");
}

/* The reply is kept: now the client may have it. */
static void on_kept(void *context)
{
    task_done(context);
}

/* Worker: the reply. */
static void run_encode(struct task *base)
{
    struct session_task *task = of_task(base);
    struct replay *replay = base->service->replay;
    if (base->error.code == API_OK && task->kind->encode)
        task->kind->encode(task);
    if (base->reply.failed)
        session_task_out_of_memory(task); /* the first error stays */
    if (!task->replay)
        task_done(base);
    else if (base->error.code == API_OK)
        replay_keep(replay, task->replay, task->kind->status, false, base->reply.data,
                    base->reply.length, on_kept, base);
    else
        replay_keep_error(replay, task->replay, &base->error, NULL, on_kept, base);
}

void session_task_finish(struct session_task *task)
{
    /* /metrics shows what was freed before the client is told */
    scheduler_publish(task->task.service->scheduler);
    task_to_workers(&task->task, run_encode, 0);
}

static void on_removed(void *context, const struct api_error *err)
{
    struct session_task *task = context;
    if (err)
        task->task.error = *err;
    session_task_finish(task);
}

enum session_step session_task_remove(struct session_task *task)
{
    return sessions_remove(task->task.service->sessions, task->owner, task->id, on_removed, task,
                           &task->task.error)
               ? SESSION_STEP_ENDED
               : SESSION_STEP_LATER;
}

static void on_lease_back(void *context, const struct api_error *err)
{
    (void)err;
    session_task_finish(context);
}

/* Who is refused is told once the session is free everywhere. false: no lease was taken. */
static bool undo(struct session_task *task)
{
    const struct session_task_kind *kind = task->kind;
    const char *id = kind->makes                     ? kind->makes(task)
                     : kind->need == SESSION_CHANGES ? task->id
                                                     : NULL;
    return task->asked && task->task.error.code != API_OK && id &&
           session_ask_undo(task->task.service->sessions, task->owner, id, on_lease_back, task);
}

static void perform(struct session_task *task)
{
    struct task *base = &task->task;
    switch (task->kind->perform(task)) {
    case SESSION_STEP_ENDED:
        if (!undo(task))
            session_task_finish(task);
        break;
    case SESSION_STEP_AGAIN:
        task->asked = false; /* it may be another by then */
        task->again = true;
        scheduler_park(base->service->scheduler, &base->work);
        break;
    case SESSION_STEP_LATER:
        break;
    }
}

static void on_asked(void *context, const struct api_error *err)
{
    struct session_task *task = context;
    if (err) {
        task->task.error = *err;
        session_task_finish(task);
    } else {
        task->asked = true;
        perform(task);
    }
}

/* Of two sessions, the second. */
static void ask_to_make(void *context, const struct api_error *err)
{
    struct session_task *task = context;
    const char *id = err || !task->kind->makes ? NULL : task->kind->makes(task);
    if (id)
        session_ask(task->task.service->sessions, task->owner, id, SESSION_CHANGES, task->id, NULL,
                    on_asked, task);
    else
        on_asked(task, err);
}

static bool names_one(const struct session_task *task)
{
    return task->kind->names_session || task->kind->names_response;
}

static void run_perform(struct task *base)
{
    struct session_task *task = of_task(base);
    /* The client has left, and nothing has been done yet. Or it waits for a file while the server
     * ends. */
    if (ticket_cancelled(&base->ticket))
        api_error_set(&base->error, API_CANCELLED, NULL, "the request was cancelled");
    else if (atomic_load(&base->service->giving_up))
        api_error_set(&base->error, API_DRAINING, NULL, "the server is shutting down");
    if (base->error.code != API_OK) {
        session_task_finish(task);
        return;
    }
    struct sessions *sessions = base->service->sessions;
    bool made = task->again && task->kind->names_response &&
                sessions_makes(sessions, task->owner, task->id);
    if (made)
        scheduler_park(base->service->scheduler, &base->work); /* the store knows nothing new */
    else if (names_one(task) && !task->asked)
        session_ask(sessions, task->owner, task->id, task->kind->need, NULL, NULL, ask_to_make,
                    task);
    else
        perform(task);
}

static void to_engine(struct task *base)
{
    if (scheduler_post(base->service->scheduler, task_work(base, run_perform)))
        return;
    api_error_set(&base->error, API_DRAINING, NULL, "the server is shutting down");
    task_done(base);
}

static void run_prepare(struct task *base)
{
    struct session_task *task = of_task(base);
    task->kind->prepare(task);
    strbuf_clear(&base->body);
    if (base->error.code == API_OK)
        to_engine(base);
    else
        run_encode(base);
}

static void destroy(struct task *base)
{
    struct session_task *task = of_task(base);
    if (task->kind->destroy)
        task->kind->destroy(task);
}

/* The HTTP thread. */

static int read_request(struct session_task *task, struct http_request *request,
                        struct api_error *err)
{
    const char *id = request->parameter;
    if (task->kind->names_session && session_id_check(id, strlen(id), "id", err))
        return -1;
    if (task->kind->names_response && !response_id_valid(id, strlen(id)))
        return api_error_set(err, API_RESPONSE_NOT_FOUND, NULL, "there is no response \"%s\"", id);
    if (names_one(task))
        snprintf(task->id, sizeof task->id, "%s", id);
    return task->kind->read ? task->kind->read(task, request, err) : 0;
}

static int start(struct http_request *request, const struct session_task_kind *kind,
                 struct replay_entry **replay, struct api_error *err)
{
    struct service *service = request->service;
    if (service_check_ready(service, err) ||
        (kind->keyed && idempotency_begin(request, false, replay, err)))
        return -1;
    if (request->replied || request->hang_up)
        return 0;
    struct session_task *task = task_create(kind->size, service, request->tenant, destroy);
    if (!task)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    struct task *base = &task->task;
    task->kind = kind;
    task->owner = service_owner(service, request->owner);
    if (read_request(task, request, err)) {
        ticket_release(&base->ticket);
        return -1;
    }
    task->replay = *replay;
    base->ticket.runs_on = *replay != NULL;
    http_attach(request, &base->ticket);
    ticket_hold(&base->ticket);
    if (kind->prepare)
        task_to_workers(base, run_prepare, base->body.length);
    else
        to_engine(base);
    return 0;
}

static void answer(struct http_request *request, struct session_task *task)
{
    struct task *base = &task->task;
    if (!http_work_done(request))
        return;
    request->warnings = &base->warnings;
    if (base->error.code != API_OK)
        http_reply_error(request, &base->error);
    else if (!task->kind->answer || !task->kind->answer(task, request))
        http_reply(request, task->kind->status, task->kind->content_type, &base->reply);
}

void session_task_handle(struct http_request *request, const struct session_task_kind *kind)
{
    struct api_error err = {0};
    struct replay_entry *replay = NULL;
    if (!request->ticket && start(request, kind, &replay, &err))
        idempotency_refuse(request, replay, &err);
    else if (request->ticket) /* else it has been replied already */
        answer(request, (struct session_task *)request->ticket);
}
