#include "server/completions.h"

#include "api/sse.h"
#include "engine/base/clock.h"
#include "server/job_reply.h"
#include "server/log.h"
#include "server/parsing.h"
#include "server/scheduler.h"

#include <stdlib.h>
#include <string.h>

/* A stream: what was taken out of the job's outbox, and the frames made of it. */
struct stream {
    struct outbox taken;
    struct strbuf frames;
    size_t sent;  /* bytes of frames */
    bool ended;   /* the last frame has been made */
    int32_t *ids; /* [ids_capacity]: scratch */
    size_t ids_capacity;
    int64_t generated;
};

/* NULL: there is none yet. */
static struct job *job_of(const struct http_request *request)
{
    return request->parsing ? NULL : (struct job *)request->ticket;
}

/* Streams. */

static int collect_ids(struct stream *stream, const struct piece *piece)
{
    if (piece->num_tokens > stream->ids_capacity) {
        size_t capacity = 2 * piece->num_tokens;
        int32_t *ids = realloc(stream->ids, capacity * sizeof *ids);
        if (!ids)
            return -1;
        stream->ids = ids;
        stream->ids_capacity = capacity;
    }
    for (size_t i = 0; i < piece->num_tokens; i++)
        stream->ids[i] = piece->tokens[i].id;
    return 0;
}

static void make_frame(struct stream *stream, const struct job *job,
                       const struct outbox_record *record, const struct piece *piece)
{
    const struct completion_request *request = &job->request;
    size_t prompt_index = (size_t)record->choice / (size_t)request->best_of;
    const struct job_prompt *prompt = &job->prompts[prompt_index];
    bool echo = record->prompt && request->echo;
    struct reply_logprobs logprobs = {
        .tokenizer = job->service->tokenizer,
        .tokens = echo ? prompt->logprobs : piece->tokens,
        .num_tokens = echo ? prompt->count : piece->num_tokens,
        .as_token_ids = request->return_tokens_as_token_ids,
    };
    struct reply_choice choice = {.index = record->choice,
                                  .text = echo ? prompt->text : piece->text.data,
                                  .text_length = echo ? prompt->text_length : piece->text.length,
                                  .logprobs = request->logprobs >= 0 ? &logprobs : NULL};
    job_reply_ending(&choice, job, record->finish, record->stop_index, record->stop_token);
    if (request->return_token_ids) {
        if (collect_ids(stream, piece)) {
            stream->frames.failed = true;
            return;
        }
        choice.token_ids = stream->ids ? stream->ids : prompt->ids;
        choice.num_token_ids = piece->num_tokens;
        if (record->prompt) {
            choice.prompt_token_ids = prompt->ids;
            choice.num_prompt_token_ids = prompt->count;
        }
    }
    enum sse_usage kind = request->continuous_usage_stats ? SSE_USAGE_GIVEN
                          : request->include_usage        ? SSE_USAGE_NULL
                                                          : SSE_USAGE_ABSENT;
    struct reply_head head = job_reply_head(job);
    struct reply_usage usage = job_reply_usage(job, record->generated);
    sse_choice_frame(&stream->frames, &head, &choice, kind, &usage);
    stream->generated = record->generated;
}

static void make_last_frames(struct stream *stream, const struct job *job)
{
    struct reply_head head = job_reply_head(job);
    struct reply_usage usage = job_reply_usage(job, stream->generated);
    struct reply_timings timings = job_reply_timings(job);
    if (job->error.code != API_OK)
        sse_error_frame(&stream->frames, &job->error);
    else if (job->request.include_usage)
        sse_usage_frame(&stream->frames, &head, &usage, &timings);
    sse_done(&stream->frames);
    stream->ended = true;
}

/* Makes frames of what the job has put out. False when there is nothing and the connection was
 * suspended, or is to be given up. */
static bool refill(struct http_request *request, struct stream *stream)
{
    struct job *job = job_of(request);
    strbuf_reset(&stream->frames);
    stream->sent = 0;
    ticket_lock(&job->ticket);
    bool empty = job->outbox.length == 0, full = outbox_full(&job->outbox);
    bool done = job->ticket.done;
    if (empty && !done) {
        http_wait(request);
        ticket_unlock(&job->ticket);
        return false;
    }
    /* The two buffers change places: nothing is copied, and the engine never waits for JSON. */
    struct outbox emptied = stream->taken;
    emptied.length = 0;
    stream->taken = job->outbox;
    job->outbox = emptied;
    /* Under the lock: while the job is not done the scheduler is there. */
    if (full && !done)
        scheduler_poke(job->service->scheduler);
    ticket_unlock(&job->ticket);
    struct outbox_record record;
    struct piece piece;
    size_t offset = 0;
    while (outbox_next(&stream->taken, &offset, &record, &piece))
        make_frame(stream, job, &record, &piece);
    if (empty && done)
        make_last_frames(stream, job);
    return true;
}

static ssize_t read_stream(void *context, uint64_t position, char *buffer, size_t size)
{
    (void)position;
    struct http_request *request = context;
    struct stream *stream = request->state;
    if (ticket_cancelled(request->ticket) == CANCEL_GONE)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (stream->sent == stream->frames.length) {
        if (stream->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (!refill(request, stream))
            return request->hang_up ? MHD_CONTENT_READER_END_WITH_ERROR : 0;
        if (stream->frames.failed)
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t left = stream->frames.length - stream->sent;
    size_t count = left < size ? left : size;
    memcpy(buffer, stream->frames.data + stream->sent, count);
    stream->sent += count;
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
    struct stream *stream = parsed->stream ? calloc(1, sizeof *stream) : NULL;
    bool lacking = parsed->stream && !stream;
    if (job_create(&job, request->service, parsed, request->request_id, request->owner, err)) {
        free(stream);
        return -1;
    }
    if (lacking)
        api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    if (lacking || job_start(job, err)) {
        free(stream);
        ticket_release(&job->ticket);
        return -1;
    }
    request->state = stream;
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
        http_reply_error(request, &err);
        return;
    }
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
    static const char *const OUTCOMES[NUM_OUTCOMES] = {"stop", "length", "cancelled", "error"};
    struct log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "completion");
    log_text(&line, "id", request->request_id);
    log_text(&line, "completion", job->id);
    log_text_cut(&line, "user", job->request.user);
    log_int(&line, "priority", job->request.priority);
    log_int(&line, "status", request->aborted ? 499 : request->status);
    log_text(&line, "outcome", OUTCOMES[outcome]);
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
    struct stream *stream = request->state;
    struct job *job = job_of(request);
    int status = request->aborted ? 499 : request->status;
    if (!job) {
        metrics_request(metrics, status, request->aborted ? OUTCOME_CANCELLED : OUTCOME_ERROR);
        http_log(request);
        return;
    }
    registry_remove(&request->service->registry, &job->entry);
    ticket_lock(&job->ticket);
    bool done = job->ticket.done;
    ticket_unlock(&job->ticket);
    enum outcome outcome = outcome_of(request, job, done);
    metrics_request(metrics, status, outcome);
    log_job(request, job, done, outcome);
    if (stream) {
        outbox_clear(&stream->taken);
        strbuf_clear(&stream->frames);
        free(stream->ids);
        free(stream);
    }
}
