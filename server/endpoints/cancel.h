/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/requests/ID/cancel. */
#ifndef SERVER_ENDPOINTS_CANCEL_H
#define SERVER_ENDPOINTS_CANCEL_H

#include "server/http/http.h"

void cancel_handle(struct http_request *request);

#endif
