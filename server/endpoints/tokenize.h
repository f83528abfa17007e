/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize and /detokenize, done by the workers, since a prompt may be megabytes; POST
 * /apply-template, done by the renderers; POST /v1/messages/count_tokens and
 * /v1/responses/input_tokens, by both; GET /tokenizer_info. */
#ifndef SERVER_ENDPOINTS_TOKENIZE_H
#define SERVER_ENDPOINTS_TOKENIZE_H

#include "server/http/http.h"

void tokenize_handle(struct http_request *request);
void tokenize_handle_messages(struct http_request *request);
void tokenize_handle_responses(struct http_request *request);
void tokenize_handle_detokenize(struct http_request *request);
void tokenize_handle_template(struct http_request *request);
void tokenize_handle_info(struct http_request *request);

#endif
