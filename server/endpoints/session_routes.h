/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: /v1/sessions and the paths below it, except those of states (state_routes.h). */
#ifndef SERVER_ENDPOINTS_SESSION_ROUTES_H
#define SERVER_ENDPOINTS_SESSION_ROUTES_H

#include "server/http/http.h"

void session_routes_list(struct http_request *request);
void session_routes_get(struct http_request *request);
void session_routes_delete(struct http_request *request);
void session_routes_fork(struct http_request *request);
void session_routes_rewind(struct http_request *request);

#endif
