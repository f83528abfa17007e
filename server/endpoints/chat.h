/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/chat/completions: how its requests are read and its replies written. */
#ifndef SERVER_ENDPOINTS_CHAT_H
#define SERVER_ENDPOINTS_CHAT_H

#include "server/http/http_request.h"

void chat_handle(struct http_request *request);

#endif
