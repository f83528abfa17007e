/* SPDX-License-Identifier: Apache-2.0 */
/* A completion request whose body is long is parsed by the workers: a few megabytes of JSON would
 * hold up all other connections of the event loop. */
#ifndef SERVER_ENDPOINTS_PARSING_H
#define SERVER_ENDPOINTS_PARSING_H

#include "server/http/http.h"

/* A body of so many bytes is parsed in about a millisecond, whatever it holds. */
enum { PARSING_SHORT_BYTES = 32 * 1024 };

/* Hands the request's body to a worker and sets request->parsing: its ticket is done once the
 * parser is. */
int parsing_start(struct http_request *request, struct api_error *err);

/* Ends that: the parser's result, as completion_parse gives it. request->parsing is false again,
 * and the request has no ticket. */
int parsing_take(struct http_request *request, struct completion_request *parsed,
                 struct api_error *err);

#endif
