/* SPDX-License-Identifier: Apache-2.0 */
/* Writes replies of POST /v1/messages: as completion_reply.h and sse.h, in the shape of Anthropic's
 * API. Its streams have named events. */
#ifndef API_MESSAGES_REPLY_H
#define API_MESSAGES_REPLY_H

#include "api/errors.h"
#include "api/sse.h"

#define MESSAGES_ID_PREFIX "msg_"

/* There is one choice. */
void messages_reply_encode(struct strbuf *buf, const struct reply_head *head,
                           const struct reply_choice *choices, size_t num_choices,
                           const struct reply_usage *usage, const struct reply_timings *timings,
                           const struct session_card *session);

/* The events of what is new of the choice, whose blocks are not NULL; the first and the last have
 * those around them. */
void messages_choice_events(struct strbuf *buf, const struct reply_head *head,
                            const struct reply_choice *choice, enum sse_usage usage_kind,
                            const struct reply_usage *usage);
void messages_ping_event(struct strbuf *buf, const struct sse_stream *stream);
/* Of a stream that fails after its status line; err NULL: it ends well, and nothing is left to say.
 */
void messages_end_events(struct strbuf *buf, const struct sse_stream *stream,
                         const struct api_error *err, const char *request_id);

/* {"type": "error", "error": {"type", "message"}, "request_id"} */
void messages_error_encode(struct strbuf *buf, const struct api_error *err, const char *request_id);

/* {"input_tokens"}, and warnings. */
void messages_count_encode(struct strbuf *buf, size_t count, const struct reply_warnings *warnings);

#endif
