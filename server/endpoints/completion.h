/* SPDX-License-Identifier: Apache-2.0 */
/* A completion request: the job (server/schedule/job.h) and its reply. An endpoint that generates
 * text is a struct completion_format; pipeline.h moves a completion from thread to thread. */
#ifndef SERVER_ENDPOINTS_COMPLETION_H
#define SERVER_ENDPOINTS_COMPLETION_H

#include "api/sse.h"
#include "server/schedule/job.h"

struct completion_stream;
struct replay_entry;
struct replay_reply;

/* How an endpoint reads its requests and writes its replies: functions of api/ (completion.h,
 * completion_reply.h, sse.h say what each does). */
struct completion_format {
    const char *id_prefix; /* of the ids of its replies: "cmpl-" */
    bool begins;           /* pause begins the stream, where its first token is late */
    bool keeps;            /* its replies may be kept responses */
    bool renders;          /* parse renders a chat template: only renderers do that */
    int (*parse)(struct completion_request *request, const char *body, size_t length,
                 const struct completion_limits *limits, struct api_error *err);
    void (*encode)(struct strbuf *buf, const struct reply_head *head,
                   const struct reply_choice *choices, size_t num_choices,
                   const struct reply_usage *usage, const struct reply_timings *timings,
                   const struct session_card *session);
    void (*choice_frame)(struct strbuf *buf, const struct reply_head *head,
                         const struct reply_choice *choice, enum sse_usage usage_kind,
                         const struct reply_usage *usage);
    void (*usage_frame)(struct strbuf *buf, const struct reply_head *head,
                        const struct reply_usage *usage, const struct reply_timings *timings,
                        const struct session_card *session); /* NULL: include_usage is refused */
    /* What a stream says after 8 s of silence, so that clients and proxies know that it goes on;
     * with `begins` also a second after the request was accepted. What clients ignore, and what
     * begins the stream: its blocks note that, and later frames do not repeat it. */
    void (*pause)(struct strbuf *buf, const struct sse_stream *stream);
    /* The end of a stream, with the error that ended it; NULL: it has gone well. */
    void (*end)(struct strbuf *buf, const struct sse_stream *stream, const struct api_error *err,
                const char *request_id);
    bool tells_length; /* a stream whose prompt is too long has the error as its end */
    api_error_encoder *encode_error; /* its route's */
};

struct completion {
    struct job job;
    const struct completion_format *format;
    char session_header[SESSION_ID_SIZE]; /* X-Session-Id; "": there is none */
    /* The HTTP thread's while the client is connected; then of the thread that works on the job. */
    struct completion_stream *stream; /* NULL: none is asked for */
    struct replay_entry *replay;      /* where the reply is to be kept; NULL: nowhere */
    struct replay_reply *kept;        /* what another server has answered; NULL: nothing */
    bool made;                        /* by an earlier request with its key: it is told again */
    struct store_reply claim;         /* with it and a session: what its turn is to say */
    bool left; /* under the ticket's lock: the client has left; its stream is still recorded */
};

static inline struct completion *completion_of(struct job *job)
{
    return (struct completion *)job;
}

#endif
