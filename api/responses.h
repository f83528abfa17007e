/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the bodies of POST /v1/responses and /v1/responses/input_tokens, of OpenAI's Responses API:
 * each becomes the body of a chat that says the same, and is read as that (chat.h). */
#ifndef API_RESPONSES_H
#define API_RESPONSES_H

#include "api/completion.h"
#include "api/tokenizer.h"

/* Like completion_parse. max_tokens is what fits at most. request->echoed is what its replies say
 * of it. */
int responses_parse(struct completion_request *request, const char *body, size_t length,
                    const struct completion_limits *limits, struct api_error *err);

/* The text whose tokens are counted; it is rendered, unless it goes on from a kept response. */
int responses_count_parse(struct tokenize_request *request, const char *body, size_t length,
                          const struct completion_limits *limits, struct api_error *err);
/* Renders it behind the turns of that. */
int responses_count_behind(struct tokenize_request *request, const char *turns, size_t length,
                           const struct completion_limits *limits, struct api_error *err);

#endif
