/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the stream of POST /v1/completions as server-sent events: frames of exactly
 * `data: {json}\n\n`, one choice each, and `data: [DONE]\n\n` last. sse_comment is the one
 * exception. */
#ifndef API_SSE_H
#define API_SSE_H

#include "api/completion_reply.h"
#include "api/errors.h"

/* What an event says that belongs to no choice. */
struct sse_stream {
    const struct reply_head *head;
    struct reply_blocks *blocks;
    const struct reply_usage *usage; /* at its end; else NULL */
};

/* What a frame has as `usage`. */
enum sse_usage {
    SSE_USAGE_ABSENT, /* no include_usage: no such field */
    SSE_USAGE_NULL,   /* include_usage: null, until the last frame */
    SSE_USAGE_GIVEN   /* continuous_usage_stats: the usage so far */
};

/* One frame with what is new of one choice; usage is read only for SSE_USAGE_GIVEN. */
void sse_choice_frame(struct strbuf *buf, const struct reply_head *head,
                      const struct reply_choice *choice, enum sse_usage usage_kind,
                      const struct reply_usage *usage);

/* The last frame with include_usage: `choices: []`, usage, timings, and the session if there is
 * one. */
void sse_usage_frame(struct strbuf *buf, const struct reply_head *head,
                     const struct reply_usage *usage, const struct reply_timings *timings,
                     const struct session_card *session);

/* The end; a failure after the status line stands before it: `data: {"error": ...}`. err NULL:
 * there was none. The stream is not asked. */
void sse_end(struct strbuf *buf, const struct sse_stream *stream, const struct api_error *err,
             const char *request_id);

/* What clients ignore. */
void sse_comment(struct strbuf *buf, const struct sse_stream *stream);

#endif
