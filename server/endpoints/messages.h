/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/messages: how its requests are read and its replies written. */
#ifndef SERVER_ENDPOINTS_MESSAGES_H
#define SERVER_ENDPOINTS_MESSAGES_H

#include "server/http/http_request.h"

void messages_handle(struct http_request *request);

#endif
