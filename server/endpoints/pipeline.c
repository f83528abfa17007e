/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/pipeline.h"

#include "api/responses_replay.h"
#include "api/responses_turns.h"
#include "lib/base/clock.h"
#include "server/endpoints/completion_stream.h"
#include "server/endpoints/job_reply.h"
#include "server/endpoints/replay.h"
#include "server/schedule/chat_job.h"
#include "server/schedule/prompt.h"
#include "server/schedule/scheduler.h"
#include "server/schedule/session_job.h"
#include "server/states/session_ask.h"
#include "server/states/session_quota.h"

#include <time.h>

/* Longer ones are written by a worker: on an event loop they would take over a millisecond. */
enum { LONG_REPLY_BYTES = 32 * 1024 };

static struct completion *of_task(struct task *task)
{
    return (struct completion *)task;
}

static void to_workers(struct completion *completion, void (*run)(struct task *task), size_t bytes)
{
    task_to_workers(&completion->job.task, run, bytes);
}

static void to_renderers(struct completion *completion, void (*run)(struct task *task),
                         size_t bytes)
{
    task_to_renderers(&completion->job.task, run, bytes);
}

static void to_engine(struct completion *completion, void (*run)(struct task *task))
{
    struct task *task = &completion->job.task;
    scheduler_post(task->service->scheduler, task_work(task, run));
}

/* The end, last stage first. */

/* On a worker, once the job is done: records the rest of a stream whose client has left. */
static void run_rest(struct task *task)
{
    completion_stream_complete(of_task(task));
    ticket_release(&task->ticket);
}

/* Tells the connection. From now on nothing of the job changes. */
static void done(struct completion *completion)
{
    struct ticket *ticket = &completion->job.task.ticket;
    ticket_lock(ticket);
    ticket->done = true;
    bool left = completion->left && completion->replay && completion->stream;
    if (ticket->readers > 0)
        scheduler_poke(completion->job.task.service->scheduler);
    ticket_wake(ticket);
    ticket_unlock(ticket);
    if (left)
        to_workers(completion, run_rest, 0);
    else
        ticket_release(ticket);
}

static void on_kept(void *context)
{
    done(context);
}

/* The end of a job: its reply is kept first for a client that repeats its request, if it has an
 * Idempotency-Key. */
static void keep_reply(struct completion *completion)
{
    const struct task *task = &completion->job.task;
    struct replay *replay = task->service->replay;
    struct replay_entry *entry = completion->replay;
    completion->replay = NULL;
    if (!entry)
        done(completion);
    else if (task->error.code == API_OK)
        replay_keep(replay, entry, 200, completion->made && completion->job.asked.request.stream,
                    task->reply.data, task->reply.length, on_kept, completion);
    else
        replay_keep_error(replay, entry, &task->error, completion->format->encode_error, on_kept,
                          completion);
}

static void encode(struct completion *completion)
{
    struct job *job = &completion->job;
    struct error err = ERROR_INIT;
    if (ticket_cancelled(&job->task.ticket)) {
        job_fail_cancelled(job);
    } else if (job_reply_encode(&job->task.reply, completion)) {
        error_set(&err, ERROR_NO_MEMORY, "out of memory for the reply");
        job_fail_engine(job, &err);
    }
}

/* Reply, on a worker. */
static void run_encode(struct task *task)
{
    struct completion *completion = of_task(task);
    if (task->error.code == API_OK && !completion->made)
        encode(completion);
    keep_reply(completion);
}

/* Whether its reply is a stream, whatever has become of it. */
static bool streams(const struct job *job)
{
    return job->asked.request.stream && job->shared.accepted;
}

static void reply(struct completion *completion)
{
    struct job *job = &completion->job;
    size_t bytes = job->task.error.code == API_OK ? job_reply_bytes(job) : 0;
    if (!streams(job) && (completion->replay || bytes > LONG_REPLY_BYTES))
        to_workers(completion, run_encode, bytes);
    else
        done(completion);
}

static void run_locate(struct task *task)
{
    chat_job_locate(&of_task(task)->job);
    reply(of_task(task));
}

/* The session is settled, if there is one: what is left is the reply. */
static void settled(struct job *job)
{
    struct completion *completion = completion_of(job);
    struct metrics *metrics = &job->task.service->metrics;
    bool well = job->task.error.code == API_OK && !completion->made;
    atomic_fetch_sub(job->queue.running ? &metrics->running : &metrics->waiting, 1);
    job->run.ended = clock_seconds();
    if (completion->replay && job->bound.changed)
        replay_worked(job->task.service->replay, completion->replay);
    if (well)
        histogram_observe(&metrics->request_duration, job->run.ended - job->asked.received);
    for (size_t i = 0; well && i < job->asked.request.num_prompts; i++)
        histogram_observe(&metrics->prompt_choices, job->asked.request.n);
    if (well && chat_job(job) && atomic_load(&job->shared.miss) == MISS_DIVERGED)
        to_renderers(completion, run_locate, chat_job_bytes(job));
    else
        reply(completion);
}

/* With the turn the store learns that it was this request's: however the server ends, the turn is
 * not made twice. */
static void claim_turn(struct job *job)
{
    struct completion *completion = completion_of(job);
    if (!completion->replay || !job->task.service->store)
        return;
    completion->claim = replay_claim(job->task.service->replay, completion->replay);
    job->bound.claim = &completion->claim;
}

static void settle(struct job *job)
{
    claim_turn(job);
    session_job_settle(job, settled);
}

static void run_settle(struct task *task)
{
    settle(&of_task(task)->job);
}

/* The object of a response that is kept. */
static void record_object(struct completion *completion)
{
    struct job *job = &completion->job;
    struct error err = ERROR_INIT;
    size_t bytes = job_reply_bytes(job);
    if (job_reserve(job, bytes, &err) == 0 &&
        job_reply_encode_kept(&job->chat.object, completion) == 0 &&
        (!streams(job) ||
         (job_reserve(job, bytes, &err) == 0 && completion_stream_note(completion) == 0)))
        return;
    error_set(&err, ERROR_NO_MEMORY, "out of memory for the response");
    token_list_clear(&job->bound.taken);
    job_fail_engine(job, &err);
}

/* The turn of a chat. */
static void run_record(struct task *task)
{
    struct completion *completion = of_task(task);
    if (completion->job.asked.request.kept && completion->job.bound.taken.ids)
        record_object(completion);
    chat_job_record(&completion->job);
    to_engine(of_task(task), run_settle);
}

static void run_remember(struct task *task)
{
    chat_job_remember(&of_task(task)->job);
    settled(&of_task(task)->job);
}

/* Before anybody else reads them: from now on nobody writes there. */
static void seal(struct job *job)
{
    for (size_t i = 0; i < job->run.num_choices; i++) {
        piece_seal(&job->run.choices[i].piece);
        piece_seal(&job->run.choices[i].put);
    }
}

/* Ends a job that has a place in the queue, after its last stage or the first that failed. What it
 * held in the engine is free by now. On the engine thread, if it has a session. */
static void finish(struct job *job)
{
    struct error err = ERROR_INIT;
    bool well = job->task.error.code == API_OK && !completion_of(job)->made;
    job->run.texts_ended = (int64_t)time(NULL);
    seal(job);
    job_leave_queue(job);
    /* If there is no room for the reply, the session stays as it was. */
    if (!streams(job) && well && job_reserve(job, job_reply_bytes(job), &err))
        job_fail_engine(job, &err);
    if (!job->bound.session && chat_job_said(job))
        to_workers(completion_of(job), run_remember, prompt_bytes(job));
    else if (!job->bound.session)
        settled(job);
    else if (chat_job(job))
        to_workers(completion_of(job), run_record, chat_job_bytes(job));
    else
        settle(job);
}

static void run_finish(struct task *task)
{
    finish(&of_task(task)->job);
}

/* Ends a job that has no place in the queue yet: it has nothing to give back. */
static void refuse(struct completion *completion, const struct api_error *err)
{
    job_fail(&completion->job, err);
    keep_reply(completion);
}

/* The way, first stage last. */

/* Run: a stream may begin now. */
static void accept(struct job *job)
{
    struct ticket *ticket = &job->task.ticket;
    ticket_lock(ticket);
    job->shared.accepted = true;
    if (job->asked.request.stream)
        ticket_wake(ticket);
    ticket_unlock(ticket);
    scheduler_submit(job->task.service->scheduler, job);
}

static void on_admitted(void *context, const struct api_error *err)
{
    struct job *job = &((struct completion *)context)->job;
    if (err) {
        job_fail(job, err);
        finish(job);
    } else {
        accept(job);
    }
}

static void run_admit(struct task *task)
{
    struct completion *completion = of_task(task);
    struct api_error err = {0};
    if (session_job_admit(&completion->job, &err))
        on_admitted(completion, &err);
    else
        session_quota_reserve(completion->job.bound.session, on_admitted, completion);
}

/* Some clients understand that a prompt is too long by the end of a stream only. */
static void tell_length(struct completion *completion)
{
    struct job *job = &completion->job;
    struct ticket *ticket = &job->task.ticket;
    if (!completion->format->tells_length || !job->asked.request.stream ||
        job->task.error.code != API_CONTEXT_LENGTH)
        return;
    ticket_lock(ticket);
    job->shared.accepted = true;
    ticket_unlock(ticket);
}

static void run_shorten(struct task *task);

static void run_prepare(struct task *task)
{
    struct completion *completion = of_task(task);
    struct job *job = &completion->job;
    struct api_error err = {0};
    int result = prompt_prepare(job, &err);
    if (result && job->chat.tokens > 0) {
        to_renderers(completion, run_shorten, chat_job_bytes(job));
        return;
    }
    if (result)
        job_fail(job, &err);
    else if (ticket_cancelled(&task->ticket))
        job_fail_cancelled(job);
    else
        chat_job_warn(job);
    tell_length(completion);
    if (job->bound.session)
        to_engine(completion, job->failed ? run_finish : run_admit);
    else if (job->failed)
        finish(job);
    else
        accept(job);
}

/* The text of a chat whose oldest turns go. */
static void run_shorten(struct task *task)
{
    struct completion *completion = of_task(task);
    struct job *job = &completion->job;
    struct api_error err = {0};
    if (ticket_cancelled(&task->ticket))
        job_fail_cancelled(job);
    else if (chat_job_shorten(job, &err))
        job_fail(job, &err);
    if (job->failed && job->bound.session)
        to_engine(completion, run_finish);
    else if (job->failed)
        finish(job);
    else
        to_workers(completion, run_prepare, prompt_bytes(job));
}

/* The text of a chat with a session. */
static void run_render(struct task *task)
{
    struct completion *completion = of_task(task);
    struct job *job = &completion->job;
    struct api_error err = {0};
    if (ticket_cancelled(&task->ticket))
        job_fail_cancelled(job);
    else if (chat_job_render(job, &err))
        job_fail(job, &err);
    if (job->failed)
        to_engine(completion, run_finish);
    else
        to_workers(completion, run_prepare, prompt_bytes(job));
}

static int reply_lost(struct api_error *err)
{
    return api_error_set(err, API_KEY_LOST, "Idempotency-Key",
                         "what the request with this Idempotency-Key has made is gone, and so is "
                         "its reply");
}

/* What an earlier request with this key has made, once more. */
static void run_repeat(struct task *task)
{
    struct completion *completion = of_task(task);
    struct job *job = &completion->job;
    const struct job_chat *chat = &job->chat;
    struct error full = ERROR_INIT;
    struct api_error err = {0};
    const char *object;
    size_t length = 0;
    int64_t events;
    int result =
        responses_turns_object(chat->turns, chat->turns_length, &object, &length, &events, &err);
    if (result == 0 && job_reserve(job, responses_replay_bytes(length, events), &full))
        result = api_error_from_engine(&err, &full, NULL);
    if (result == 0 && job->asked.request.stream)
        result = responses_replay(&task->reply, chat->turns, chat->turns_length, -1, &err);
    else if (result == 0)
        strbuf_append(&task->reply, object, length);
    completion->made = result == 0;
    if (result)
        job_fail(job, &err);
    finish(job);
}

/* Whether an earlier request with its key has made the response, which is told again. True also
 * where that is gone. */
static bool repeats(struct completion *completion)
{
    struct job *job = &completion->job;
    struct task *task = &job->task;
    struct api_error err = {0};
    if (!completion->replay || !job->asked.request.kept)
        return false;
    const struct session *session = sessions_find(task->service->sessions, job->asked.owner,
                                                  job->asked.request.session_id, NULL);
    if (session && chat_job_take(job, session, &err) == 0) {
        to_workers(completion, run_repeat, job->chat.turns_length);
        return true;
    }
    if (!session && !replay_has_worked(task->service->replay, completion->replay))
        return false;
    if (!session)
        reply_lost(&err);
    job_fail(job, &err);
    finish(job);
    return true;
}

static void on_lease_back(void *context, const struct api_error *err)
{
    (void)err;
    finish(&((struct completion *)context)->job);
}

/* The session is here as it is. */
static void bind(void *context, const struct api_error *not_there)
{
    struct completion *completion = context;
    struct job *job = &completion->job;
    struct api_error err = {0};
    if (!not_there && repeats(completion))
        return;
    if (not_there)
        job_fail(job, not_there);
    else if (ticket_cancelled(&job->task.ticket))
        job_fail_cancelled(job);
    else if (session_job_bind(job, &err))
        job_fail(job, &err);
    if (!job->failed && chat_job(job))
        to_renderers(completion, run_render, chat_job_bytes(job));
    else if (!job->failed)
        to_workers(completion, run_prepare, prompt_bytes(job));
    else if (!session_ask_undo(job->task.service->sessions, job->asked.owner,
                               job->asked.request.session_id, on_lease_back, completion))
        finish(job);
}

/* The store has said what it has of the session. */
static void asked(void *context, const struct api_error *not_there)
{
    struct completion *completion = context;
    atomic_fetch_sub(&completion->job.task.service->metrics.waiting_for_sessions, 1);
    bind(completion, not_there);
}

static void ask(struct completion *completion, enum session_need need, const char *kept)
{
    const struct job *job = &completion->job;
    session_ask(job->task.service->sessions, job->asked.owner, job->asked.request.session_id, need,
                kept, job->bound.claim, asked, completion);
}

/* The same of the response that it goes on from: now for its own. */
static void asked_previous(void *context, const struct api_error *not_there)
{
    struct completion *completion = context;
    if (not_there)
        asked(completion, not_there);
    else
        ask(completion, SESSION_CHANGES, completion->job.asked.request.begins_with);
}

static void ask_all(struct completion *completion)
{
    struct job *job = &completion->job;
    struct sessions *sessions = job->task.service->sessions;
    if (job->asked.request.kept && job->asked.request.begins_with)
        session_ask(sessions, job->asked.owner, job->asked.request.begins_with, SESSION_USES, NULL,
                    NULL, asked_previous, completion);
    else
        ask(completion, job->asked.request.store ? SESSION_CHANGES : SESSION_USES, NULL);
}

/* The store has said whether the response is there. */
static void asked_own(void *context, const struct api_error *not_there)
{
    struct completion *completion = context;
    struct service *service = completion->job.task.service; /* who repeats may end it at once */
    if (not_there) {
        asked(completion, not_there);
    } else if (repeats(completion)) {
        atomic_fetch_sub(&service->metrics.waiting_for_sessions, 1);
    } else {
        ask_all(completion);
    }
}

static void run_bind(struct task *task)
{
    struct completion *completion = of_task(task);
    const struct job *job = &completion->job;
    struct sessions *sessions = task->service->sessions;
    claim_turn(&completion->job);
    atomic_fetch_add(&task->service->metrics.waiting_for_sessions, 1);
    if (completion->replay && job->asked.request.kept)
        session_ask(sessions, job->asked.owner, job->asked.request.session_id, SESSION_READS, NULL,
                    NULL, asked_own, completion);
    else
        ask_all(completion);
}

/* Enter. Takes what `parsed` holds. */
static int enter(struct completion *completion, struct completion_request *parsed,
                 struct api_error *err)
{
    struct job *job = &completion->job;
    struct replay_entry *entry = completion->replay;
    char name[REPLAY_NAME_SIZE] = "";
    if (entry)
        replay_name(entry, name);
    if (job_take_request(job, parsed, completion->format->id_prefix, name, err))
        return -1;
    if (entry && !job->asked.request.kept && replay_has_worked(job->task.service->replay, entry))
        return reply_lost(err);
    if (job->asked.request.stream && completion_stream_create(completion))
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    if (job_enter_queue(job, err))
        return -1;
    ticket_lock(&job->task.ticket);
    job->shared.entered = true;
    ticket_unlock(&job->task.ticket);
    return 0;
}

static int parse(struct completion *completion, struct completion_request *parsed,
                 struct api_error *err)
{
    struct task *task = &completion->job.task;
    const struct strbuf *body = &task->body;
    struct completion_limits limits = task->service->limits;
    limits.warnings = &task->warnings;
    if (completion->session_header[0])
        limits.session_id = completion->session_header;
    int result = ticket_cancelled(&task->ticket)
                     ? api_error_set(err, API_CANCELLED, NULL, "the request was cancelled")
                     : completion->format->parse(parsed, body->data, body->length, &limits, err);
    strbuf_clear(&task->body);
    /* What has been parsed is in its place, until it is known how much that is. */
    if (result)
        task_drop_body(task);
    return result;
}

/* A drain may have begun while a worker parsed. */
static int check_ready(struct completion *completion, struct api_error *err)
{
    struct api_error not_ready = {0};
    if (service_check_ready(completion->job.task.service, &not_ready) == 0)
        return 0;
    *err = not_ready;
    return -1;
}

static void run_parse(struct task *task)
{
    struct completion *completion = of_task(task);
    struct completion_request parsed;
    struct api_error err = {0};
    bool held = parse(completion, &parsed, &err) == 0;
    if (check_ready(completion, &err) || !held) {
        if (held)
            completion_request_clear(&parsed);
        refuse(completion, &err);
    } else if (enter(completion, &parsed, &err)) {
        refuse(completion, &err);
    } else if (session_job(&completion->job)) {
        to_engine(completion, run_bind);
    } else {
        to_workers(completion, run_prepare, prompt_bytes(&completion->job));
    }
}

static void to_parse(struct completion *completion)
{
    size_t length = completion->job.task.body.length;
    if (completion->format->renders)
        to_renderers(completion, run_parse, length);
    else
        to_workers(completion, run_parse, length);
}

/* Whether another server has the request, or its reply. */
static void on_asked(void *context, struct replay_reply *kept, const struct api_error *err)
{
    struct completion *completion = context;
    if (kept || err)
        completion->replay = NULL;
    completion->kept = kept;
    if (kept)
        done(completion);
    else if (err)
        refuse(completion, err);
    else
        to_parse(completion);
}

void pipeline_start(struct completion *completion)
{
    struct task *task = &completion->job.task;
    ticket_hold(&task->ticket);
    if (completion->replay &&
        replay_ask(task->service->replay, completion->replay, on_asked, completion))
        return;
    /* On an HTTP thread others wait, of whichever API key. */
    enum { AT_ONCE_BYTES = 2048 };
    if (completion->format->renders || task->body.length > AT_ONCE_BYTES)
        to_parse(completion);
    else
        run_parse(task);
}

static void destroy(struct task *task)
{
    struct completion *completion = of_task(task);
    completion_stream_free(completion);
    if (completion->kept)
        replay_reply_release(completion->kept);
    job_clear(&completion->job);
}

struct completion *pipeline_create(struct service *service, const struct completion_format *format,
                                   const char *request_id, bool request_id_given, int owner,
                                   uint64_t tenant, struct replay_entry *replay)
{
    struct completion *completion = task_create(sizeof *completion, service, tenant, destroy);
    if (!completion)
        return NULL;
    completion->format = format;
    completion->replay = replay;
    completion->job.task.ticket.runs_on = replay != NULL;
    job_init(&completion->job, request_id, request_id_given, owner, finish);
    return completion;
}

void pipeline_leave(struct completion *completion)
{
    struct ticket *ticket = &completion->job.task.ticket;
    if (!ticket->runs_on)
        return;
    ticket_lock(ticket);
    bool over = ticket->done;
    completion->left = !over;
    ticket_unlock(ticket);
    if (!over || !completion->stream || !completion->replay)
        return;
    ticket_hold(ticket);
    to_workers(completion, run_rest, 0);
}
