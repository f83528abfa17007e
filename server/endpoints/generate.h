/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP side of endpoints that generate text: the body goes into the pipeline, and what comes
 * out of it becomes a reply or a stream. */
#ifndef SERVER_ENDPOINTS_GENERATE_H
#define SERVER_ENDPOINTS_GENERATE_H

#include "server/endpoints/completion.h"
#include "server/http/http.h"

void generate_handle(struct http_request *request, const struct completion_format *format);

/* For the route: counts and logs the request. */
void generate_end(struct http_request *request);

#endif
