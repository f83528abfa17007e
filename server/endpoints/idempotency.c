/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/idempotency.h"

int idempotency_begin(struct http_request *request, bool found_again, struct replay_entry **entry,
                      struct api_error *err)
{
    *entry = NULL;
    const char *key = http_header(request, "Idempotency-Key");
    struct service *service = request->service;
    struct replay_reply *kept;
    if (!key)
        return 0;
    struct replay_request wanted = {.owner = service_owner(service, request->owner),
                                    .path = request->path,
                                    .key = key,
                                    .body = request->body.data,
                                    .length = request->body.length,
                                    .session = http_header(request, "X-Session-Id"),
                                    .found_again = found_again};
    if (replay_begin(service->replay, &wanted, entry, &kept, err))
        return -1;
    if (!kept)
        return 0;
    idempotency_repeat(request, kept);
    replay_reply_release(kept);
    return 0;
}

void idempotency_repeat(struct http_request *request, const struct replay_reply *kept)
{
    struct http_kept again = {kept->status, kept->error, kept->stream, kept->data, kept->length};
    http_reply_kept(request, &again);
}

void idempotency_refuse(struct http_request *request, struct replay_entry *entry,
                        const struct api_error *err)
{
    if (entry)
        replay_keep_error(request->service->replay, entry, err, request->route->encode_error, NULL,
                          NULL);
    http_reply_error(request, err);
}
