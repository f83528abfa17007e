/* SPDX-License-Identifier: Apache-2.0 */
/* GET /load: how many requests run and wait. */
#ifndef SERVER_ENDPOINTS_LOAD_H
#define SERVER_ENDPOINTS_LOAD_H

#include "server/http/http.h"

void load_handle(struct http_request *request);

#endif
