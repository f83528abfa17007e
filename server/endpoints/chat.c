/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/chat.h"

#include "api/chat.h"
#include "api/chat_reply.h"
#include "server/endpoints/generate.h"

static const struct completion_format FORMAT = {
    .id_prefix = "chatcmpl-",
    .renders = true,
    .parse = chat_parse,
    .encode = chat_reply_encode,
    .choice_frame = chat_choice_frame,
    .usage_frame = chat_usage_frame,
    .pause = sse_comment,
    .end = sse_end,
};

void chat_handle(struct http_request *request)
{
    generate_handle(request, &FORMAT);
}
