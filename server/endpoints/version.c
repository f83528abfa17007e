/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/version.h"

#include "api/models.h"

void version_handle(struct http_request *request)
{
    const struct engine_info *info = service_engine_info(request->service);
    struct strbuf body = {0};
    version_encode(&body, REGLA_VERSION, info ? info->device : NULL,
                   info ? info->instruction_set : NULL);
    http_reply_json(request, &body);
}
