/* SPDX-License-Identifier: Apache-2.0 */
/* Reads how many tokens of thought a chat allows: thinking_token_budget (vLLM's name),
 * reasoning_budget_tokens (llama.cpp's) and thinking.budget_tokens (Anthropic's) mean the same. */
#ifndef API_CHAT_THINKING_H
#define API_CHAT_THINKING_H

#include "api/errors.h"

#include <jansson.h>
#include <stdint.h>

/* *budget: -1: no limit. max_tokens: of the reply, which the budget may not exceed; -1: any. */
int chat_thinking_read(const json_t *fields, int64_t max_tokens, int64_t *budget,
                       struct api_error *err);

#endif
