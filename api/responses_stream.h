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
/* While nothing else comes: it is created, and in progress. Clients count events, not comments. */
void responses_pause_events(struct strbuf *buf, const struct sse_stream *stream);
/* The last event, with all of the reply, once it is kept. */
void responses_end_events(struct strbuf *buf, const struct sse_stream *stream,
                          const struct api_error *err, const char *request_id);

#endif
