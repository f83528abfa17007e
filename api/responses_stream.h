/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the stream of POST /v1/responses: events with names and numbers. Each item is told as it
 * grows, then whole; the last event has all of the reply. */
#ifndef API_RESPONSES_STREAM_H
#define API_RESPONSES_STREAM_H

#include "api/responses_reply.h"
#include "api/sse.h"

/* The events of what is new of the choice, whose blocks are not NULL. */
void responses_choice_events(struct strbuf *buf, const struct reply_head *head,
                             const struct reply_choice *choice, enum sse_usage usage_kind,
                             const struct reply_usage *usage);
/* What stands around an event, whose other members come in between. */
void responses_event_begin(struct strbuf *buf, struct reply_blocks *blocks, const char *name);
void responses_event_end(struct strbuf *buf);

/* Of a text or a thought, and of a call, when the stream has begun. */
void responses_part_events(struct strbuf *buf, const struct reply_head *head,
                           struct reply_blocks *blocks, enum reply_part part, const char *text,
                           size_t length);
void responses_call_events(struct strbuf *buf, const struct reply_head *head,
                           struct reply_blocks *blocks, const struct chat_call *call,
                           size_t number);
/* What ends with the text; FINISH_NONE: it was cancelled. */
void responses_finish_events(struct strbuf *buf, const struct reply_head *head,
                             struct reply_blocks *blocks, enum finish_reason reason);
/* While nothing else comes: it is created, and in progress, with the number of the event before,
 * since a kept response is told without it. Clients count events, not comments. */
void responses_pause_events(struct strbuf *buf, const struct sse_stream *stream);
/* The object as it is by now, of what was told; a call is in it once it is whole. */
void responses_progress_encode(struct strbuf *buf, const struct sse_stream *stream);
/* The last event, with all of the reply, once it is kept. */
void responses_end_events(struct strbuf *buf, const struct sse_stream *stream,
                          const struct api_error *err, const char *request_id);

#endif
