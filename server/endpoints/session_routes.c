/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/session_routes.h"

#include "server/endpoints/session_task.h"
#include "server/states/session_shares.h"

#include <stdlib.h>

static const char JSON[] = "application/json";

/* GET /v1/sessions. */

struct list_task {
    struct session_task base;
    struct session_view *views;     /* [count] */
    const struct session **entries; /* [count]: valid during `perform` */
    size_t count, capacity;
};

/* NULL: no memory. */
static struct session_view *add_place(struct list_task *list)
{
    if (list->count == list->capacity) {
        size_t capacity = 2 * list->capacity + 64;
        struct session_view *views = realloc(list->views, capacity * sizeof *views);
        if (views)
            list->views = views;
        const struct session **entries = realloc(list->entries, capacity * sizeof *entries);
        if (entries)
            list->entries = entries;
        if (!views || !entries) {
            session_task_out_of_memory(&list->base);
            return NULL;
        }
        list->capacity = capacity;
    }
    list->entries[list->count] = NULL;
    return &list->views[list->count++];
}

static void add_view(void *context, const struct session *session)
{
    struct list_task *list = context;
    struct session_view *place = add_place(list);
    if (!place)
        return;
    list->entries[place - list->views] = session;
    session_view(list->base.task.service->sessions, session, place);
}

static void add_found(void *context, const struct session_view *view)
{
    struct session_view *place = add_place(context);
    if (place)
        *place = *view;
}

static void on_listed(void *context, const struct api_error *err)
{
    struct session_task *task = context;
    if (err)
        task->task.error = *err;
    session_task_finish(task);
}

static enum session_step perform_list(struct session_task *task)
{
    struct list_task *list = (struct list_task *)task;
    const struct session_lister lister = {add_found, on_listed, task};
    if (session_ask_list(task->task.service->sessions, task->owner, &lister))
        return SESSION_STEP_LATER;
    sessions_each(task->task.service->sessions, task->owner, add_view, list);
    if (task->task.error.code == API_OK)
        session_shares_find(list->entries, list->views, list->count);
    return SESSION_STEP_ENDED;
}

static void encode_list(struct session_task *task)
{
    const struct list_task *list = (const struct list_task *)task;
    struct strbuf *reply = &task->task.reply;
    session_list_begin(reply);
    for (size_t i = 0; i < list->count; i++) {
        struct session_card card = session_card(&list->views[i]);
        session_list_add(reply, &card, i == 0);
    }
    session_list_end(reply);
}

static void destroy_list(struct session_task *task)
{
    struct list_task *list = (struct list_task *)task;
    free(list->views);
    free(list->entries);
}

static const struct session_task_kind LIST = {.size = sizeof(struct list_task),
                                              .status = 200,
                                              .content_type = JSON,
                                              .perform = perform_list,
                                              .encode = encode_list,
                                              .destroy = destroy_list};

void session_routes_list(struct http_request *request)
{
    session_task_handle(request, &LIST);
}

/* One session: what was asked of it, and its view for the reply. */
struct one_task {
    struct session_task base;
    char target[SESSION_ID_SIZE]; /* fork: the new session */
    int64_t position;             /* rewind */
    struct session_view view;
};

static struct one_task *one(struct session_task *task)
{
    return (struct one_task *)task;
}

static void look_at(struct session_task *task, const char *id)
{
    struct sessions *sessions = task->task.service->sessions;
    const struct session *session = sessions_find(sessions, task->owner, id, &task->task.error);
    if (session)
        session_view(sessions, session, &one(task)->view);
}

static void encode_view(struct session_task *task)
{
    struct session_card card = session_card(&one(task)->view);
    session_encode(&task->task.reply, &card, &task->task.warnings);
}

/* The bodies of fork and rewind are short. */
static int check_short(const struct strbuf *body, struct api_error *err)
{
    if (body->length <= TASK_SHORT_BODY_BYTES)
        return 0;
    return api_error_set(err, API_INVALID_VALUE, NULL,
                         "the body has %zu bytes, at most %d are expected here", body->length,
                         TASK_SHORT_BODY_BYTES);
}

/* GET /v1/sessions/ID. */

static enum session_step perform_get(struct session_task *task)
{
    look_at(task, task->id);
    return SESSION_STEP_ENDED;
}

static const struct session_task_kind GET = {.size = sizeof(struct one_task),
                                             .status = 200,
                                             .content_type = JSON,
                                             .names_session = true,
                                             .perform = perform_get,
                                             .encode = encode_view};

void session_routes_get(struct http_request *request)
{
    session_task_handle(request, &GET);
}

/* DELETE /v1/sessions/ID. */

static const struct session_task_kind DELETE = {.size = sizeof(struct session_task),
                                                .status = 204,
                                                .names_session = true,
                                                .perform = session_task_remove};

void session_routes_delete(struct http_request *request)
{
    session_task_handle(request, &DELETE);
}

/* POST /v1/sessions/ID/fork. */

static int read_fork(struct session_task *task, struct http_request *request, struct api_error *err)
{
    const struct strbuf *body = &request->body;
    char *target = one(task)->target;
    return check_short(body, err) ? -1
                                  : fork_parse(body->data, body->length, target, SESSION_ID_SIZE,
                                               &task->task.warnings, err);
}

static void on_forked(void *context, const struct api_error *err)
{
    struct session_task *task = context;
    if (err)
        task->task.error = *err;
    else
        look_at(task, one(task)->target);
    session_task_finish(task);
}

static enum session_step perform_fork(struct session_task *task)
{
    return sessions_fork(task->task.service->sessions, task->owner, task->id, one(task)->target,
                         on_forked, task, &task->task.error)
               ? SESSION_STEP_ENDED
               : SESSION_STEP_LATER;
}

static const char *made_by_fork(const struct session_task *task)
{
    return ((const struct one_task *)task)->target;
}

static const struct session_task_kind FORK = {.size = sizeof(struct one_task),
                                              .status = 201,
                                              .content_type = JSON,
                                              .names_session = true,
                                              .keyed = true,
                                              .need = SESSION_USES,
                                              .makes = made_by_fork,
                                              .read = read_fork,
                                              .perform = perform_fork,
                                              .encode = encode_view};

void session_routes_fork(struct http_request *request)
{
    session_task_handle(request, &FORK);
}

/* POST /v1/sessions/ID/rewind. */

static int read_rewind(struct session_task *task, struct http_request *request,
                       struct api_error *err)
{
    const struct strbuf *body = &request->body;
    return check_short(body, err) ? -1
                                  : rewind_parse(body->data, body->length, &one(task)->position,
                                                 &task->task.warnings, err);
}

static void on_rewound(void *context, const struct api_error *err)
{
    struct session_task *task = context;
    if (err)
        task->task.error = *err;
    else
        look_at(task, task->id);
    session_task_finish(task);
}

static enum session_step perform_rewind(struct session_task *task)
{
    return sessions_rewind(task->task.service->sessions, task->owner, task->id, one(task)->position,
                           on_rewound, task, &task->task.error)
               ? SESSION_STEP_ENDED
               : SESSION_STEP_LATER;
}

static const struct session_task_kind REWIND = {.size = sizeof(struct one_task),
                                                .status = 200,
                                                .content_type = JSON,
                                                .names_session = true,
                                                .keyed = true,
                                                .need = SESSION_CHANGES,
                                                .read = read_rewind,
                                                .perform = perform_rewind,
                                                .encode = encode_view};

void session_routes_rewind(struct http_request *request)
{
    session_task_handle(request, &REWIND);
}
