/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/messages.h"

#include "api/messages.h"
#include "api/messages_reply.h"
#include "server/endpoints/generate.h"

static const struct completion_format FORMAT = {
    .id_prefix = MESSAGES_ID_PREFIX,
    .begins = true,
    .renders = true,
    .parse = messages_parse,
    .encode = messages_reply_encode,
    .choice_frame = messages_choice_events,
    .pause = messages_pause_events,
    .end = messages_end_events,
    .encode_error = messages_error_encode,
};

void messages_handle(struct http_request *request)
{
    generate_handle(request, &FORMAT);
}
