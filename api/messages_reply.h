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

/* The events of what is new of the choice, whose blocks are not NULL; the first has what stands
 * before it, the last how it ended. */
void messages_choice_events(struct strbuf *buf, const struct reply_head *head,
                            const struct reply_choice *choice, enum sse_usage usage_kind,
                            const struct reply_usage *usage);
/* While nothing else comes: a ping, behind the start of the message, of which it is not known yet
 * what was read from the cache. */
void messages_pause_events(struct strbuf *buf, const struct sse_stream *stream);
/* The last event; err NULL: the stream has not failed after its status line. */
void messages_end_events(struct strbuf *buf, const struct sse_stream *stream,
                         const struct api_error *err, const char *request_id);

/* {"type": "error", "error": {"type", "message"}, "request_id"} */
void messages_error_encode(struct strbuf *buf, const struct api_error *err, const char *request_id);

/* {"input_tokens"}, and warnings. */
void messages_count_encode(struct strbuf *buf, size_t count, const struct reply_warnings *warnings);

#endif
