/* SPDX-License-Identifier: Apache-2.0 */
/* Handles the Idempotency-Key of an HTTP request; replay.h keeps the replies. */
#ifndef SERVER_ENDPOINTS_IDEMPOTENCY_H
#define SERVER_ENDPOINTS_IDEMPOTENCY_H

#include "server/endpoints/replay.h"
#include "server/http/http.h"

/* Call it when the whole body is there, before anything is done. 0: the caller continues, with
 * *entry if the request has a key (else NULL); or the request has got the reply of before. -1: *err
 * is set, *entry NULL. */
int idempotency_begin(struct http_request *request, bool found_again, struct replay_entry **entry,
                      struct api_error *err);

/* Replies as before. */
void idempotency_repeat(struct http_request *request, const struct replay_reply *kept);

/* Replies with the error. Keeps it in the entry (NULL: there is none) if the same request would get
 * it again. */
void idempotency_refuse(struct http_request *request, struct replay_entry *entry,
                        const struct api_error *err);

#endif
