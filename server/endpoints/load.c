/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/load.h"

#include "api/models.h"

void load_handle(struct http_request *request)
{
    struct strbuf body = {0};
    load_encode(&body, atomic_load(&request->service->metrics.running),
                atomic_load(&request->service->metrics.waiting));
    http_reply_json(request, &body);
}
