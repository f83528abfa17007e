/* SPDX-License-Identifier: Apache-2.0 */
/* GET /openapi.json: what all endpoints take and reply, for programs. */
#ifndef SERVER_ENDPOINTS_OPENAPI_H
#define SERVER_ENDPOINTS_OPENAPI_H

#include "server/http/http.h"

void openapi_handle(struct http_request *request);

#endif
