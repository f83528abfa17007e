/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/response_routes.h"

#include "api/responses_echo.h"
#include "api/responses_list.h"
#include "api/responses_replay.h"
#include "api/responses_turns.h"
#include "server/endpoints/response_reader.h"
#include "server/schedule/scheduler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char JSON[] = "application/json";

/* What a kept response holds, for the reply. */
struct kept_task {
    struct response_reader reader; /* of one that is still being made */
    int owner;                     /* index of the API key */
    char *turns;                   /* [length] */
    size_t length;
    bool cancelled; /* cancel: one that ran */
    bool streams;   /* get: it is told as a stream */
    struct responses_page page;
};

static struct kept_task *kept(struct session_task *task)
{
    return (struct kept_task *)task;
}

static void destroy(struct session_task *task)
{
    response_reader_clear(&kept(task)->reader);
    free(kept(task)->turns);
}

static void take_turns(struct session_task *task, const struct session *session)
{
    enum { COPIES = 3 }; /* this, JSON of it, and the reply */
    int64_t length;
    const char *turns = session_turns(session, &length);
    if (session_task_reserve(task, COPIES * (size_t)length))
        return;
    kept(task)->turns = malloc((size_t)length + 1);
    if (!kept(task)->turns) {
        session_task_out_of_memory(task);
        return;
    }
    memcpy(kept(task)->turns, turns, (size_t)length);
    kept(task)->length = (size_t)length;
}

static enum session_step perform_look(struct session_task *task)
{
    struct sessions *sessions = task->task.service->sessions;
    const struct session *session =
        sessions_find(sessions, task->owner, task->id, &task->task.error);
    if (session)
        take_turns(task, session);
    return SESSION_STEP_ENDED;
}

static void encode_object(struct session_task *task)
{
    const struct kept_task *own = kept(task);
    const char *object;
    size_t length;
    int64_t events;
    if (responses_turns_object(own->turns, own->length, &object, &length, &events,
                               &task->task.error))
        return;
    if (!own->streams)
        strbuf_append(&task->task.reply, object, length);
    else if (session_task_reserve(task, responses_replay_bytes(length, events)) == 0)
        responses_replay(&task->task.reply, own->turns, own->length, own->reader.after,
                         &task->task.error);
}

static const char *query(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
}

/* What is kept has no more than it tells. */
static int check_include(const struct http_request *request, struct api_error *err)
{
    if (!query(request, "include") && !query(request, "include[]"))
        return 0;
    return api_error_set(err, API_UNSUPPORTED, "include",
                         "include is not supported here: a kept response is told as it is");
}

/* GET /v1/responses/ID. */

static bool wants_stream(const struct http_request *request)
{
    const char *stream = query(request, "stream");
    return stream && strcmp(stream, "true") == 0;
}

static int read_after(struct kept_task *task, const char *text, struct api_error *err)
{
    char *end = NULL;
    errno = 0;
    long long after = text && *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;
    task->reader.after = after;
    if (!text || (end && !*end && errno == 0 && after < INT64_MAX))
        return 0;
    return api_error_set(err, API_INVALID_VALUE, "starting_after",
                         "starting_after: expected the number of an event, got \"%.40s\"", text);
}

static int read_get(struct session_task *task, struct http_request *request, struct api_error *err)
{
    const char *stream = query(request, "stream"), *after = query(request, "starting_after");
    kept(task)->streams = wants_stream(request);
    kept(task)->owner = request->owner;
    if (check_include(request, err) || read_after(kept(task), after, err))
        return -1;
    if (stream && !kept(task)->streams && strcmp(stream, "false") != 0)
        return api_error_set(err, API_INVALID_VALUE, "stream",
                             "stream: expected true or false, got \"%.40s\"", stream);
    if (after && !kept(task)->streams)
        return api_error_set(err, API_INVALID_VALUE, "starting_after",
                             "starting_after is only allowed with stream=true");
    return 0;
}

static enum session_step perform_get(struct session_task *task)
{
    struct kept_task *own = kept(task);
    if (!sessions_makes(task->task.service->sessions, task->owner, task->id))
        return perform_look(task);
    return response_reader_open(&own->reader, own->owner, own->streams) ? SESSION_STEP_ENDED
                                                                        : SESSION_STEP_AGAIN;
}

static void encode_get(struct session_task *task)
{
    struct kept_task *own = kept(task);
    if (!own->reader.source)
        encode_object(task);
    else if (!own->streams)
        response_reader_encode(&own->reader);
}

static bool answer_get(struct session_task *task, struct http_request *request)
{
    struct kept_task *own = kept(task);
    if (!own->reader.source || !own->streams)
        return false;
    response_reader_answer(request);
    return true;
}

static const struct session_task_kind GET = {.size = sizeof(struct kept_task),
                                             .status = 200,
                                             .content_type = JSON,
                                             .names_response = true,
                                             .read = read_get,
                                             .perform = perform_get,
                                             .encode = encode_get,
                                             .answer = answer_get,
                                             .destroy = destroy};

static const struct session_task_kind GET_STREAM = {.size = sizeof(struct kept_task),
                                                    .status = 200,
                                                    .content_type = "text/event-stream",
                                                    .names_response = true,
                                                    .read = read_get,
                                                    .perform = perform_get,
                                                    .encode = encode_get,
                                                    .answer = answer_get,
                                                    .destroy = destroy};

void response_routes_get(struct http_request *request)
{
    session_task_handle(request, wants_stream(request) ? &GET_STREAM : &GET);
}

/* DELETE /v1/responses/ID. */

static void encode_deleted(struct session_task *task)
{
    responses_deleted_encode(&task->task.reply, task->id);
}

static const struct session_task_kind DELETE = {.size = sizeof(struct session_task),
                                                .status = 200,
                                                .content_type = JSON,
                                                .names_response = true,
                                                .perform = session_task_remove,
                                                .encode = encode_deleted};

void response_routes_delete(struct http_request *request)
{
    session_task_handle(request, &DELETE);
}

/* POST /v1/responses/ID/cancel. */

static int read_cancel(struct session_task *task, struct http_request *request,
                       struct api_error *err)
{
    size_t cancelled;
    (void)err;
    kept(task)->cancelled =
        registry_cancel(&request->service->registry, task->id, request->owner, &cancelled) > 0;
    if (cancelled > 0)
        scheduler_poke(request->service->scheduler);
    return 0;
}

/* One that ran is there once it has ended, if it had begun to say something. */
static enum session_step perform_cancel(struct session_task *task)
{
    struct sessions *sessions = task->task.service->sessions;
    if (sessions_makes(sessions, task->owner, task->id))
        return SESSION_STEP_AGAIN;
    if (!kept(task)->cancelled && sessions_find(sessions, task->owner, task->id, NULL)) {
        api_error_set(&task->task.error, API_INVALID_VALUE, "response_id",
                      "response_id: expected a response that runs, got \"%s\", which has ended",
                      task->id);
        return SESSION_STEP_ENDED;
    }
    if (!kept(task)->cancelled || sessions_find(sessions, task->owner, task->id, NULL))
        return perform_look(task);
    api_error_set(&task->task.error, API_CANCELLED, NULL,
                  "the response was cancelled, and nothing of it is kept");
    return SESSION_STEP_ENDED;
}

static const struct session_task_kind CANCEL = {.size = sizeof(struct kept_task),
                                                .status = 200,
                                                .content_type = JSON,
                                                .names_response = true,
                                                .read = read_cancel,
                                                .perform = perform_cancel,
                                                .encode = encode_object,
                                                .destroy = destroy};

void response_routes_cancel(struct http_request *request)
{
    session_task_handle(request, &CANCEL);
}

/* GET /v1/responses/ID/input_items. */

static const struct responses_echo *asked_of(const struct response_reader *reader)
{
    return reader->source->job.asked.request.echoed;
}

static int read_page(struct session_task *task, struct http_request *request, struct api_error *err)
{
    kept(task)->owner = request->owner;
    if (check_include(request, err))
        return -1;
    return responses_page_read(&kept(task)->page, query(request, "limit"), query(request, "order"),
                               query(request, "after"), err);
}

/* Of one that runs they are where its request is. */
static enum session_step perform_input(struct session_task *task)
{
    enum { COPIES = 2 }; /* JSON of it, and the reply */
    struct kept_task *own = kept(task);
    if (!sessions_makes(task->task.service->sessions, task->owner, task->id))
        return perform_look(task);
    if (!response_reader_find(&own->reader, own->owner))
        return SESSION_STEP_AGAIN;
    session_task_reserve(task, COPIES * asked_of(&own->reader)->asked_length);
    return SESSION_STEP_ENDED;
}

static void encode_input(struct session_task *task)
{
    const struct kept_task *own = kept(task);
    struct api_error *err = &task->task.error;
    const struct responses_echo *echo = own->reader.source ? asked_of(&own->reader) : NULL;
    const char *asked = echo ? echo->asked : NULL;
    size_t length = echo ? echo->asked_length : 0;
    if (echo || responses_turns_asked(own->turns, own->length, &asked, &length, err) == 0)
        responses_page_encode(&task->task.reply, &own->page, asked, length, task->id, err);
}

static const struct session_task_kind INPUT = {.size = sizeof(struct kept_task),
                                               .status = 200,
                                               .content_type = JSON,
                                               .names_response = true,
                                               .read = read_page,
                                               .perform = perform_input,
                                               .encode = encode_input,
                                               .destroy = destroy};

void response_routes_input(struct http_request *request)
{
    session_task_handle(request, &INPUT);
}
