/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/cancel.h"

#include "api/models.h"
#include "server/schedule/scheduler.h"

void cancel_handle(struct http_request *request)
{
    struct service *service = request->service;
    size_t cancelled;
    if (registry_cancel(&service->registry, request->parameter, request->owner, &cancelled) == 0) {
        struct api_error err = {0};
        api_error_set(&err, API_REQUEST_NOT_FOUND, NULL, "no request \"%s\" is being answered",
                      request->parameter);
        http_reply_error(request, &err);
        return;
    }
    if (cancelled)
        scheduler_poke(service->scheduler);
    struct strbuf body = {0};
    cancel_encode(&body, request->parameter, cancelled > 0);
    http_reply_json(request, &body);
}
