/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/health.h"

#include "api/models.h"
#include "server/store/store.h"

void health_handle(struct http_request *request)
{
    struct api_error err = {0};
    struct strbuf body = {0};
    if (service_phase(request->service) == SERVICE_FAILED) {
        service_check_ready(request->service, &err);
        http_reply_error(request, &err);
        return;
    }
    status_encode(&body, "ok", NULL);
    http_reply_json(request, &body);
}

void health_handle_ready(struct http_request *request)
{
    struct api_error err = {0};
    struct strbuf body = {0};
    if (service_check_ready(request->service, &err) == 0 &&
        atomic_load(&request->service->store_failing))
        api_error_set(&err, API_STORE_FAILED, NULL,
                      "--state-dir takes no changes of sessions; the log says why");
    if (err.code != API_OK) {
        http_reply_error(request, &err);
        return;
    }
    struct store_report store = {0};
    if (request->service->store)
        store_report(request->service->store, &store);
    status_encode(&body, "ready", store.why);
    http_reply_json(request, &body);
}
