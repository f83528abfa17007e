/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the body of POST /v1/completions into a validated struct.
 *
 * completion_parse checks everything that needs no tokenizer: parameter_table.c has the fields.
 * completion_check_length checks what needs the prompt's tokens. */
#ifndef API_COMPLETION_H
#define API_COMPLETION_H

#include "api/completion_request.h"
#include "api/errors.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Parses body [length] and overwrites *request. On 0 the caller frees its members with
 * completion_request_clear. On -1 *err is set, and there is nothing to free. */
int completion_parse(struct completion_request *request, const char *body, size_t length,
                     const struct completion_limits *limits, struct api_error *err);
/* The same of the fields themselves, which the chat API makes of its own. */
int completion_parse_fields(struct completion_request *request, const json_t *fields,
                            const struct completion_limits *limits, struct api_error *err);
/* Puts limits->session_id among the fields that were read, where they name no session. */
int completion_take_session(json_t *fields, const struct completion_limits *limits,
                            struct api_error *err);
void completion_request_clear(struct completion_request *request);

/* Checks session_tokens + prompt_tokens + max_tokens against the limits; prompt_tokens are those of
 * one prompt, after truncation. Too many: 400 context_length_exceeded, which names the numbers. */
int completion_check_length(const struct completion_request *request, int64_t session_tokens,
                            int64_t prompt_tokens, const struct completion_limits *limits,
                            struct api_error *err);

#endif
