/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/sessions/ID/tokens: what a session holds, as tokens with their texts. */
#ifndef SERVER_ENDPOINTS_SESSION_TOKENS_H
#define SERVER_ENDPOINTS_SESSION_TOKENS_H

#include "server/http/http.h"

void session_tokens_handle(struct http_request *request);

#endif
