/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/metrics_page.h"

#include "server/store/store.h"

#include <string.h>

_Static_assert((int)NUM_STORE_METRICS == (int)NUM_STORE_KINDS, "kinds of both");
_Static_assert((int)NUM_STORE_RESULTS == (int)NUM_STORE_ENDS, "ends of both");

static void describe_store(struct metrics_store *out, const struct store_report *store)
{
    *out = (struct metrics_store){.written = store->states_written,
                                  .read = store->states_read,
                                  .gone = store->states_gone,
                                  .prefixes = {.found = store->prefixes.found,
                                               .missing = store->prefixes.missing,
                                               .written = store->prefixes.written,
                                               .read = store->prefixes.read,
                                               .bytes_written = store->prefixes.bytes_written,
                                               .bytes_read = store->prefixes.bytes_read},
                                  .returns = store->returns,
                                  .leases = store->leases,
                                  .leases_lost = store->leases_lost,
                                  .older_copies = store->older_copies,
                                  .away = store->away};
    for (int kind = 0; kind < NUM_STORE_KINDS; kind++) {
        out->kinds[kind].waiting = store->counts[kind].waiting;
        out->kinds[kind].seconds = store->counts[kind].seconds;
        memcpy(out->kinds[kind].ended, store->counts[kind].ended, sizeof out->kinds[kind].ended);
    }
}

void metrics_page_handle(struct http_request *request)
{
    struct service *service = request->service;
    const struct engine_info *info = service_engine_info(service);
    struct metrics_view view = {.model = service->model,
                                .device = info ? info->device : "",
                                .vllm_names = service->vllm_names,
                                .reuses_prefixes = service->reuses_prefixes};
    if (info) {
        view.weights_bytes = (int64_t)info->weights_bytes;
        view.workspace_bytes = (int64_t)info->workspace_bytes;
        view.pinned_bytes = (int64_t)info->pinned_bytes;
        view.state_budget_bytes = (int64_t)info->state_memory_bytes;
        view.kv_format = kv_format_name(info->kv);
        view.kv_page_tokens = info->kv_page_tokens;
        int64_t page = (int64_t)info->kv_bytes_per_token * info->kv_page_tokens;
        view.kv_pages = page > 0 ? view.state_budget_bytes / page : 0;
        if (service
                ->store) { /* as it is now: its threads work while the engine's has nothing to do */
            struct store_report store;
            store_report(service->store, &store);
            describe_store(&view.store, &store);
        }
    }
    admission_read(&service->admission, &view.queue_requests, &view.queue_tokens, &view.body_bytes);
    admission_read_refused(&service->admission, view.refused);
    struct strbuf body = {0};
    metrics_write(&body, &service->metrics, &view);
    http_reply(request, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}
