/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize and /detokenize: done by the workers, since a prompt may be megabytes. */
#ifndef SERVER_ENDPOINTS_TEXT_TASK_H
#define SERVER_ENDPOINTS_TEXT_TASK_H

#include "server/http/http.h"

void tokenize_handle(struct http_request *request);
void detokenize_handle(struct http_request *request);

#endif
