/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the body of POST /v1/chat/completions: messages become the text that the model's chat
 * template makes of them, and the rest is a completion request (completion.h). */
#ifndef API_CHAT_H
#define API_CHAT_H

#include "api/completion.h"

/* Like completion_parse, with one prompt, a text. */
int chat_parse(struct completion_request *request, const char *body, size_t length,
               const struct completion_limits *limits, struct api_error *err);

/* The text of `messages` and what belongs to them in a request of `length` bytes. *text (malloc'd)
 * has *text_length bytes. rules: NULL, or where the rules of its replies go (chat_rules_free). */
int chat_render(char **text, size_t *text_length, struct chat_rules **rules, const json_t *fields,
                size_t length, const struct completion_limits *limits, struct api_error *err);

#endif
