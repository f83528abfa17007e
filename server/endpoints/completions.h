/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/completions. */
#ifndef SERVER_ENDPOINTS_COMPLETIONS_H
#define SERVER_ENDPOINTS_COMPLETIONS_H

#include "server/http/http.h"

void completions_handle(struct http_request *request);

#endif
