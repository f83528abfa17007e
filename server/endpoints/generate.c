/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/generate.h"

#include "lib/base/clock.h"
#include "server/endpoints/idempotency.h"
#include "server/endpoints/job_reply.h"
#include "server/endpoints/pipeline.h"
#include "server/endpoints/stream_reply.h"
#include "server/log.h"

#include <stdio.h>
#include <string.h>

/* NULL: there is none yet. */
static struct completion *of_request(const struct http_request *request)
{
    return (struct completion *)request->ticket;
}

static bool refill(struct http_request *request)
{
    struct completion *completion = of_request(request);
    ticket_lock(request->ticket);
    bool some = completion_stream_take(completion);
    bool probed = !some && ticket_probed(request->ticket);
    if (!some && !probed)
        http_wait(request);
    ticket_unlock(request->ticket);
    if (some)
        completion_stream_make(completion);
    if (probed)
        completion_stream_pause(completion);
    return some || probed;
}

static ssize_t read_stream(void *context, uint64_t position, char *buffer, size_t size)
{
    (void)position;
    struct http_request *request = context;
    struct completion *completion = of_request(request);
    ssize_t count = stream_reply_read(request, completion->stream, refill, buffer, size);
    if (count > 0)
        atomic_store(&completion->job.shared.read, true);
    return count;
}

/* Requests. */

/* X-Session-Id is for proxies, which choose a server by it; it means the field session_id. */
static int check_session_header(const char *header, struct api_error *err)
{
    return header ? session_id_check(header, strlen(header), "X-Session-Id", err) : 0;
}

/* From the body to the pipeline. */
static int start(struct http_request *request, const struct completion_format *format,
                 struct replay_entry **replay, struct api_error *err)
{
    struct service *service = request->service;
    const char *session = http_header(request, "X-Session-Id");
    if (service_check_ready(service, err) || check_session_header(session, err) ||
        idempotency_begin(request, format->keeps, replay, err))
        return -1;
    if (request->replied || request->hang_up)
        return 0;
    struct completion *completion =
        pipeline_create(service, format, request->request_id, request->request_id_given,
                        request->owner, request->tenant, *replay);
    if (!completion)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    if (session)
        snprintf(completion->session_header, sizeof completion->session_header, "%s", session);
    struct task *task = &completion->job.task;
    http_take_body(request, &task->body, &task->reserved);
    pipeline_start(completion);
    http_attach(request, &task->ticket);
    return 0;
}

/* Takes the request's id from the body, once that has been read. */
static void take_request_id(struct http_request *request, const struct job *job)
{
    snprintf(request->request_id, sizeof request->request_id, "%s", job->asked.request_id);
}

/* Why the prompt was computed, for who sees headers only. */
static void tell_cache_miss(struct http_request *request, struct job *job)
{
    struct reply_usage usage = job_reply_usage(job, 0, 0);
    char *out = request->cache_miss;
    int length = snprintf(out, sizeof request->cache_miss, "%s", usage.cache_miss_reason);
    if (usage.diverged_message >= 0)
        snprintf(out + length, sizeof request->cache_miss - (size_t)length,
                 "; diverged_message=%lld", (long long)usage.diverged_message);
}

static void reply_whole(struct http_request *request, struct completion *completion)
{
    struct api_error err = {0};
    struct strbuf *reply = &completion->job.task.reply;
    if (completion->format->renders)
        tell_cache_miss(request, &completion->job);
    if (reply->length || job_reply_encode(reply, completion) == 0) {
        http_reply_json(request, reply);
        return;
    }
    api_error_set(&err, API_OUT_OF_MEMORY, NULL, "out of memory for the reply");
    http_reply_error(request, &err);
}

/* The reply to a request that comes again, made of what is kept of the response. */
static void tell_made(struct http_request *request, const struct job *job)
{
    const struct strbuf *reply = &job->task.reply;
    struct http_kept again = {200, API_OK, job->asked.request.stream, reply->data, reply->length};
    http_reply_kept(request, &again);
}

static void answer(struct http_request *request, struct completion *completion)
{
    struct job *job = &completion->job;
    ticket_lock(request->ticket);
    bool done = request->ticket->done;
    bool stream = job->shared.accepted && job->asked.request.stream;
    if (!done && !stream)
        http_wait(request);
    ticket_unlock(request->ticket);
    if (!done && !stream)
        return;
    take_request_id(request, job);
    request->warnings = &job->task.warnings;
    /* A job that failed before it was accepted has a status of its own, stream or not. */
    if (completion->kept)
        idempotency_repeat(request, completion->kept);
    else if (completion->made && job->task.error.code == API_OK)
        tell_made(request, job);
    else if (stream)
        stream_reply_begin(request, completion->format->begins, read_stream);
    else if (job->task.error.code != API_OK)
        http_reply_error(request, &job->task.error);
    else
        reply_whole(request, completion);
}

void generate_handle(struct http_request *request, const struct completion_format *format)
{
    struct api_error err = {0};
    struct replay_entry *replay = NULL;
    if (!request->ticket && start(request, format, &replay, &err)) {
        idempotency_refuse(request, replay, &err);
        return;
    }
    struct completion *completion = of_request(request);
    if (completion) /* NULL: it has been replied already */
        answer(request, completion);
}

static enum outcome outcome_of(const struct http_request *request, const struct job *job, bool done)
{
    if (!done || request->aborted)
        return OUTCOME_CANCELLED;
    if (job->task.error.code == API_CANCELLED || job->task.error.code == API_DRAINING)
        return OUTCOME_CANCELLED;
    if (job->task.error.code != API_OK)
        return OUTCOME_ERROR;
    return job->run.choices[0].finish == FINISH_LENGTH ? OUTCOME_LENGTH : OUTCOME_STOP;
}

static void log_job(const struct http_request *request, const struct job *job, bool done,
                    enum outcome outcome)
{
    struct log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "completion");
    log_text(&line, "id", request->request_id);
    log_text(&line, "traceparent", http_traceparent(request));
    log_text(&line, "completion", job->asked.id);
    log_text_cut(&line, "user", job->asked.request.user);
    log_text(&line, "session", job->asked.request.kept ? NULL : job->asked.request.session_id);
    log_int(&line, "priority", job->asked.request.priority);
    log_int(&line, "status", http_status(request));
    log_text(&line, "outcome", metrics_outcome(outcome));
    log_int(&line, "prompts", (int64_t)job->asked.request.num_prompts);
    log_int(&line, "stream", job->asked.request.stream);
    log_text(&line, "warning", reply_warnings_first(request->warnings));
    if (done) {
        struct reply_timings timings = job_reply_timings(job);
        log_int(&line, "prompt_tokens", job->prepared.prompt_tokens);
        log_int(&line, "completion_tokens", job->run.generated);
        if (job->task.error.code == API_OK) {
            log_ms(&line, "queue_ms", timings.queue_ms);
            log_ms(&line, "prefill_ms", timings.prefill_ms);
            log_ms(&line, "decode_ms", timings.decode_ms);
        } else {
            log_text(&line, "error", api_error_row(job->task.error.code)->code);
        }
    }
    log_ms(&line, "ms", (clock_seconds() - request->started) * 1e3);
    log_end(&line);
}

/* What its reply has in the header alone, once for its API key. */
static void log_notes(const struct http_request *request)
{
    struct service *service = request->service;
    const char *owner = service_owner(service, request->owner), *text;
    for (size_t i = 0; (text = reply_warnings_noted(request->warnings, i)); i++)
        if (noted_anew(&service->noted, owner, text))
            log_message(LOG_LEVEL_WARN, "%s: %s (said once for each API key)", request->request_id,
                        text);
}

/* Whoever sees it counted finds its line among those that are written (log_writer.h). */
void generate_end(struct http_request *request)
{
    struct metrics *metrics = &request->service->metrics;
    struct completion *completion = of_request(request);
    int status = http_status(request);
    bool entered = false, done = false;
    if (completion) {
        ticket_lock(request->ticket);
        entered = completion->job.shared.entered;
        done = request->ticket->done;
        ticket_unlock(request->ticket);
    }
    if (entered && !(done && completion->made)) {
        struct job *job = &completion->job;
        enum outcome outcome = outcome_of(request, job, done);
        take_request_id(request, job);
        log_notes(request);
        log_job(request, job, done, outcome);
        metrics_request(metrics, status, outcome);
    } else {
        http_log(request);
        metrics_request(metrics, status,
                        status == 499       ? OUTCOME_CANCELLED
                        : request->replayed ? OUTCOME_REPLAYED
                                            : OUTCOME_ERROR);
    }
    if (completion)
        pipeline_leave(completion);
}
