/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/session_routes.h"

#include "server/endpoints/idempotency.h"
#include "server/endpoints/parsing.h"
#include "server/endpoints/state_task.h"

#include <stdio.h>
#include <string.h>

/* Fills what the kind of task takes from the request. */
static int fill(struct state_task *task, struct http_request *request, struct api_error *err)
{
    const struct strbuf *body = &request->body;
    if (task->kind == STATE_TASK_LIST || task->kind == STATE_TASK_REPORT)
        return 0;
    if (session_id_check(request->parameter, strlen(request->parameter), "id", err))
        return -1;
    snprintf(task->id, sizeof task->id, "%s", request->parameter);
    if (task->kind == STATE_TASK_IMPORT)
        http_take_body(request, &task->body, &task->reserved);
    if (task->kind != STATE_TASK_FORK && task->kind != STATE_TASK_REWIND)
        return 0;
    if (body->length > PARSING_SHORT_BYTES)
        return api_error_set(err, API_INVALID_VALUE, NULL,
                             "the body has %zu bytes, at most %d are expected here", body->length,
                             PARSING_SHORT_BYTES);
    return task->kind == STATE_TASK_FORK
               ? fork_parse(body->data, body->length, task->target, sizeof task->target, err)
               : rewind_parse(body->data, body->length, &task->position, err);
}

static int start(struct http_request *request, enum state_task_kind kind, struct api_error *err)
{
    struct service *service = request->service;
    bool keyed = kind == STATE_TASK_FORK || kind == STATE_TASK_REWIND;
    if (service_check_ready(service, err) || (keyed && idempotency_begin(request, err)))
        return -1;
    if (request->replied || request->hang_up)
        return 0;
    struct state_task *task = state_task_create(service, kind, request->owner);
    if (!task)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    if (fill(task, request, err)) {
        ticket_release(&task->ticket);
        return -1;
    }
    task->replay = request->replay;
    task->ticket.runs_on = request->replay != NULL;
    request->replay = NULL;
    http_attach(request, &task->ticket);
    state_task_start(task);
    return 0;
}

static void reply(struct http_request *request, struct state_task *task)
{
    const char *type = task->kind == STATE_TASK_DELETE   ? NULL
                       : task->kind == STATE_TASK_EXPORT ? "application/octet-stream"
                                                         : "application/json";
    if (task->error.code != API_OK)
        http_reply_error(request, &task->error);
    else
        http_reply(request, task->status, type, &task->reply);
}

static void handle(struct http_request *request, enum state_task_kind kind)
{
    struct api_error err = {0};
    if (!request->ticket && start(request, kind, &err)) {
        idempotency_refuse(request, &err);
        return;
    }
    struct state_task *task = (struct state_task *)request->ticket;
    if (!task)
        return;
    ticket_lock(&task->ticket);
    bool done = task->ticket.done;
    if (!done)
        http_wait(request);
    ticket_unlock(&task->ticket);
    if (done)
        reply(request, task);
}

void session_routes_list(struct http_request *request)
{
    handle(request, STATE_TASK_LIST);
}

void session_routes_get(struct http_request *request)
{
    handle(request, STATE_TASK_GET);
}

void session_routes_delete(struct http_request *request)
{
    handle(request, STATE_TASK_DELETE);
}

void session_routes_fork(struct http_request *request)
{
    handle(request, STATE_TASK_FORK);
}

void session_routes_rewind(struct http_request *request)
{
    handle(request, STATE_TASK_REWIND);
}

void session_routes_export(struct http_request *request)
{
    handle(request, STATE_TASK_EXPORT);
}

void session_routes_import(struct http_request *request)
{
    handle(request, STATE_TASK_IMPORT);
}

void session_routes_report(struct http_request *request)
{
    handle(request, STATE_TASK_REPORT);
}

void session_routes_end(struct http_request *request)
{
    idempotency_drop(request);
    http_log(request);
}
