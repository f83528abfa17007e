/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the endpoint of a path and a method. The table of them is in server/endpoints/. */
#ifndef SERVER_HTTP_ROUTES_H
#define SERVER_HTTP_ROUTES_H

#include "api/errors.h"

#include <stdbool.h>
#include <stddef.h>

struct http_request;

/* One endpoint. `handle` is called once the whole request is there, and again each time its
 * connection is resumed. It ends with http_reply*, http_wait or http_hang_up. */
struct route {
    const char *method;
    const char *path;                /* "*" matches one part, "**" at the end all that follows */
    bool either;                     /* the same path with and without "/v1" before it */
    bool open;                       /* needs no API key */
    bool json;                       /* wants a JSON body */
    bool octets;                     /* wants a body of any bytes; --max-state-bytes is its limit */
    bool quiet;                      /* logged at level debug */
    bool vital;                      /* answered when all connections are at work, too */
    api_error_encoder *encode_error; /* NULL: as api_error_encode */
    const char *id_header;           /* one more header with the request's id; NULL: none */
    void (*handle)(struct http_request *request);
    /* Called when the reply is out or the connection gone, even if `handle` never was. NULL: the
     * request is logged. */
    void (*end)(struct http_request *request);
};

struct route_table {
    const struct route *routes; /* [count] */
    size_t count;
    const char *const *lacking; /* [num_lacking]: paths that clients know from elsewhere */
    size_t num_lacking;
    const char *instead; /* the path to use in their place */
};

enum { ROUTE_PATH_SIZE = 1024 };
/* The path without doubled slashes and without one at the end, which some clients send:
 * "/v1//models/" is "/v1/models". One that is longer than ROUTE_PATH_SIZE stays as it is. */
const char *route_clean(const char *path, char clean[ROUTE_PATH_SIZE]);

/* The methods that a path has, for Allow: "GET, HEAD, PUT"; "/" and "*" have those of all. False:
 * the path has none. */
bool route_methods(const struct route_table *table, const char *path, char *list, size_t size);

/* Finds the route of a request. parameter [size] receives what the asterisk of its path matches.
 * HEAD goes where GET does. NULL: API_UNKNOWN_PATH, API_METHOD_NOT_ALLOWED, API_NOT_IMPLEMENTED. */
const struct route *route_find(const struct route_table *table, const char *method,
                               const char *path, char *parameter, size_t size,
                               struct api_error *err);

#endif
