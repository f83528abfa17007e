/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/models and /v1/models/NAME. */
#ifndef SERVER_ENDPOINTS_MODELS_H
#define SERVER_ENDPOINTS_MODELS_H

#include "server/http/http.h"

void models_handle(struct http_request *request);
void models_handle_one(struct http_request *request);

#endif
