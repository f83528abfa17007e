/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/metrics_page.h"

void metrics_page_handle(struct http_request *request)
{
    struct service *service = request->service;
    const struct engine_info *info = service_engine_info(service);
    struct metrics_view view = {.model = service->model,
                                .device = info ? info->device : "",
                                .vllm_names = service->vllm_names};
    if (info) {
        view.weights_bytes = (int64_t)info->weights_bytes;
        view.workspace_bytes = (int64_t)info->workspace_bytes;
        view.pinned_bytes = (int64_t)info->pinned_bytes;
        view.state_budget_bytes = (int64_t)info->state_memory_bytes;
    }
    admission_read(&service->admission, &view.queue_requests, &view.queue_tokens, &view.body_bytes);
    struct strbuf body = {0};
    metrics_write(&body, &service->metrics, &view);
    http_reply(request, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}
