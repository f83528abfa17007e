#include "server/completions.h"

#include "api/sse.h"
#include "server/clock.h"
#include "server/log.h"

#include <math.h>
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

static struct job *job_of(const struct http_request *request)
{
    return (struct job *)request->ticket;
}

static struct reply_head head_of(const struct job *job)
{
    return (struct reply_head){.id = job->id,
                               .created = job->created,
                               .model = job->service->model,
                               .system_fingerprint = job->service->fingerprint};
}

/* No prefix is reused yet. */
static struct reply_usage usage_of(const struct job *job, int64_t generated)
{
    return (struct reply_usage){.prompt_tokens = job->prompt_tokens,
                                .completion_tokens = generated,
                                .cached_tokens = 0,
                                .cache_miss_reason = "disabled"};
}

static double per_second(double count, double seconds)
{
    return count > 0 && seconds > 0 ? count / seconds : NAN;
}

static struct reply_timings timings_of(const struct job *job)
{
    double first = job->first_token > 0 ? job->first_token : job->ended;
    double prefill = first - job->started, decode = job->ended - first;
    int64_t texts = 0;
    for (size_t i = 0; i < job->num_choices; i++)
        texts += job->choices[i].generated > 0;
    return (struct reply_timings){
        .queue_ms = (job->started - job->received) * 1e3,
        .prefill_ms = prefill * 1e3,
        .decode_ms = decode * 1e3,
        .prefill_tokens_per_second =
            job->first_token > 0 ? per_second((double)job->prompt_tokens, prefill) : NAN,
        .decode_tokens_per_second = per_second((double)(job->generated - texts), decode)};
}

/* How a choice ended, into *reply. */
static void set_ending(struct reply_choice *reply, const struct job *job, enum finish_reason finish,
                       int32_t stop_index, int32_t stop_token)
{
    reply->finish_reason = finish;
    reply->stop_token = stop_token;
    if (stop_index >= 0) {
        reply->stop_string = job->request.stops[stop_index].text;
        reply->stop_string_length = job->request.stops[stop_index].length;
    }
}

/* The index that clients see: best_of candidates become n choices. */
static int reply_index(const struct job *job, size_t prompt, int rank)
{
    return (int)prompt * job->request.n + rank;
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
    set_ending(&choice, job, record->finish, record->stop_index, record->stop_token);
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
    struct reply_head head = head_of(job);
    struct reply_usage usage = usage_of(job, record->generated);
    sse_choice_frame(&stream->frames, &head, &choice, kind, &usage);
    stream->generated = record->generated;
}

static void make_last_frames(struct stream *stream, const struct job *job)
{
    struct reply_head head = head_of(job);
    struct reply_usage usage = usage_of(job, stream->generated);
    struct reply_timings timings = timings_of(job);
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
    bool empty = job->outbox.length == 0;
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

/* Whole replies. */

/* What a choice's reply points to and has to be freed after the encoding. */
struct whole_choice {
    char *text;
    struct reply_token *tokens;
    int32_t *ids;
    struct reply_logprobs logprobs;
};

static void *join(const void *a, size_t a_size, const void *b, size_t b_size)
{
    char *both = malloc(a_size + b_size + 1);
    if (both && a_size)
        memcpy(both, a, a_size);
    if (both && b_size)
        memcpy(both + a_size, b, b_size);
    return both;
}

static int join_logprobs(struct whole_choice *whole, const struct job *job,
                         const struct job_prompt *prompt, const struct piece *piece)
{
    size_t echoed = job->request.echo ? prompt->count : 0;
    whole->tokens = join(prompt->logprobs, echoed * sizeof *whole->tokens, piece->tokens,
                         piece->num_tokens * sizeof *whole->tokens);
    whole->logprobs =
        (struct reply_logprobs){.tokenizer = job->service->tokenizer,
                                .tokens = whole->tokens,
                                .num_tokens = echoed + piece->num_tokens,
                                .as_token_ids = job->request.return_tokens_as_token_ids};
    return whole->tokens ? 0 : -1;
}

static int whole_ids(struct whole_choice *whole, const struct piece *piece)
{
    whole->ids = malloc((piece->num_tokens + 1) * sizeof *whole->ids);
    for (size_t i = 0; whole->ids && i < piece->num_tokens; i++)
        whole->ids[i] = piece->tokens[i].id;
    return whole->ids ? 0 : -1;
}

static int make_choice(struct reply_choice *reply, struct whole_choice *whole, struct job *job,
                       size_t prompt_index, struct job_choice *choice)
{
    const struct completion_request *request = &job->request;
    const struct job_prompt *prompt = &job->prompts[prompt_index];
    struct piece *piece = &choice->piece;
    piece_seal(piece);
    size_t echoed = request->echo ? prompt->text_length : 0;
    whole->text = join(prompt->text, echoed, piece->text.data, piece->text.length);
    reply->text = whole->text;
    reply->text_length = echoed + piece->text.length;
    set_ending(reply, job, choice->finish, choice->stop_index, choice->stop_token);
    if (!whole->text || (request->logprobs >= 0 && join_logprobs(whole, job, prompt, piece)) ||
        (request->return_token_ids && whole_ids(whole, piece)))
        return -1;
    if (request->logprobs >= 0)
        reply->logprobs = &whole->logprobs;
    if (request->return_token_ids) {
        reply->token_ids = whole->ids;
        reply->num_token_ids = piece->num_tokens;
        reply->prompt_token_ids = prompt->ids;
        reply->num_prompt_token_ids = prompt->count;
    }
    return 0;
}

static double mean_logprob(const struct job_choice *choice)
{
    return choice->generated ? choice->sum_logprob / (double)choice->generated : -INFINITY;
}

/* The candidate of the prompt that is rank-th by mean logprob (ties: the earlier); without best_of
 * they stay in order. */
static struct job_choice *ranked(struct job *job, size_t prompt, int rank)
{
    int best_of = job->request.best_of;
    struct job_choice *candidates = job->choices + prompt * (size_t)best_of;
    if (best_of == job->request.n)
        return &candidates[rank];
    for (int i = 0; i < best_of; i++) {
        double mean = mean_logprob(&candidates[i]);
        int better = 0;
        for (int j = 0; j < best_of; j++) {
            double other = mean_logprob(&candidates[j]);
            better += other > mean || (other == mean && j < i);
        }
        if (better == rank)
            return &candidates[i];
    }
    return &candidates[rank];
}

static void reply_whole(struct http_request *request, struct job *job)
{
    size_t per_prompt = (size_t)job->request.n;
    size_t count = job->request.num_prompts * per_prompt;
    struct reply_choice *replies = calloc(count, sizeof *replies);
    struct whole_choice *wholes = calloc(count, sizeof *wholes);
    struct strbuf body = {0};
    int result = replies && wholes ? 0 : -1;
    for (size_t i = 0; i < count && result == 0; i++) {
        size_t prompt = i / per_prompt;
        int rank = (int)(i % per_prompt);
        replies[i].index = reply_index(job, prompt, rank);
        result = make_choice(&replies[i], &wholes[i], job, prompt, ranked(job, prompt, rank));
    }
    if (result == 0) {
        struct reply_head head = head_of(job);
        struct reply_usage usage = usage_of(job, job->generated);
        struct reply_timings timings = timings_of(job);
        completion_reply_encode(&body, &head, replies, count, &usage, &timings);
    }
    for (size_t i = 0; wholes && i < count; i++) {
        free(wholes[i].text);
        free(wholes[i].tokens);
        free(wholes[i].ids);
    }
    free(wholes);
    free(replies);
    if (result || body.failed) {
        struct api_error err = {0};
        strbuf_clear(&body);
        api_error_set(&err, API_OUT_OF_MEMORY, NULL, "out of memory for the reply");
        http_reply_error(request, &err);
        return;
    }
    http_reply_json(request, &body);
}

/* Requests. */

static int start(struct http_request *request, struct api_error *err)
{
    struct service *service = request->service;
    struct completion_request parsed;
    struct job *job;
    if (service_check_ready(service, err) ||
        completion_parse(&parsed, request->body.data, request->body.length, &service->limits, err))
        return -1;
    if (!request->request_id_given && parsed.request_id)
        snprintf(request->request_id, sizeof request->request_id, "%s", parsed.request_id);
    struct stream *stream = parsed.stream ? calloc(1, sizeof *stream) : NULL;
    bool lacking = parsed.stream && !stream;
    if (job_create(&job, service, &parsed, request->request_id, request->owner, err)) {
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

void completions_handle(struct http_request *request)
{
    struct api_error err = {0};
    if (!request->ticket && start(request, &err)) {
        http_reply_error(request, &err);
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
    log_text(&line, "user", job->request.user);
    log_int(&line, "priority", job->request.priority);
    log_int(&line, "status", request->aborted ? 499 : request->status);
    log_text(&line, "outcome", OUTCOMES[outcome]);
    log_int(&line, "prompts", (int64_t)job->request.num_prompts);
    log_int(&line, "stream", job->request.stream);
    if (done) {
        struct reply_timings timings = timings_of(job);
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
