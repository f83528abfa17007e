/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the bodies of POST /v1/messages and /v1/messages/count_tokens, of Anthropic's API: each
 * becomes the body of a chat that says the same, and is read as that (chat.h). */
#ifndef API_MESSAGES_H
#define API_MESSAGES_H

#include "api/completion.h"
#include "api/tokenizer.h"

/* Like completion_parse. max_tokens is what fits at most. */
int messages_parse(struct completion_request *request, const char *body, size_t length,
                   const struct completion_limits *limits, struct api_error *err);

/* The text whose tokens are counted; it is rendered. */
int messages_count_parse(struct tokenize_request *request, const char *body, size_t length,
                         const struct completion_limits *limits, struct api_error *err);

#endif
