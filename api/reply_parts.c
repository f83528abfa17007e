/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reply_parts.h"

void reply_parts_write(const struct reply_parts *parts, const struct reply_choice *choice)
{
    size_t at = 0;
    if (choice->reasoning_length > 0)
        parts->part(parts->context, REPLY_THOUGHT, choice->reasoning, choice->reasoning_length);
    for (size_t i = 0; i < choice->num_calls; i++) {
        const struct chat_call *call = &choice->calls[i];
        if (call->at > at)
            parts->part(parts->context, REPLY_TEXT, choice->text + at, call->at - at);
        at = call->at;
        if (!call->cut)
            parts->call(parts->context, call, choice->first_call + i);
    }
    if (choice->text_length > at)
        parts->part(parts->context, REPLY_TEXT, choice->text + at, choice->text_length - at);
}
