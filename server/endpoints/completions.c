/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/completions.h"

#include "server/endpoints/generate.h"

static const struct completion_format FORMAT = {
    .id_prefix = "cmpl-",
    .parse = completion_parse,
    .encode = completion_reply_encode,
    .choice_frame = sse_choice_frame,
    .usage_frame = sse_usage_frame,
    .pause = sse_comment,
    .end = sse_end,
};

void completions_handle(struct http_request *request)
{
    generate_handle(request, &FORMAT);
}
