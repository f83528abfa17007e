/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP side of /v1/sessions and /v1/state: requests become state tasks (state_task.h), and
 * their results replies. */
#ifndef SERVER_ENDPOINTS_SESSION_ROUTES_H
#define SERVER_ENDPOINTS_SESSION_ROUTES_H

#include "server/http/http.h"

void session_routes_list(struct http_request *request);
void session_routes_get(struct http_request *request);
void session_routes_delete(struct http_request *request);
void session_routes_fork(struct http_request *request);
void session_routes_rewind(struct http_request *request);
void session_routes_export(struct http_request *request);
void session_routes_import(struct http_request *request);
void session_routes_report(struct http_request *request);

/* For routes that take an Idempotency-Key. */
void session_routes_end(struct http_request *request);

#endif
