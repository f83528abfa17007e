/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoints: which path and method lead where, and the small ones' handlers. */
#ifndef SERVER_HTTP_ROUTES_H
#define SERVER_HTTP_ROUTES_H

#include "server/http/http.h"

/* The route of a request; parameter [size] receives what the path's asterisk stands for. HEAD goes
 * where GET does. NULL with *err: API_UNKNOWN_PATH, API_METHOD_NOT_ALLOWED, API_NOT_IMPLEMENTED. */
const struct route *route_find(const char *method, const char *path, char *parameter, size_t size,
                               struct api_error *err);

#endif
