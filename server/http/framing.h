/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a request's head, whatever it asks for (RFC 9112), and libmicrohttpd lets
 * pass: what another server on the way could read otherwise. */
#ifndef SERVER_HTTP_FRAMING_H
#define SERVER_HTTP_FRAMING_H

#include "api/errors.h"

#include <microhttpd.h>

/* version: "HTTP/1.1". An error: nothing of the request is to be believed, nor what follows it. */
int framing_check(struct MHD_Connection *connection, const char *version, struct api_error *err);

#endif
