/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/job.h"

#include "engine/base/clock.h"
#include "server/endpoints/completion_stream.h"
#include "server/endpoints/job_reply.h"
#include "server/endpoints/replay.h"
#include "server/schedule/prompt.h"
#include "server/schedule/scheduler.h"
#include "server/schedule/session_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void job_destroy(struct ticket *ticket)
{
    struct job *job = (struct job *)ticket;
    registry_remove(&job->service->registry, &job->entry);
    completion_stream_free(job);
    for (size_t i = 0; job->prompts && i < job->request.num_prompts; i++)
        prompt_clear(&job->prompts[i]);
    for (size_t i = 0; i < job->num_choices; i++)
        piece_clear(&job->choices[i].piece);
    free(job->prompts);
    free(job->choices);
    free(job->ends);
    stop_set_free(job->stops);
    outbox_clear(&job->outbox);
    strbuf_clear(&job->reply);
    token_list_clear(&job->taken);
    completion_request_clear(&job->request);
    admission_body(&job->service->admission, -job->reserved_bytes);
    ticket_clear(&job->ticket);
    free(job);
}

static int out_of_memory(struct api_error *err)
{
    return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
}

/* What the request will cost in tokens, before anything is tokenized: a token of text has about
 * four bytes, each choice and each stop string has its own cost in memory. */
static int64_t estimate_tokens(const struct completion_request *request)
{
    int64_t tokens = 0;
    for (size_t i = 0; i < request->num_prompts; i++) {
        const struct completion_prompt *prompt = &request->prompts[i];
        tokens += prompt->text ? (int64_t)(prompt->length / 4) : (int64_t)prompt->num_ids;
    }
    if (request->echo && request->logprobs > 0)
        tokens += tokens * request->logprobs / 4;
    for (size_t i = 0; i < request->num_stops; i++)
        tokens += 16 + (int64_t)request->stops[i].length;
    tokens += (int64_t)(request->user ? strlen(request->user) : 0) / 4;
    tokens += (int64_t)request->cache_salt_length / 4;
    return tokens + 16 * (int64_t)request->num_prompts * request->best_of;
}

static int random_bytes(void *bytes, size_t size, struct api_error *err)
{
    if (getrandom(bytes, size, 0) != (ssize_t)size)
        return api_error_set(err, API_INTERNAL, NULL, "the system gives no random numbers");
    return 0;
}

static int name_job(struct job *job, const char *request_id, struct api_error *err)
{
    uint64_t random[2];
    if (random_bytes(random, sizeof random, err))
        return -1;
    snprintf(job->id, sizeof job->id, "cmpl-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    snprintf(job->request_id, sizeof job->request_id, "%s", request_id);
    if (job->request.seed_given)
        return 0;
    return random_bytes(&job->request.sampling.seed, sizeof job->request.sampling.seed, err);
}

int job_create(struct job **out, struct service *service, struct completion_request *request,
               const char *request_id, int owner, struct api_error *err)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        completion_request_clear(request);
        return out_of_memory(err);
    }
    ticket_init(&job->ticket, job_destroy);
    job->service = service;
    job->request = *request;
    job->owner = service_owner(service, owner);
    job->created = (int64_t)time(NULL);
    job->received = clock_seconds();
    job->entry = (struct registry_entry){
        .ticket = &job->ticket, .id = job->id, .request_id = job->request_id, .owner = owner};
    job->admitted_tokens = estimate_tokens(request);
    job->num_choices = request->num_prompts * (size_t)request->best_of;
    job->prompts = calloc(request->num_prompts, sizeof *job->prompts);
    job->choices = calloc(job->num_choices, sizeof *job->choices);
    if (!job->choices)
        job->num_choices = 0;
    for (size_t i = 0; i < job->num_choices; i++) {
        job->choices[i].stop_index = job->choices[i].stop_token = -1;
        job->choices[i].piece.num_top = request->logprobs > 0 ? request->logprobs : 0;
    }
    int result = job->prompts && job->choices ? name_job(job, request_id, err) : out_of_memory(err);
    if (result) {
        ticket_release(&job->ticket);
        return -1;
    }
    *out = job;
    return 0;
}

int job_start(struct job *job, struct api_error *err)
{
    struct service *service = job->service;
    if (admission_enter(&service->admission, job->admitted_tokens, err))
        return -1;
    job->in_queue = true;
    atomic_fetch_add(&service->metrics.waiting, 1);
    registry_add(&service->registry, &job->entry);
    ticket_hold(&job->ticket);
    if (session_job(job))
        session_job_bind(job);
    else
        job_to_workers(job, job_run_prepare);
    return 0;
}

void job_to_workers(struct job *job, void (*run)(struct work *work))
{
    job->work.run = run;
    worker_submit(job->service->workers, &job->work);
}

void job_to_engine(struct job *job, void (*run)(struct work *work))
{
    job->work.run = run;
    scheduler_post(job->service->scheduler, &job->work);
}

int job_reserve(struct job *job, size_t bytes, struct error *err)
{
    enum { STEP_BYTES = 8192 };
    if (bytes > INT64_MAX / 4)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for this request");
    job->held_bytes += (int64_t)bytes;
    int64_t lacking = job->held_bytes - job->reserved_bytes;
    if (lacking <= 0)
        return 0;
    lacking = (lacking + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
    if (!admission_body(&job->service->admission, lacking))
        return error_set(err, ERROR_NO_MEMORY,
                         "the requests that are being answered hold as much as --max-body-memory "
                         "allows: stream, or ask for less");
    job->reserved_bytes += lacking;
    return 0;
}

void job_running(struct job *job)
{
    if (job->running)
        return;
    job->running = true;
    job->started = clock_seconds();
    atomic_fetch_sub(&job->service->metrics.waiting, 1);
    atomic_fetch_add(&job->service->metrics.running, 1);
    histogram_observe(&job->service->metrics.queue, job->started - job->received);
}

void job_leave_queue(struct job *job)
{
    if (!job->in_queue)
        return;
    job->in_queue = false;
    admission_leave(&job->service->admission, job->admitted_tokens);
}

static void tell_done(struct job *job)
{
    ticket_lock(&job->ticket);
    job->ticket.done = true;
    bool left = job->left && job->replay;
    ticket_wake(&job->ticket);
    ticket_unlock(&job->ticket);
    if (left)
        job_to_workers(job, completion_stream_run_rest);
    else
        ticket_release(&job->ticket);
}

struct job *job_of_work(struct work *work)
{
    return (struct job *)((char *)work - offsetof(struct job, work));
}

/* Longer ones are written by a worker: on an event loop they would take over a millisecond. */
enum { LONG_REPLY_BYTES = 32 * 1024 };

static void encode(struct job *job)
{
    struct error err = ERROR_INIT;
    if (ticket_cancelled(&job->ticket)) {
        job_fail_cancelled(job);
    } else if (job_reply_encode(&job->reply, job)) {
        error_set(&err, ERROR_NO_MEMORY, "out of memory for the reply");
        job_fail_engine(job, &err);
    }
}

/* The whole reply is made, and kept for who repeats the request. */
static void job_run_encode(struct work *work)
{
    struct job *job = job_of_work(work);
    struct replay *replay = job->service->replay;
    if (job->error.code == API_OK)
        encode(job);
    if (job->replay && job->error.code == API_OK)
        replay_keep(replay, job->replay, 200, false, job->reply.data, job->reply.length);
    else if (job->replay)
        replay_keep_error(replay, job->replay, &job->error);
    job->replay = NULL;
    tell_done(job);
}

/* Its session is settled: it is over. */
static void finish_settled(struct job *job)
{
    struct metrics *metrics = &job->service->metrics;
    bool well = job->error.code == API_OK;
    atomic_fetch_sub(job->running ? &metrics->running : &metrics->waiting, 1);
    job->ended = clock_seconds();
    if (well)
        histogram_observe(&metrics->request_duration, job->ended - job->received);
    bool streams = job->request.stream && job->accepted;
    bool elsewhere = job->replay || (well && job_reply_bytes(job) > LONG_REPLY_BYTES);
    if (!streams && elsewhere)
        job_to_workers(job, job_run_encode);
    else
        tell_done(job);
}

void job_finish(struct job *job)
{
    struct error err = ERROR_INIT;
    bool streams = job->request.stream && job->accepted;
    job_leave_queue(job);
    /* A reply that there is no room for leaves the session as it was. */
    if (!streams && job->error.code == API_OK && job_reserve(job, job_reply_bytes(job), &err))
        job_fail_engine(job, &err);
    if (job->session)
        session_job_settle(job, finish_settled);
    else
        finish_settled(job);
}

void job_fail(struct job *job, const struct api_error *err)
{
    if (job->error.code == API_OK)
        job->error = *err;
    job->failed = true;
}

void job_fail_engine(struct job *job, const struct error *err)
{
    struct api_error api = {0};
    /* The request was valid: whatever the engine refuses now is our own mistake. */
    if (err->code == ERROR_NO_MEMORY)
        api_error_from_engine(&api, err, NULL);
    else
        api_error_set(&api, API_INTERNAL, NULL, "the engine failed: %s", err->message);
    job_fail(job, &api);
}

void job_fail_cancelled(struct job *job)
{
    struct api_error err = {0};
    switch (ticket_cancelled(&job->ticket)) {
    case CANCEL_SLOW:
        api_error_set(&err, API_CANCELLED, NULL, "cancelled: the client does not read its stream");
        break;
    case CANCEL_DRAINING:
        api_error_set(&err, API_DRAINING, NULL, "cancelled: the server is shutting down");
        break;
    default:
        api_error_set(&err, API_CANCELLED, NULL, "the request was cancelled");
    }
    job_fail(job, &err);
}

static bool contains(const int32_t *ids, size_t count, int32_t id)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Stop strings, and the tokens that end a text. */
static int prepare_stops(struct job *job, struct api_error *err)
{
    struct error error = ERROR_INIT;
    const struct completion_request *request = &job->request;
    const struct service *service = job->service;
    size_t num_eos = request->ignore_eos ? 0 : service->num_eos;
    job->ends = malloc((num_eos + request->num_stop_token_ids + 1) * sizeof *job->ends);
    struct stop_string *strings = malloc((request->num_stops + 1) * sizeof *strings);
    if (!job->ends || !strings) {
        free(strings);
        return out_of_memory(err);
    }
    for (size_t i = 0; i < num_eos; i++)
        job->ends[job->num_ends++] = service->eos_ids[i];
    for (size_t i = 0; i < request->num_stop_token_ids; i++)
        if (!contains(service->eos_ids, num_eos, request->stop_token_ids[i]))
            job->ends[job->num_ends++] = request->stop_token_ids[i];
    size_t length = 0;
    for (size_t i = 0; i < request->num_stops; i++) {
        strings[i] = (struct stop_string){request->stops[i].text, request->stops[i].length};
        length += strings[i].length;
    }
    int result = 0;
    if (request->min_tokens > 0 && job->num_ends >= (size_t)service->limits.vocab_size)
        result = api_error_set(err, API_INVALID_VALUE, "stop_token_ids",
                               "stop_token_ids: no token is left that may come before min_tokens");
    else if (request->num_stops &&
             (job_reserve(job, stop_set_bytes(length), &error) ||
              stop_set_create(&job->stops, strings, request->num_stops, &error)))
        result = api_error_from_engine(err, &error, "stop");
    free(strings);
    return result;
}

static int job_prepare(struct job *job, struct api_error *err)
{
    for (size_t i = 0; i < job->request.num_prompts; i++) {
        if (ticket_cancelled(&job->ticket))
            return 0;
        if (prompt_prepare(job, i, err))
            return -1;
        job->prompt_tokens += (int64_t)job->prompts[i].count;
    }
    return prepare_stops(job, err);
}

static void run_finish(struct work *work)
{
    job_finish(job_of_work(work));
}

void job_accept(struct job *job)
{
    ticket_lock(&job->ticket);
    job->accepted = true;
    if (job->request.stream)
        ticket_wake(&job->ticket);
    ticket_unlock(&job->ticket);
    scheduler_submit(job->service->scheduler, job);
}

void job_run_prepare(struct work *work)
{
    struct job *job = job_of_work(work);
    struct api_error err = {0};
    if (job_prepare(job, &err))
        job_fail(job, &err);
    else if (ticket_cancelled(&job->ticket))
        job_fail_cancelled(job);
    if (job->session)
        job_to_engine(job, job->failed ? run_finish : session_job_run_admit);
    else if (job->failed)
        job_finish(job);
    else
        job_accept(job);
}
