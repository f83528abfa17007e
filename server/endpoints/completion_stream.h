/* SPDX-License-Identifier: Apache-2.0 */
/* The stream of a completion: frames made of what its job has put out and, with an Idempotency-Key,
 * the record of all of them, for whoever repeats the request.
 *
 * The HTTP thread's while the client is there; when that leaves before the end, a worker completes
 * the record once the job is done. */
#ifndef SERVER_ENDPOINTS_COMPLETION_STREAM_H
#define SERVER_ENDPOINTS_COMPLETION_STREAM_H

#include "server/endpoints/completion.h"

struct completion_stream {
    struct strbuf frames; /* to be sent */
    size_t sent;          /* bytes of frames */
    bool ended;           /* the last frame has been made */

    struct outbox taken; /* from the job */
    size_t made;         /* bytes of it that are frames by now */
    bool last;           /* nothing more comes */
    int32_t *ids;        /* [ids_capacity]: scratch */
    size_t ids_capacity;
    int64_t generated;
    struct strbuf record; /* with completion->replay: all frames so far */
    int64_t reserved;     /* bytes of it, of the budget for bodies and replies */
    bool lost;            /* it was too long to be recorded */
};

/* completion->stream; -1: out of memory. */
int completion_stream_create(struct completion *completion);
void completion_stream_free(struct completion *completion);

/* With the ticket's lock held: takes what the job has put out, unless something is left of what was
 * taken before. False: nothing yet. */
bool completion_stream_take(struct completion *completion);
/* Without it: makes frames of some of that, and records them. */
void completion_stream_make(struct completion *completion);

/* Once the job is done, and the client has left before the last frame: the record is completed. */
void completion_stream_complete(struct completion *completion);

#endif
