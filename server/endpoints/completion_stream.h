/* SPDX-License-Identifier: Apache-2.0 */
/* The stream of a completion: makes frames of what its job has put out. With an Idempotency-Key it
 * also records them, for a client that repeats the request.
 *
 * It belongs to the HTTP thread while the client is connected. If the client leaves before the end,
 * a worker completes the record once the job is done. */
#ifndef SERVER_ENDPOINTS_COMPLETION_STREAM_H
#define SERVER_ENDPOINTS_COMPLETION_STREAM_H

#include "server/endpoints/chat_choice.h"
#include "server/endpoints/completion.h"

struct completion_stream {
    struct strbuf frames; /* to be sent */
    size_t sent;          /* bytes of frames */
    bool ended;           /* the last frame has been made */

    struct outbox taken; /* what was taken from the job's outbox */
    size_t made;         /* bytes of that which are frames by now */
    bool last;           /* nothing more will come */
    int32_t *ids;        /* [ids_capacity]: scratch */
    size_t ids_capacity;
    int64_t generated;
    size_t finished;            /* choices whose last frame has been made */
    struct chat_choice *chats;  /* [num_choices] of the job, of a chat; else NULL */
    struct reply_blocks blocks; /* where the format has them */
    struct strbuf record;       /* with completion->replay: all frames so far */
    int64_t reserved;           /* bytes for it, of the budget for bodies and replies */
    int64_t kept;               /* the same for what blocks hold */
    bool lost;                  /* it was too long to be recorded */
};

/* Makes completion->stream; -1: out of memory. */
int completion_stream_create(struct completion *completion);
void completion_stream_free(struct completion *completion);

/* With the ticket's lock held: takes what the job has put out, unless some of what was taken before
 * is left. False: there is nothing yet. */
bool completion_stream_take(struct completion *completion);
/* Without the lock: makes frames of some of that, and records them. */
void completion_stream_make(struct completion *completion);

/* For another reader of what the job puts out, which has a stream of its own: makes frames of some
 * of stream->taken, and the last ones once `last` is set. */
void completion_stream_tell(struct completion_stream *stream, struct completion *completion);
void completion_stream_clear(struct completion_stream *stream, struct completion *completion);
/* Of a kept response: the piece that was put out with this number. Of whoever works on the job; it
 * borrows. */
void completion_stream_part(const struct job *job, size_t number, struct outbox_record *record,
                            struct piece *piece);

/* Makes what is said while nothing else comes, which also shows whether the client is there. The
 * record is without comments. */
void completion_stream_pause(struct completion *completion);
/* Of a kept response whose texts have ended: how its stream tells it, whoever reads that, goes to
 * job->chat. -1: out of memory. */
int completion_stream_note(struct completion *completion);
/* After the job is done and the client has left before the last frame: completes the record. */
void completion_stream_complete(struct completion *completion);

#endif
