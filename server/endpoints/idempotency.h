/* SPDX-License-Identifier: Apache-2.0 */
/* The Idempotency-Key of an HTTP request: between its handler and what is kept (replay.h). */
#ifndef SERVER_ENDPOINTS_IDEMPOTENCY_H
#define SERVER_ENDPOINTS_IDEMPOTENCY_H

#include "server/http/http.h"

/* With the whole body there, before anything is done: 0 to go on, with request->replay where the
 * request bears a key; or replied, with what was replied before. -1: *err. */
int idempotency_begin(struct http_request *request, struct api_error *err);

/* Replies with the error, and keeps it if it is of the lasting kind. */
void idempotency_refuse(struct http_request *request, const struct api_error *err);

/* The request has ended before its work began. */
void idempotency_drop(struct http_request *request);

#endif
