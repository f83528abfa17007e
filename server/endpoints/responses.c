/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/responses.h"

#include "api/responses.h"
#include "api/responses_stream.h"
#include "server/endpoints/generate.h"

static const struct completion_format FORMAT = {
    .id_prefix = RESPONSES_ID_PREFIX,
    .begins = true,
    .keeps = true,
    .renders = true,
    .parse = responses_parse,
    .encode = responses_reply_encode,
    .choice_frame = responses_choice_events,
    .pause = responses_pause_events,
    .end = responses_end_events,
    .tells_length = true,
};

void responses_handle(struct http_request *request)
{
    generate_handle(request, &FORMAT);
}
