/* The HTTP side of /v1/sessions and /v1/state: requests become state tasks (state_task.h), and
 * their results replies. */
#ifndef SERVER_SESSION_ROUTES_H
#define SERVER_SESSION_ROUTES_H

#include "server/http.h"

void sessions_list_handle(struct http_request *request);
void session_get_handle(struct http_request *request);
void session_delete_handle(struct http_request *request);
void session_fork_handle(struct http_request *request);
void session_rewind_handle(struct http_request *request);
void session_export_handle(struct http_request *request);
void session_import_handle(struct http_request *request);
void state_handle(struct http_request *request);

/* For routes that take an Idempotency-Key. */
void session_routes_end(struct http_request *request);

#endif
