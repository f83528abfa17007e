/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses heads of requests that libmicrohttpd lets pass, but that a proxy before this server
 * could read differently (RFC 9112). */
#ifndef SERVER_HTTP_FRAMING_H
#define SERVER_HTTP_FRAMING_H

#include "api/errors.h"

#include <microhttpd.h>

/* version: "HTTP/1.1". After an error, trust nothing of the request and nothing that follows it. */
int framing_check(struct MHD_Connection *connection, const char *version, struct api_error *err);

#endif
