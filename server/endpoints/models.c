/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/models.h"

#include "api/request.h"

static bool refuse_while_loading(struct http_request *request)
{
    struct api_error err = {0};
    if (service_check_loaded(request->service, &err) == 0)
        return false;
    http_reply_error(request, &err);
    return true;
}

void models_handle(struct http_request *request)
{
    struct strbuf body = {0};
    if (refuse_while_loading(request))
        return;
    models_list_encode(&body, &request->service->card, request->service->models,
                       request->service->num_names);
    http_reply_json(request, &body);
}

void models_handle_one(struct http_request *request)
{
    struct api_error err = {0};
    struct strbuf body = {0};
    if (refuse_while_loading(request))
        return;
    const struct service *service = request->service;
    struct model_card card = service->card;
    card.id = request->parameter;
    if (request_names_model(service->models, service->num_models, card.id)) {
        model_encode(&body, &card);
        http_reply_json(request, &body);
        return;
    }
    api_error_model(&err, request->parameter, service->model);
    http_reply_error(request, &err);
}
