/* SPDX-License-Identifier: Apache-2.0 */
/* GET /metrics: what the server counts, for Prometheus. */
#ifndef SERVER_ENDPOINTS_METRICS_PAGE_H
#define SERVER_ENDPOINTS_METRICS_PAGE_H

#include "server/http/http.h"

void metrics_page_handle(struct http_request *request);

#endif
