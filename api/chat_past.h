/* SPDX-License-Identifier: Apache-2.0 */
/* Past replies, which sessions keep as the model wrote them, as messages with reasoning, content
 * and calls: for templates that refuse a content in channels (chat_channels.h). */
#ifndef API_CHAT_PAST_H
#define API_CHAT_PAST_H

#include "api/chat_syntax.h"
#include "api/chat_turns.h"

/* Takes those of the list apart that have something of *specials, which becomes empty. */
int chat_past_split(json_t *messages, struct chat_specials *specials,
                    const struct chat_syntax *syntax, struct api_error *err);

#endif
