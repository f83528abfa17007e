/* SPDX-License-Identifier: Apache-2.0 */
/* The Idempotency-Key of an HTTP request: between its handler and what is kept (replay.h). */
#ifndef SERVER_ENDPOINTS_IDEMPOTENCY_H
#define SERVER_ENDPOINTS_IDEMPOTENCY_H

#include "server/endpoints/replay.h"
#include "server/http/http.h"

/* With the whole body there, before anything is done: 0 to go on, with *entry where the request
 * bears a key (else NULL); or replied, with what was replied before. -1: *err, *entry NULL. */
int idempotency_begin(struct http_request *request, struct replay_entry **entry,
                      struct api_error *err);

/* Replies with the error, and keeps it in the entry (NULL: nowhere) if it is of the lasting kind.
 */
void idempotency_refuse(struct http_request *request, struct replay_entry *entry,
                        const struct api_error *err);

#endif
