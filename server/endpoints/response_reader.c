/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/response_reader.h"

#include "api/responses_replay.h"
#include "api/responses_stream.h"
#include "server/endpoints/job_reply.h"
#include "server/endpoints/stream_reply.h"
#include "server/schedule/scheduler.h"

#include <stdlib.h>

static struct response_reader *of_request(const struct http_request *request)
{
    return (struct response_reader *)request->ticket;
}

/* ---- the engine thread ---- */

/* How far the response is. Between both its pieces are another thread's. */
enum progress { PUTS_OUT, ENDS, IS_DONE };

static enum progress progress_of(struct job *job)
{
    struct ticket *ticket = &job->task.ticket;
    ticket_lock(ticket);
    bool done = ticket->done;
    ticket_unlock(ticket);
    return done ? IS_DONE : job->run.texts_ended > 0 ? ENDS : PUTS_OUT;
}

/* Pieces that it has put out. One without a stream puts out all at once, at its end. */
static size_t pieces_of(const struct job *job, enum progress progress)
{
    const struct job_choice *choice = &job->run.choices[0];
    if (job->asked.request.stream)
        return choice->marks.count;
    return progress == IS_DONE && choice->piece.num_tokens > 0;
}

static int copy_piece(const struct job *job, size_t number, struct outbox *out)
{
    const struct job_choice *choice = &job->run.choices[0];
    struct outbox_record record = {.finish = choice->finish,
                                   .stop_index = choice->stop_index,
                                   .stop_token = choice->stop_token};
    struct piece piece;
    if (!job->asked.request.stream)
        return outbox_put(out, &record, &choice->piece);
    completion_stream_part(job, number, &record, &piece);
    return outbox_put(out, &record, &piece);
}

/* Copies what is new, `most` pieces; of a stream no more than its client takes. False: there is
 * nothing. With the lock of the reader's ticket held, once it is shared. */
static bool copy_new(struct response_reader *reader, enum progress progress, bool all)
{
    struct job *job = &reader->source->job;
    size_t count = progress == ENDS ? reader->put : pieces_of(job, progress), before = reader->put;
    while (reader->put < count && !reader->lost && (all || !outbox_full(&reader->copied)))
        reader->lost = copy_piece(job, reader->put++, &reader->copied) != 0;
    reader->last = !reader->lost && progress == IS_DONE && reader->put == count;
    return reader->put > before || reader->last || reader->lost;
}

static void release(struct response_reader *reader)
{
    struct ticket *ticket = &reader->source->job.task.ticket;
    if (reader->joined && ticket_leave(ticket))
        scheduler_poke(reader->task.task.service->scheduler);
    ticket_release(ticket);
    reader->source = NULL;
}

/* What the copy takes and what is made of it; the blocks of a stream count as they grow. */
static size_t copy_bytes(const struct job *job, bool all)
{
    enum { STREAM_BYTES = 512 * 1024, COPIES = 4 };
    const struct piece *put = &job->run.choices[0].put;
    return all ? piece_bytes(put) + COPIES * put->text.length : STREAM_BYTES;
}

bool response_reader_find(struct response_reader *reader, int owner)
{
    struct service *service = reader->task.task.service;
    struct ticket *ticket = registry_find(&service->registry, reader->task.id, owner);
    reader->source = ticket ? completion_of((struct job *)ticket) : NULL;
    return ticket;
}

bool response_reader_open(struct response_reader *reader, int owner, bool streams)
{
    if (!response_reader_find(reader, owner))
        return false;
    struct job *job = &reader->source->job;
    struct ticket *ticket = &job->task.ticket;
    enum progress progress = progress_of(job);
    if (progress != PUTS_OUT) {
        release(reader);
        return false;
    }
    if (session_task_reserve(&reader->task, copy_bytes(job, !streams)))
        return true;
    reader->stream.blocks.bare = true;
    reader->stream.chats = calloc(1, sizeof *reader->stream.chats);
    reader->joined = streams;
    if (streams)
        ticket_join(ticket);
    else
        copy_new(reader, progress, true);
    if (!reader->stream.chats || reader->lost)
        session_task_out_of_memory(&reader->task);
    return true;
}

/* The reader waits: until there is something for it. Where the server ends, so does the source. */
static void run_look(struct task *task)
{
    struct response_reader *reader = (struct response_reader *)task;
    struct ticket *ticket = &task->ticket;
    enum progress progress = progress_of(&reader->source->job);
    ticket_lock(ticket);
    bool some = copy_new(reader, progress, false) || ticket_gone(ticket);
    reader->looking = !some;
    if (some)
        ticket_wake(ticket);
    ticket_unlock(ticket);
    if (some)
        ticket_release(ticket);
    else
        scheduler_park(task->service->scheduler, &task->work);
}

/* ---- the reply ---- */

void response_reader_encode(struct response_reader *reader)
{
    struct completion_stream *stream = &reader->stream;
    struct strbuf *reply = &reader->task.task.reply;
    struct reply_head head = job_reply_head(&reader->source->job);
    head.warnings = NULL;
    stream->taken = reader->copied;
    reader->copied = (struct outbox){0};
    while (stream->made < stream->taken.length && !stream->frames.failed)
        completion_stream_tell(stream, reader->source);
    responses_progress_encode(reply, &(struct sse_stream){&head, &stream->blocks, NULL});
    reply->failed |= stream->frames.failed;
}

/* With the lock of the ticket held. */
static bool take(struct response_reader *reader)
{
    struct completion_stream *stream = &reader->stream;
    if (stream->made < stream->taken.length)
        return true;
    bool empty = reader->copied.length == 0;
    if (reader->lost || (empty && !reader->last))
        return false;
    stream->last = empty;
    struct outbox emptied = stream->taken;
    emptied.length = 0;
    stream->taken = reader->copied;
    reader->copied = emptied;
    stream->made = 0;
    return true;
}

/* Makes events of what was taken, without those that the client has. */
static void make_events(struct response_reader *reader)
{
    struct completion_stream *stream = &reader->stream;
    int64_t before = stream->blocks.events;
    completion_stream_tell(stream, reader->source);
    responses_drop_events(&stream->frames, 0, reader->after + 1 - before);
}

/* Without the usage, which other threads may be writing: no event of it tells that. */
static void put_sign(struct response_reader *reader)
{
    struct completion_stream *stream = &reader->stream;
    struct reply_head head = job_reply_head(&reader->source->job);
    head.warnings = NULL;
    strbuf_reset(&stream->frames);
    stream->sent = 0;
    responses_pause_events(&stream->frames, &(struct sse_stream){&head, &stream->blocks, NULL});
}

/* What has begun for the client says that it is in progress. */
static void make_sign(struct response_reader *reader)
{
    struct completion_stream *stream = &reader->stream;
    bool begun = stream->blocks.begun;
    put_sign(reader);
    if (!begun)
        responses_drop_events(&stream->frames, 0, reader->after + 1);
    if (stream->frames.length == 0 && !stream->frames.failed)
        put_sign(reader);
}

/* With the lock of the ticket held, and before the connection waits: at the end of the server
 * nobody may look any more. */
static void look(struct response_reader *reader)
{
    struct task *task = &reader->task.task;
    ticket_hold(&task->ticket);
    reader->looking = scheduler_post(task->service->scheduler, task_work(task, run_look));
    reader->lost = !reader->looking;
    if (reader->lost)
        ticket_release(&task->ticket);
}

static bool refill(struct http_request *request)
{
    struct response_reader *reader = of_request(request);
    struct task *task = &reader->task.task;
    ticket_lock(&task->ticket);
    bool some = take(reader);
    bool probed = !some && ticket_probed(&task->ticket);
    if (!some && !reader->lost && !reader->looking)
        look(reader);
    reader->stream.frames.failed |= reader->lost;
    if (!some && !probed && !reader->lost)
        http_wait(request);
    bool lost = reader->lost;
    ticket_unlock(&task->ticket);
    if (some)
        make_events(reader);
    else if (probed && !lost)
        make_sign(reader);
    return some || probed || lost;
}

static ssize_t read_stream(void *context, uint64_t position, char *buffer, size_t size)
{
    (void)position;
    struct http_request *request = context;
    return stream_reply_read(request, &of_request(request)->stream, refill, buffer, size);
}

void response_reader_answer(struct http_request *request)
{
    stream_reply_begin(request, true, read_stream);
}

void response_reader_clear(struct response_reader *reader)
{
    if (!reader->source)
        return;
    completion_stream_clear(&reader->stream, reader->source);
    outbox_clear(&reader->copied);
    release(reader);
}
