/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/completion_stream.h"

#include "api/sse.h"
#include "server/endpoints/job_reply.h"
#include "server/endpoints/replay.h"
#include "server/schedule/scheduler.h"

#include <stdlib.h>
#include <string.h>

int completion_stream_create(struct job *job)
{
    job->stream = calloc(1, sizeof *job->stream);
    return job->stream ? 0 : -1;
}

/* The record is kept, or given up. */
static void clear_record(struct job *job)
{
    struct completion_stream *stream = job->stream;
    strbuf_clear(&stream->record);
    admission_body(&job->service->admission, -stream->reserved);
    stream->reserved = 0;
}

void completion_stream_free(struct job *job)
{
    struct completion_stream *stream = job->stream;
    if (!stream)
        return;
    clear_record(job);
    outbox_clear(&stream->taken);
    strbuf_clear(&stream->frames);
    free(stream->ids);
    free(stream);
    job->stream = NULL;
}

static int collect_ids(struct completion_stream *stream, const struct piece *piece)
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

static void make_frame(struct completion_stream *stream, struct job *job,
                       const struct outbox_record *record, const struct piece *piece)
{
    const struct completion_request *request = &job->request;
    size_t prompt_index = (size_t)record->choice / (size_t)request->best_of;
    const struct job_prompt *prompt = &job->prompts[prompt_index];
    bool echo = record->prompt && request->echo;
    struct reply_logprobs logprobs = {
        .tokenizer = job->service->tokenizer,
        .tokens = echo ? prompt->logprobs : piece->tokens,
        .num_tokens = echo ? job_prompt_own(prompt) : piece->num_tokens,
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
            choice.prompt_token_ids = prompt->ids + prompt->context;
            choice.num_prompt_token_ids = job_prompt_own(prompt);
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

static void make_last_frames(struct completion_stream *stream, struct job *job)
{
    struct reply_head head = job_reply_head(job);
    struct reply_usage usage = job_reply_usage(job, stream->generated);
    struct reply_timings timings = job_reply_timings(job);
    struct session_card session;
    if (job->error.code != API_OK)
        sse_error_frame(&stream->frames, &job->error);
    else if (job->request.include_usage)
        sse_usage_frame(&stream->frames, &head, &usage, &timings, job_reply_session(job, &session));
    sse_done(&stream->frames);
    stream->ended = true;
}

/* Adds the frames at hand to the record. */
static void record_frames(struct job *job)
{
    enum { STEP_BYTES = 64 * 1024 };
    struct completion_stream *stream = job->stream;
    if (stream->lost)
        return;
    int64_t lacking = (int64_t)(stream->record.length + stream->frames.length) - stream->reserved;
    if (lacking > 0)
        lacking = (lacking + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
    if (lacking > 0 && admission_body(&job->service->admission, lacking))
        stream->reserved += lacking;
    else if (lacking > 0)
        stream->lost = true;
    if (!stream->lost)
        strbuf_append(&stream->record, stream->frames.data, stream->frames.length);
    stream->lost |= stream->record.failed || stream->frames.failed;
    if (stream->lost)
        clear_record(job);
}

static void end_record(struct job *job)
{
    struct completion_stream *stream = job->stream;
    struct replay *replay = job->service->replay;
    bool well = job->error.code == API_OK || job->error.code == API_CANCELLED;
    if (well && !stream->lost)
        replay_keep(replay, job->replay, 200, true, stream->record.data, stream->record.length);
    else
        replay_drop(replay, job->replay);
    job->replay = NULL;
    clear_record(job);
}

bool completion_stream_take(struct job *job)
{
    struct completion_stream *stream = job->stream;
    if (stream->made < stream->taken.length)
        return true;
    bool empty = job->outbox.length == 0, full = outbox_full(&job->outbox);
    bool done = job->ticket.done;
    if (empty && !done)
        return false;
    stream->last = empty;
    /* The two buffers change places: nothing is copied, and the engine never waits for JSON. */
    struct outbox emptied = stream->taken;
    emptied.length = 0;
    stream->taken = job->outbox;
    job->outbox = emptied;
    stream->made = 0;
    /* Under the lock: while the job is not done the scheduler is there. */
    if (full && !done)
        scheduler_poke(job->service->scheduler);
    return true;
}

void completion_stream_make(struct job *job)
{
    /* At once, lest other connections wait for these. */
    enum { FRAMES_BYTES = 64 * 1024 };
    struct completion_stream *stream = job->stream;
    struct outbox_record record;
    struct piece piece;
    strbuf_reset(&stream->frames);
    stream->sent = 0;
    while (stream->frames.length < FRAMES_BYTES &&
           outbox_next(&stream->taken, &stream->made, &record, &piece))
        make_frame(stream, job, &record, &piece);
    if (stream->last)
        make_last_frames(stream, job);
    if (job->replay)
        record_frames(job);
    if (job->replay && stream->last)
        end_record(job);
}

void completion_stream_run_rest(struct work *work)
{
    struct job *job = job_of_work(work);
    while (!job->stream->ended) {
        ticket_lock(&job->ticket);
        completion_stream_take(job);
        ticket_unlock(&job->ticket);
        completion_stream_make(job);
    }
    ticket_release(&job->ticket);
}

void completion_stream_leave(struct job *job)
{
    if (!job->ticket.runs_on || job->stream->ended)
        return;
    ticket_lock(&job->ticket);
    bool done = job->ticket.done;
    job->left = !done;
    ticket_unlock(&job->ticket);
    if (!done || !job->replay)
        return;
    ticket_hold(&job->ticket);
    job_to_workers(job, completion_stream_run_rest);
}
