/* SPDX-License-Identifier: Apache-2.0 */
/* GET /props and GET /slots, which llama.cpp's clients ask for; tokenize.h has /apply-template. */
#ifndef SERVER_ENDPOINTS_LLAMA_CPP_H
#define SERVER_ENDPOINTS_LLAMA_CPP_H

#include "server/http/http.h"

void llama_cpp_handle_props(struct http_request *request);
void llama_cpp_handle_slots(struct http_request *request);

#endif
