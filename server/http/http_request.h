/* SPDX-License-Identifier: Apache-2.0 */
/* One request, as all of http/ and the endpoints know it. */
#ifndef SERVER_HTTP_HTTP_REQUEST_H
#define SERVER_HTTP_HTTP_REQUEST_H

#include "api/errors.h"
#include "api/reply_warnings.h"
#include "api/request.h"
#include "server/http/origin.h"
#include "server/http/routes.h"
#include "server/service.h"

#include <microhttpd.h>

struct http_server;

struct http_request {
    struct MHD_Connection *connection;
    struct http_server *server;
    struct service *service;
    const struct origin_rules *origins; /* borrowed */
    const struct route *route;
    const char *method;
    char path[512];
    char parameter[256];              /* the part of the path that the route's asterisk matches */
    char request_id[REQUEST_ID_SIZE]; /* the client's X-Request-Id, or ours */
    bool request_id_given;
    int owner;         /* index of the API key */
    uint64_t tenant;   /* tenant.h */
    int slot;          /* in the watcher's table */
    uint64_t received; /* bytes of the body, kept or thrown away */
    struct strbuf body;
    int64_t body_reserved;
    struct api_error error; /* goes out once the body has been read */
    double started;         /* clock_seconds() at the end of the headers */
    bool complete;          /* the whole request is there */
    bool may_inform;        /* interim replies may be sent: the client knows HTTP/1.1 */
    bool asks_options;      /* OPTIONS; parameter: the methods that are allowed */
    bool replied, hang_up;
    bool closes;                           /* the connection ends with an error's reply */
    bool replayed;                         /* the reply was kept of an earlier request */
    int status;                            /* of the reply; 0: none was sent */
    const struct reply_warnings *warnings; /* of the reply, the ticket's; NULL: none, or not yet */

    char cache_miss[64]; /* of a whole reply: X-Regla-Cache-Miss; "": none */

    struct ticket *ticket; /* a reference: of the work that handle has begun on other threads */
    /* For `end`: the connection was lost before the reply was out; it was cut because the request
     * did not come in time. */
    bool aborted, timed_out;
};

/* The value of a header; NULL: absent. */
static inline const char *http_header(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

#endif
