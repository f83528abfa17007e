/* SPDX-License-Identifier: Apache-2.0 */
/* States: /v1/sessions/ID/state, a session as a file (export and import), and /v1/state, where
 * states lie. */
#ifndef SERVER_ENDPOINTS_STATE_ROUTES_H
#define SERVER_ENDPOINTS_STATE_ROUTES_H

#include "server/http/http.h"

void state_routes_export(struct http_request *request);
void state_routes_import(struct http_request *request);
void state_routes_report(struct http_request *request);

#endif
