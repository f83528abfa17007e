/* SPDX-License-Identifier: Apache-2.0 */
/* A choice of a chat in the order in which the model wrote it: its thoughts, and calls among the
 * texts (messages_reply.c, responses_reply.c). */
#ifndef API_REPLY_PARTS_H
#define API_REPLY_PARTS_H

#include "api/completion_reply.h"

/* What a part is; 0: there is none. */
enum reply_part { REPLY_NOTHING, REPLY_THOUGHT, REPLY_TEXT };

struct reply_parts {
    void *context;
    /* Of a thought or a text. In a stream the next part may go on with it. */
    void (*part)(void *context, enum reply_part part, const char *text, size_t length);
    void (*call)(void *context, const struct chat_call *call, size_t index);
};

/* Calls `parts` for each in turn. A call that was cut off is none. */
void reply_parts_write(const struct reply_parts *parts, const struct reply_choice *choice);

#endif
