/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/responses/{id}: kept responses, which are sessions (api/responses_turns.h). */
#ifndef SERVER_ENDPOINTS_RESPONSE_ROUTES_H
#define SERVER_ENDPOINTS_RESPONSE_ROUTES_H

#include "server/http/http.h"

void response_routes_get(struct http_request *request);
void response_routes_delete(struct http_request *request);
void response_routes_cancel(struct http_request *request);
void response_routes_input(struct http_request *request);

#endif
