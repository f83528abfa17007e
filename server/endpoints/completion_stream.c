/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/completion_stream.h"

#include "server/endpoints/job_reply.h"
#include "server/endpoints/replay.h"
#include "server/schedule/scheduler.h"

#include <stdlib.h>
#include <string.h>

int completion_stream_create(struct completion *completion)
{
    const struct job *job = &completion->job;
    completion->stream = calloc(1, sizeof *completion->stream);
    if (!completion->stream || !job->asked.request.chat.text)
        return completion->stream ? 0 : -1;
    completion->stream->chats = calloc(job->run.num_choices, sizeof *completion->stream->chats);
    return completion->stream->chats ? 0 : -1;
}

/* The record is kept, or given up. */
static void clear_record(struct completion *completion)
{
    struct job *job = &completion->job;
    struct completion_stream *stream = completion->stream;
    strbuf_clear(&stream->record);
    admission_body(&job->task.service->admission, -stream->reserved);
    stream->reserved = 0;
}

void completion_stream_free(struct completion *completion)
{
    struct completion_stream *stream = completion->stream;
    if (!stream)
        return;
    clear_record(completion);
    completion_stream_clear(stream, completion);
    free(stream);
    completion->stream = NULL;
}

void completion_stream_clear(struct completion_stream *stream, struct completion *completion)
{
    admission_body(&completion->job.task.service->admission, -stream->kept);
    reply_blocks_clear(&stream->blocks);
    outbox_clear(&stream->taken);
    strbuf_clear(&stream->frames);
    for (size_t i = 0; stream->chats && i < completion->job.run.num_choices; i++)
        chat_choice_clear(&stream->chats[i]);
    free(stream->chats);
    free(stream->ids);
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

static int64_t reasoning_tokens(const struct completion_stream *stream, const struct job *job)
{
    int64_t count = 0;
    for (size_t i = 0; stream->chats && i < job->run.num_choices; i++)
        count += stream->chats[i].reasoning_tokens;
    return count;
}

/* What of a chat's piece is certain. False: all of its text is held back, and there is nothing else
 * to tell. */
static bool take_chat(struct completion_stream *stream, const struct job *job,
                      const struct outbox_record *record, const struct piece *piece,
                      struct reply_choice *choice)
{
    const struct completion_request *request = &job->asked.request;
    struct chat_choice *chat = &stream->chats[record->choice];
    if (chat_choice_take(chat, request->chat_rules, piece, record->finish != FINISH_NONE)) {
        stream->frames.failed = true;
        return false;
    }
    chat_choice_fill(chat, choice);
    return chat_choice_new(chat) || piece->text.length == 0 || choice->begins ||
           choice->finish_reason != FINISH_NONE || request->logprobs >= 0 ||
           request->return_token_ids || request->continuous_usage_stats;
}

static void make_frame(struct completion_stream *stream, struct completion *completion,
                       const struct outbox_record *record, const struct piece *piece)
{
    struct job *job = &completion->job;
    const struct completion_request *request = &job->asked.request;
    size_t prompt_index = (size_t)record->choice / (size_t)request->best_of;
    const struct job_prompt *prompt = &job->prepared.prompts[prompt_index];
    bool echo = record->prompt && request->echo;
    struct reply_logprobs logprobs = {
        .tokenizer = job->task.service->tokenizer,
        .tokens = echo ? prompt->logprobs : piece->tokens,
        .num_tokens = echo ? job_prompt_own(prompt) : piece->num_tokens,
        .as_token_ids = request->return_tokens_as_token_ids,
        .listed = request->num_logprob_token_ids > 0,
    };
    struct reply_choice choice = {.index = record->choice,
                                  .text = echo ? prompt->text : piece->text.data,
                                  .text_length = echo ? prompt->text_length : piece->text.length,
                                  .logprobs = request->logprobs >= 0 ? &logprobs : NULL,
                                  .begins = record->prompt,
                                  .blocks = &stream->blocks};
    struct reply_prompt_logprobs prompt_logprobs = job_reply_prompt_logprobs(job, prompt);
    if (record->prompt && request->prompt_logprobs >= 0)
        choice.prompt_logprobs = &prompt_logprobs;
    job_reply_ending(&choice, job, record->finish, record->stop_index, record->stop_token);
    struct reply_usage before =
        job_reply_usage(job, stream->generated, reasoning_tokens(stream, job));
    choice.before = &before;
    stream->generated = record->generated;
    stream->finished += record->finish != FINISH_NONE;
    if (stream->chats && !take_chat(stream, job, record, piece, &choice))
        return;
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
    bool last = stream->finished == job->run.num_choices && !request->include_usage;
    if (!last || stream->blocks.bare)
        head.warnings = NULL;
    struct reply_usage usage =
        job_reply_usage(job, record->generated, reasoning_tokens(stream, job));
    completion->format->choice_frame(&stream->frames, &head, &choice, kind, &usage);
}

static void make_last_frames(struct completion_stream *stream, struct completion *completion)
{
    struct job *job = &completion->job;
    struct reply_head head = job_reply_head(job);
    head.ended = job->run.texts_ended;
    if (stream->blocks.bare)
        head.warnings = NULL;
    /* Not those of the last frame: of a text cut short, tokens may have told nothing. */
    struct reply_usage usage =
        job_reply_usage(job, job->run.generated, reasoning_tokens(stream, job));
    struct reply_timings timings = job_reply_timings(job);
    struct session_card session;
    bool failed = job->task.error.code != API_OK;
    if (!failed && job->asked.request.include_usage)
        completion->format->usage_frame(&stream->frames, &head, &usage, &timings,
                                        job_reply_session(job, &session));
    completion->format->end(&stream->frames, &(struct sse_stream){&head, &stream->blocks, &usage},
                            failed ? &job->task.error : NULL, job->asked.request_id);
    stream->ended = true;
}

/* Reserves so many bytes of the budget for bodies and replies, in steps. False: it has no more. */
static bool reserve(struct completion *completion, int64_t *reserved, size_t bytes)
{
    enum { STEP_BYTES = 64 * 1024 };
    int64_t lacking = (int64_t)bytes - *reserved;
    if (lacking <= 0)
        return true;
    lacking = (lacking + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
    if (!admission_body(&completion->job.task.service->admission, lacking))
        return false;
    *reserved += lacking;
    return true;
}

/* Adds the frames at hand to the record. */
static void record_frames(struct completion *completion)
{
    struct completion_stream *stream = completion->stream;
    if (stream->lost)
        return;
    stream->lost =
        !reserve(completion, &stream->reserved, stream->record.length + stream->frames.length);
    if (!stream->lost)
        strbuf_append(&stream->record, stream->frames.data, stream->frames.length);
    stream->lost |= stream->record.failed || stream->frames.failed;
    if (stream->lost)
        clear_record(completion);
}

static void end_record(struct completion *completion)
{
    struct job *job = &completion->job;
    struct completion_stream *stream = completion->stream;
    struct replay *replay = job->task.service->replay;
    bool well = job->task.error.code == API_OK || job->task.error.code == API_CANCELLED;
    if (well && !stream->lost)
        replay_keep(replay, completion->replay, 200, true, stream->record.data,
                    stream->record.length, NULL, NULL);
    else
        replay_drop(replay, completion->replay, NULL, NULL);
    completion->replay = NULL;
    clear_record(completion);
}

bool completion_stream_take(struct completion *completion)
{
    struct job *job = &completion->job;
    struct completion_stream *stream = completion->stream;
    if (stream->made < stream->taken.length)
        return true;
    bool empty = job->shared.outbox.length == 0, full = outbox_full(&job->shared.outbox);
    bool done = job->task.ticket.done;
    if (empty && !done)
        return false;
    stream->last = empty;
    /* The two buffers change places: nothing is copied, and the engine never waits for JSON. */
    struct outbox emptied = stream->taken;
    emptied.length = 0;
    stream->taken = job->shared.outbox;
    job->shared.outbox = emptied;
    stream->made = 0;
    /* Under the lock: while the job is not done the scheduler is there. */
    if (full && !done)
        scheduler_poke(job->task.service->scheduler);
    return true;
}

void completion_stream_tell(struct completion_stream *stream, struct completion *completion)
{
    /* At once, lest other connections wait for these. */
    enum { FRAMES_BYTES = 64 * 1024 };
    struct outbox_record record;
    struct piece piece;
    strbuf_reset(&stream->frames);
    stream->sent = 0;
    while (stream->frames.length < FRAMES_BYTES &&
           outbox_next(&stream->taken, &stream->made, &record, &piece))
        make_frame(stream, completion, &record, &piece);
    if (!reserve(completion, &stream->kept, reply_blocks_bytes(&stream->blocks)))
        stream->frames.failed = true;
    if (stream->last)
        make_last_frames(stream, completion);
}

void completion_stream_make(struct completion *completion)
{
    completion_stream_tell(completion->stream, completion);
    if (completion->replay)
        record_frames(completion);
    if (completion->replay && completion->stream->last)
        end_record(completion);
}

void completion_stream_pause(struct completion *completion)
{
    struct completion_stream *stream = completion->stream;
    struct reply_head head = job_reply_head(&completion->job);
    struct reply_usage usage = job_reply_usage(&completion->job, 0, 0);
    head.warnings = NULL;
    usage.cache_miss_reason = NULL;
    usage.cached_tokens = 0;
    strbuf_reset(&stream->frames);
    stream->sent = 0;
    completion->format->pause(&stream->frames,
                              &(struct sse_stream){&head, &stream->blocks, &usage});
    if (completion->replay && completion->format->begins)
        record_frames(completion);
}

void completion_stream_part(const struct job *job, size_t number, struct outbox_record *record,
                            struct piece *piece)
{
    const struct job_choice *choice = &job->run.choices[0];
    const struct piece *put = &choice->put;
    const struct piece_mark *to = &choice->marks.items[number];
    const struct piece_mark from = number > 0 ? to[-1] : (struct piece_mark){0};
    bool last = number + 1 == choice->marks.count;
    *record = (struct outbox_record){.finish = last ? choice->finish : FINISH_NONE,
                                     .stop_index = choice->stop_index,
                                     .stop_token = choice->stop_token};
    *piece = (struct piece){.text = {.data = put->text.data, .length = to->text - from.text},
                            .num_tokens = to->tokens - from.tokens};
    if (piece->text.length > 0)
        piece->text.data += from.text;
    if (piece->num_tokens > 0)
        piece->tokens = put->tokens + from.tokens;
}

int completion_stream_note(struct completion *completion)
{
    struct job *job = &completion->job;
    size_t count = job->run.choices[0].marks.count;
    struct outbox_record record;
    struct piece piece;
    struct completion_stream again = {.blocks = {.tells = true},
                                      .chats = calloc(1, sizeof *again.chats)};
    bool failed = !again.chats;
    for (size_t i = 0; i < count && !failed; i++) {
        completion_stream_part(job, i, &record, &piece);
        strbuf_reset(&again.frames);
        make_frame(&again, completion, &record, &piece);
        failed = again.frames.failed;
    }
    if (!failed)
        make_last_frames(&again, completion);
    failed |= again.frames.failed;
    if (!failed) {
        job->chat.told = again.blocks.told;
        job->chat.events = again.blocks.events;
        again.blocks.told = (struct strbuf){0};
    }
    completion_stream_clear(&again, completion);
    return failed ? -1 : 0;
}

void completion_stream_complete(struct completion *completion)
{
    struct ticket *ticket = &completion->job.task.ticket;
    while (!completion->stream->ended) {
        ticket_lock(ticket);
        completion_stream_take(completion);
        ticket_unlock(ticket);
        completion_stream_make(completion);
    }
}
