/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/idempotency.h"

#include "server/endpoints/replay.h"

int idempotency_begin(struct http_request *request, struct api_error *err)
{
    const char *key = http_header(request, "Idempotency-Key");
    struct service *service = request->service;
    struct replay_reply *kept;
    if (!key)
        return 0;
    struct replay_request wanted = {.owner = service_owner(service, request->owner),
                                    .path = request->path,
                                    .key = key,
                                    .body = request->body.data,
                                    .length = request->body.length};
    if (replay_begin(service->replay, &wanted, &request->replay, &kept, err))
        return -1;
    if (!kept)
        return 0;
    struct http_kept again = {kept->status, kept->error, kept->stream, kept->data, kept->length};
    http_reply_kept(request, &again);
    replay_reply_release(kept);
    return 0;
}

void idempotency_refuse(struct http_request *request, const struct api_error *err)
{
    if (request->replay)
        replay_keep_error(request->service->replay, request->replay, err);
    request->replay = NULL;
    http_reply_error(request, err);
}

void idempotency_drop(struct http_request *request)
{
    if (request->replay)
        replay_drop(request->service->replay, request->replay);
    request->replay = NULL;
}
