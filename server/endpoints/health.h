/* SPDX-License-Identifier: Apache-2.0 */
/* GET /health: whether the process works. GET /ready: whether it takes requests now. */
#ifndef SERVER_ENDPOINTS_HEALTH_H
#define SERVER_ENDPOINTS_HEALTH_H

#include "server/http/http.h"

void health_handle(struct http_request *request);
void health_handle_ready(struct http_request *request);

#endif
