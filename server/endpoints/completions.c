/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/completions.h"

#include "engine/base/clock.h"
#include "server/endpoints/completion_stream.h"
#include "server/endpoints/idempotency.h"
#include "server/endpoints/job_reply.h"
#include "server/endpoints/parsing.h"
#include "server/log.h"
#include "server/schedule/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL: there is none yet. */
static struct job *job_of(const struct http_request *request)
{
    return request->parsing ? NULL : (struct job *)request->ticket;
}

/* Makes frames of what the job has put out. False when there is nothing and the connection was
 * suspended, or is to be given up. */
static bool refill(struct http_request *request, struct job *job)
{
    ticket_lock(&job->ticket);
    bool some = completion_stream_take(job);
    if (!some)
        http_wait(request);
    ticket_unlock(&job->ticket);
    if (some)
        completion_stream_make(job);
    return some;
}

/* libmicrohttpd 0.9.75 forgets a connection whose reader ends with an error while older ones idle,
 * until those time out: it finds a socket that takes nothing more instead. */
static ssize_t give_up(const struct http_request *request)
{
    http_shutdown(request);
    return MHD_CONTENT_READER_END_OF_STREAM;
}

static ssize_t read_stream(void *context, uint64_t position, char *buffer, size_t size)
{
    (void)position;
    struct http_request *request = context;
    struct job *job = job_of(request);
    struct completion_stream *stream = job->stream;
    if (ticket_gone(request->ticket))
        return give_up(request);
    if (stream->sent == stream->frames.length) {
        if (stream->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (!refill(request, job))
            return request->hang_up ? give_up(request) : 0;
        if (stream->frames.failed)
            return give_up(request);
    }
    size_t left = stream->frames.length - stream->sent;
    size_t count = left < size ? left : size;
    memcpy(buffer, stream->frames.data + stream->sent, count);
    stream->sent += count;
    atomic_store(&job->read, true);
    return (ssize_t)count;
}

/* Requests. */

/* Takes what `parsed` holds. */
static int start_job(struct http_request *request, struct completion_request *parsed,
                     struct api_error *err)
{
    struct job *job;
    if (!request->request_id_given && parsed->request_id)
        snprintf(request->request_id, sizeof request->request_id, "%s", parsed->request_id);
    if (job_create(&job, request->service, parsed, request->request_id, request->owner, err))
        return -1;
    job->replay = request->replay;
    job->ticket.runs_on = request->replay != NULL;
    int result = job->request.stream ? completion_stream_create(job) : 0;
    if (result)
        api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    if (result || job_start(job, err)) {
        ticket_release(&job->ticket);
        return -1;
    }
    request->replay = NULL; /* the job's */
    http_attach(request, &job->ticket);
    return 0;
}

/* From the body to the job; the body of a long one is parsed elsewhere first. */
static int start(struct http_request *request, struct api_error *err)
{
    struct service *service = request->service;
    struct completion_request parsed;
    if (service_check_ready(service, err))
        return -1;
    if (!request->parsing && idempotency_begin(request, err))
        return -1;
    if (request->replied || request->hang_up)
        return 0;
    if (!request->parsing && request->body.length > PARSING_SHORT_BYTES)
        return parsing_start(request, err);
    if (request->parsing ? parsing_take(request, &parsed, err)
                         : completion_parse(&parsed, request->body.data, request->body.length,
                                            &service->limits, err))
        return -1;
    return start_job(request, &parsed, err);
}

static void reply_whole(struct http_request *request, struct job *job)
{
    struct api_error err = {0};
    if (job->reply.length || job_reply_encode(&job->reply, job) == 0) {
        http_reply_json(request, &job->reply);
        return;
    }
    api_error_set(&err, API_OUT_OF_MEMORY, NULL, "out of memory for the reply");
    http_reply_error(request, &err);
}

/* Waits unless the ticket's work is done. */
static bool wait_for(struct http_request *request)
{
    ticket_lock(request->ticket);
    bool done = request->ticket->done;
    if (!done)
        http_wait(request);
    ticket_unlock(request->ticket);
    return !done;
}

void completions_handle(struct http_request *request)
{
    struct api_error err = {0};
    if (request->parsing && wait_for(request))
        return;
    if ((!request->ticket || request->parsing) && start(request, &err)) {
        idempotency_refuse(request, &err);
        return;
    }
    if (request->replied || request->hang_up)
        return;
    if (request->parsing) {
        completions_handle(request);
        return;
    }
    struct job *job = job_of(request);
    ticket_lock(&job->ticket);
    bool done = job->ticket.done;
    bool stream = job->accepted && job->request.stream;
    if (!done && !stream)
        http_wait(request);
    ticket_unlock(&job->ticket);
    /* A job that failed before it was accepted has a status of its own, stream or not. */
    if (stream)
        http_reply_stream(request, read_stream);
    else if (done && job->error.code != API_OK)
        http_reply_error(request, &job->error);
    else if (done)
        reply_whole(request, job);
}

static enum outcome outcome_of(const struct http_request *request, const struct job *job, bool done)
{
    if (!done || request->aborted)
        return OUTCOME_CANCELLED;
    if (job->error.code == API_CANCELLED || job->error.code == API_DRAINING)
        return OUTCOME_CANCELLED;
    if (job->error.code != API_OK)
        return OUTCOME_ERROR;
    return job->choices[0].finish == FINISH_LENGTH ? OUTCOME_LENGTH : OUTCOME_STOP;
}

static void log_job(const struct http_request *request, const struct job *job, bool done,
                    enum outcome outcome)
{
    struct log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "completion");
    log_text(&line, "id", request->request_id);
    log_text(&line, "completion", job->id);
    log_text_cut(&line, "user", job->request.user);
    log_text(&line, "session", job->request.session_id);
    log_int(&line, "priority", job->request.priority);
    log_int(&line, "status", http_status(request));
    log_text(&line, "outcome", metrics_outcome(outcome));
    log_int(&line, "prompts", (int64_t)job->request.num_prompts);
    log_int(&line, "stream", job->request.stream);
    if (done) {
        struct reply_timings timings = job_reply_timings(job);
        log_int(&line, "prompt_tokens", job->prompt_tokens);
        log_int(&line, "completion_tokens", job->generated);
        if (job->error.code == API_OK) {
            log_ms(&line, "queue_ms", timings.queue_ms);
            log_ms(&line, "prefill_ms", timings.prefill_ms);
            log_ms(&line, "decode_ms", timings.decode_ms);
        } else {
            log_text(&line, "error", api_error_row(job->error.code)->code);
        }
    }
    log_ms(&line, "ms", (clock_seconds() - request->started) * 1e3);
    log_end(&line);
}

void completions_end(struct http_request *request)
{
    struct metrics *metrics = &request->service->metrics;
    struct job *job = job_of(request);
    int status = http_status(request);
    idempotency_drop(request);
    if (!job) {
        metrics_request(metrics, status,
                        status == 499       ? OUTCOME_CANCELLED
                        : request->replayed ? OUTCOME_REPLAYED
                                            : OUTCOME_ERROR);
        http_log(request);
        return;
    }
    ticket_lock(&job->ticket);
    bool done = job->ticket.done;
    ticket_unlock(&job->ticket);
    enum outcome outcome = outcome_of(request, job, done);
    metrics_request(metrics, status, outcome);
    log_job(request, job, done, outcome);
    if (job->request.stream)
        completion_stream_leave(job);
}
