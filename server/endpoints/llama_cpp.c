/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/llama_cpp.h"

#include "api/llama_cpp.h"

static int64_t longest_text(const struct service *service)
{
    int64_t given = service->limits.max_model_len, held = service->memory_limit_tokens;
    return given && (!held || given < held) ? given : held;
}

static void handle(struct http_request *request,
                   void (*encode)(struct strbuf *buf, const struct llama_cpp_props *props))
{
    struct service *service = request->service;
    struct strbuf body = {0};
    struct api_error err = {0};
    if (service_check_loaded(service, &err)) {
        http_reply_error(request, &err);
        return;
    }
    const struct chat_template *chat = &service->chat;
    size_t length = 0;
    const char *template = chat->template ? jinja_source(chat->template, &length) : NULL;
    encode(&body, &(struct llama_cpp_props){
                      .model = service->model,
                      .path = service->card.root,
                      .version = REGLA_VERSION,
                      .template = template,
                      .template_length = length,
                      .bos_token = chat->bos_token,
                      .eos_token = chat->eos_token,
                      .context = longest_text(service),
                      .slots = service->admission.limits.max_running,
                      .running = atomic_load(&service->metrics.running_texts),
                      .sampling = service->limits.sampling,
                  });
    http_reply_json(request, &body);
}

void llama_cpp_handle_props(struct http_request *request)
{
    handle(request, llama_cpp_props_encode);
}

void llama_cpp_handle_slots(struct http_request *request)
{
    handle(request, llama_cpp_slots_encode);
}
