/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/responses: how its requests are read and its replies written. */
#ifndef SERVER_ENDPOINTS_RESPONSES_H
#define SERVER_ENDPOINTS_RESPONSES_H

#include "server/http/http_request.h"

void responses_handle(struct http_request *request);

#endif
