/* SPDX-License-Identifier: Apache-2.0 */
/* The tools of POST /v1/messages, and which of them are to be called, as a chat has them. */
#ifndef API_MESSAGES_TOOLS_H
#define API_MESSAGES_TOOLS_H

#include "api/errors.h"
#include "api/reply_warnings.h"

#include <jansson.h>

/* Sets tools, tool_choice and parallel_tool_calls of `chat` as `fields` have them. Tools with a
 * type of their own, which their API's servers carry out or describe, are left out: that is warned
 * of, and refused where one of them is demanded. */
int messages_tools(json_t *chat, const json_t *fields, struct reply_warnings *warnings,
                   struct api_error *err);

#endif
