/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions and the input of POST /v1/responses as messages of a chat. What the assistant
 * said, thought and called next to each other is one message of it. */
#ifndef API_RESPONSES_ITEMS_H
#define API_RESPONSES_ITEMS_H

#include "api/chat_syntax.h"
#include "api/errors.h"
#include "api/reply_warnings.h"
#include "api/strbuf.h"

#include <jansson.h>
#include <stdbool.h>

/* Which messages of the system the template writes, and whether it knows the role developer; else
 * that is system. */
struct responses_template {
    enum chat_systems systems;
    bool developer;
    bool behind; /* other items stand before, which may have the calls of outputs */
};

/* Reads `instructions` (NULL: there are none) and `input` into a new list; NULL with the error set.
 * Neighbours of one role are one message. What is no text becomes a line in its place, and is
 * warned of. */
json_t *responses_items(const json_t *instructions, json_t *input,
                        const struct responses_template *template, struct reply_warnings *warnings,
                        struct api_error *err);

#endif
