/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/openapi.h"

#include "api/openapi.h"

void openapi_handle(struct http_request *request)
{
    struct strbuf body = {0};
    strbuf_puts(&body, openapi_document);
    http_reply_json(request, &body);
}
