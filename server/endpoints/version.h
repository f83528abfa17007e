/* SPDX-License-Identifier: Apache-2.0 */
/* GET /version: of the server, and what it computes on. */
#ifndef SERVER_ENDPOINTS_VERSION_H
#define SERVER_ENDPOINTS_VERSION_H

#include "server/http/http.h"

void version_handle(struct http_request *request);

#endif
