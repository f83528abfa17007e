/* SPDX-License-Identifier: Apache-2.0 */
/* Writes replies of POST /v1/chat/completions: as completion_reply.h and sse.h, in the chat API's
 * shape. */
#ifndef API_CHAT_REPLY_H
#define API_CHAT_REPLY_H

#include "api/sse.h"

void chat_reply_encode(struct strbuf *buf, const struct reply_head *head,
                       const struct reply_choice *choices, size_t num_choices,
                       const struct reply_usage *usage, const struct reply_timings *timings,
                       const struct session_card *session);

/* A choice's first frame has one before it that only says the role. */
void chat_choice_frame(struct strbuf *buf, const struct reply_head *head,
                       const struct reply_choice *choice, enum sse_usage usage_kind,
                       const struct reply_usage *usage);
void chat_usage_frame(struct strbuf *buf, const struct reply_head *head,
                      const struct reply_usage *usage, const struct reply_timings *timings,
                      const struct session_card *session);

/* A token's entry in `logprobs`. */
void chat_reply_logprob_encode(struct strbuf *buf, const struct reply_logprobs *logprobs,
                               const struct reply_token *token);

#endif
