/* SPDX-License-Identifier: Apache-2.0 */
/* The tools of POST /v1/messages, and which of them are to be called, as a chat has them. */
#ifndef API_MESSAGES_TOOLS_H
#define API_MESSAGES_TOOLS_H

#include "api/errors.h"
#include "api/reply_warnings.h"

#include <jansson.h>

/* Sets tools, tool_choice and parallel_tool_calls of `chat` as `fields` have them. Tools with a
 * type of their own, which their API's servers carry out or describe, are left out: that is warned
 * of, and refused where one of them is demanded.
 *
 * A tool with defer_loading is marked as CHAT_TOOL_APART (chat_rules.h): the model sees it where a
 * message refers to it. So those that a client finds one by one change nothing of the prompt's
 * begin. None is if all are, or where a tool that their API's servers carry out would find them. */
int messages_tools(json_t *chat, const json_t *fields, struct reply_warnings *warnings,
                   struct api_error *err);

/* A field of the chat meanwhile: those tools by their names. */
#define MESSAGES_TOOLS_APART "tools apart"

/* Refers to one of them: *definition is what the model has to see, which the caller frees, also
 * after an error; NULL: it has seen it, or there is no such tool. */
int messages_tools_load(json_t *apart, const char *name, char **definition, struct api_error *err);

/* Takes those out of the chat's tools to which no message refers; but one that tool_choice demands
 * is as others are. */
int messages_tools_settle(json_t *chat, struct api_error *err);

#endif
