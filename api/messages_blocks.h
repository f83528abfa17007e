/* SPDX-License-Identifier: Apache-2.0 */
/* The system and the messages of POST /v1/messages as messages of a chat. Blocks become texts, tool
 * calls, and messages of the role tool. */
#ifndef API_MESSAGES_BLOCKS_H
#define API_MESSAGES_BLOCKS_H

#include "api/chat_syntax.h"
#include "api/errors.h"
#include "api/reply_warnings.h"

#include <jansson.h>
#include <stdbool.h>

/* Reads `system` (NULL: there is none) and `messages` into a new list; NULL with the error set.
 *
 * Neighbours of one role are one message, as in Anthropic's API. Of a user's message the results of
 * tools come first. Messages of the system that the template does not write (systems) are a user's
 * text at their place. What is no text becomes a line in its place, and is warned of; that of
 * a tool apart is its definition (messages_tools_load), which is one of `apart`.
 * *continues: the last message is the assistant's, which goes on. */
json_t *messages_blocks(const json_t *system, const json_t *messages, json_t *apart,
                        enum chat_systems systems, struct reply_warnings *warnings, bool *continues,
                        struct api_error *err);

#endif
