/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/routes.h"

#include "api/tokenizer.h"
#include "server/endpoints/completions.h"
#include "server/endpoints/session_routes.h"
#include "server/endpoints/state_task.h"
#include "server/endpoints/text_task.h"
#include "server/schedule/scheduler.h"

#include <string.h>

static void handle_health(struct http_request *request)
{
    struct api_error err = {0};
    struct strbuf body = {0};
    if (service_phase(request->service) == SERVICE_FAILED) {
        service_check_ready(request->service, &err);
        http_reply_error(request, &err);
        return;
    }
    status_encode(&body, "ok");
    http_reply_json(request, &body);
}

static void handle_ready(struct http_request *request)
{
    struct api_error err = {0};
    struct strbuf body = {0};
    if (service_check_ready(request->service, &err)) {
        http_reply_error(request, &err);
        return;
    }
    status_encode(&body, "ready");
    http_reply_json(request, &body);
}

static void handle_load(struct http_request *request)
{
    struct strbuf body = {0};
    load_encode(&body, atomic_load(&request->service->metrics.running),
                atomic_load(&request->service->metrics.waiting));
    http_reply_json(request, &body);
}

/* The engine may be asked about itself once it has been open. */
static const struct engine_info *info_if_open(struct service *service)
{
    return service_phase(service) == SERVICE_LOADING ? NULL : engine_info(service->engine);
}

static void handle_version(struct http_request *request)
{
    const struct engine_info *info = info_if_open(request->service);
    struct strbuf body = {0};
    version_encode(&body, REGLA_VERSION, info ? info->device : NULL,
                   info ? info->instruction_set : NULL);
    http_reply_json(request, &body);
}

static bool refuse_while_loading(struct http_request *request)
{
    struct api_error err = {0};
    if (service_phase(request->service) != SERVICE_LOADING)
        return false;
    service_check_ready(request->service, &err);
    http_reply_error(request, &err);
    return true;
}

static void handle_models(struct http_request *request)
{
    struct strbuf body = {0};
    if (refuse_while_loading(request))
        return;
    models_list_encode(&body, &request->service->card, 1);
    http_reply_json(request, &body);
}

static void handle_model(struct http_request *request)
{
    struct api_error err = {0};
    struct strbuf body = {0};
    if (refuse_while_loading(request))
        return;
    if (strcmp(request->parameter, request->service->model) != 0) {
        api_error_model(&err, request->parameter, request->service->model);
        http_reply_error(request, &err);
        return;
    }
    model_encode(&body, &request->service->card);
    http_reply_json(request, &body);
}

static void handle_tokenizer_info(struct http_request *request)
{
    struct service *service = request->service;
    struct strbuf body = {0};
    struct api_error err = {0};
    if (service_check_tokenizer(service, &err)) {
        http_reply_error(request, &err);
        return;
    }
    struct tokenizer_info info = {.tokenizer = service->tokenizer,
                                  .bos_token_id = service->bos_token_id,
                                  .eos_token_id = service->num_eos ? service->eos_ids[0] : -1,
                                  .max_model_len = service->limits.max_model_len,
                                  .vocab_size = service->limits.vocab_size};
    tokenizer_info_encode(&body, &info);
    http_reply_json(request, &body);
}

static void handle_metrics(struct http_request *request)
{
    struct service *service = request->service;
    const struct engine_info *info = info_if_open(service);
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

static void handle_cancel(struct http_request *request)
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
    if (cancelled && service->scheduler)
        scheduler_poke(service->scheduler);
    struct strbuf body = {0};
    cancel_encode(&body, request->parameter, cancelled > 0);
    http_reply_json(request, &body);
}

#define SESSIONS(kind) .handle = session_routes_handle, .task = STATE_TASK_##kind

static const struct route ROUTES[] = {
    {"POST", "/v1/completions", .json = true, .handle = completions_handle, .end = completions_end},
    {"GET", "/v1/models", .handle = handle_models},
    {"GET", "/v1/models/**", .handle = handle_model},
    {"GET", "/v1/sessions", SESSIONS(LIST)},
    {"GET", "/v1/sessions/*", SESSIONS(GET)},
    {"DELETE", "/v1/sessions/*", SESSIONS(DELETE)},
    {"POST", "/v1/sessions/*/fork", .json = true, SESSIONS(FORK), .end = session_routes_end},
    {"POST", "/v1/sessions/*/rewind", .json = true, SESSIONS(REWIND), .end = session_routes_end},
    {"GET", "/v1/sessions/*/state", SESSIONS(EXPORT)},
    {"PUT", "/v1/sessions/*/state", .octets = true, SESSIONS(IMPORT)},
    {"GET", "/v1/state", SESSIONS(REPORT)},
    {"POST", "/v1/requests/*/cancel", .handle = handle_cancel},
    {"POST", "/tokenize", .json = true, .handle = tokenize_handle},
    {"POST", "/detokenize", .json = true, .handle = detokenize_handle},
    {"GET", "/tokenizer_info", .handle = handle_tokenizer_info},
    {"GET", "/health", .open = true, .quiet = true, .handle = handle_health},
    {"GET", "/ready", .open = true, .quiet = true, .handle = handle_ready},
    {"GET", "/load", .open = true, .quiet = true, .handle = handle_load},
    {"GET", "/version", .open = true, .quiet = true, .handle = handle_version},
    {"GET", "/metrics", .quiet = true, .handle = handle_metrics},
};

/* Endpoints that clients know from elsewhere. */
static const char *const LACKING[] = {
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/responses/**",
    "/v1/messages",
    "/v1/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/pooling",
    "/classify",
    "/v1/moderations",
    "/v1/audio/**",
    "/v1/images/**",
    "/v1/files",
    "/v1/files/**",
    "/v1/batches",
    "/v1/batches/**",
    "/v1/fine_tuning/**",
};

/* Whether path fits pattern (http.h); what the asterisk stands for goes to parameter [size]. */
static bool matches(const char *pattern, const char *path, char *parameter, size_t size)
{
    const char *star = strchr(pattern, '*');
    size_t head = star ? (size_t)(star - pattern) : strlen(pattern);
    if (strncmp(pattern, path, head) != 0)
        return false;
    if (!star)
        return path[head] == 0;
    bool all = star[1] == '*';
    const char *tail = star + 1 + all;
    size_t rest = strlen(path + head), tail_length = strlen(tail);
    if (rest <= tail_length || strcmp(path + head + rest - tail_length, tail) != 0)
        return false;
    size_t length = rest - tail_length;
    if (length >= size)
        return false;
    memcpy(parameter, path + head, length);
    parameter[length] = 0;
    return all || !strchr(parameter, '/');
}

static bool serves(const struct route *route, const char *method)
{
    return strcmp(route->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

/* "GET, HEAD, PUT": the methods that the path has. False: none. */
static bool allowed(const char *path, char *list, size_t size)
{
    char parameter[256];
    size_t length = 0;
    list[0] = 0;
    for (size_t i = 0; i < sizeof ROUTES / sizeof *ROUTES; i++)
        if (matches(ROUTES[i].path, path, parameter, sizeof parameter))
            length += (size_t)snprintf(list + length, size - length, "%s%s", length ? ", " : "",
                                       strcmp(ROUTES[i].method, "GET") == 0 ? "GET, HEAD"
                                                                            : ROUTES[i].method);
    return length > 0;
}

const struct route *route_find(const char *method, const char *path, char *parameter, size_t size,
                               struct api_error *err)
{
    char methods[sizeof err->allow];
    for (size_t i = 0; i < sizeof ROUTES / sizeof *ROUTES; i++)
        if (serves(&ROUTES[i], method) && matches(ROUTES[i].path, path, parameter, size))
            return &ROUTES[i];
    if (allowed(path, methods, sizeof methods)) {
        api_error_method(err, method, methods);
        return NULL;
    }
    for (size_t i = 0; i < sizeof LACKING / sizeof *LACKING; i++)
        if (matches(LACKING[i], path, parameter, size)) {
            api_error_set(err, API_NOT_IMPLEMENTED, NULL,
                          "%s is not implemented, /v1/completions is", path);
            return NULL;
        }
    api_error_unknown_path(err, path);
    return NULL;
}
