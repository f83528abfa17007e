/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP: libmicrohttpd, and what every request goes through whatever it asks for: id, key, route,
 * body within bounds, reply. Threads of the pool are never blocked: a request that waits for other
 * threads has its connection suspended. */
#ifndef SERVER_HTTP_HTTP_H
#define SERVER_HTTP_HTTP_H

#include "api/errors.h"
#include "server/http/routes.h"
#include "server/service.h"

#include <microhttpd.h>

struct http_server;
struct auth;

struct http_request {
    struct MHD_Connection *connection;
    struct http_server *server;
    struct service *service;
    const struct route *route;
    const char *method;
    char path[512];
    char parameter[256];              /* what the route's asterisk stands for */
    char request_id[REQUEST_ID_SIZE]; /* the client's X-Request-Id, or ours */
    bool request_id_given;
    int owner;         /* index of the API key */
    int slot;          /* the watcher's */
    uint64_t received; /* bytes of the body, kept or thrown away */
    struct strbuf body;
    int64_t body_reserved;
    struct api_error error; /* to be sent once the body has been read */
    double started;         /* clock_seconds() at the end of the headers */
    bool complete;          /* the whole request is there */
    bool replied, hang_up;
    bool replayed; /* the reply was kept of an earlier request */
    int status;    /* of the reply; 0: none was sent */

    struct ticket *ticket; /* a reference: of the work that handle has begun on other threads */
    /* In `end`: the connection was lost before the reply was out, or cut since the request did not
     * come in time. */
    bool aborted, timed_out;
};

struct http_options {
    const char *host;
    int port; /* 0: any */
    int threads;
    int max_connections;
    double request_timeout_s, idle_timeout_s;
    const struct auth *auth; /* borrowed, as what follows */
    const struct route_table *routes;
    void (*cancelled)(void *context); /* from any thread: a request's ticket was cancelled */
    void *context;
};

/* Binds and listens: requests are answered from now on. */
int http_start(struct http_server **out, struct service *service,
               const struct http_options *options, struct error *err);
/* "127.0.0.1:8000" or "[::1]:8000": where it listens. */
const char *http_address(const struct http_server *server);
size_t http_active(const struct http_server *server); /* requests not answered yet */
/* All requests must have been answered or cancelled. */
void http_stop(struct http_server *server);

/* The value of a header; NULL: absent. */
const char *http_header(const struct http_request *request, const char *name);

/* Replies take what is in *body and leave it empty. content_type NULL: no such header. */
void http_reply(struct http_request *request, int status, const char *content_type,
                struct strbuf *body);
void http_reply_json(struct http_request *request, struct strbuf *body);
void http_reply_error(struct http_request *request, const struct api_error *err);

/* What was replied to an earlier request. */
struct http_kept {
    int status;
    enum api_code error; /* API_OK: none */
    bool stream;         /* server-sent events */
    const char *data;    /* [length] */
    size_t length;
};
/* The same again, of a copy of its data. */
void http_reply_kept(struct http_request *request, const struct http_kept *kept);

/* A reply whose body comes from `read` until it ends (server-sent events). Its context is the
 * request. */
void http_reply_stream(struct http_request *request, MHD_ContentReaderCallback read);

/* The body and what it has reserved go from the request to *body and *reserved, for work that
 * outlives the request; admission_body takes the reservation back. */
void http_take_body(struct http_request *request, struct strbuf *body, int64_t *reserved);

/* Ties the request to work elsewhere: takes over a reference. */
void http_attach(struct http_request *request, struct ticket *ticket);
/* Unties it, and cancels the work unless it is done. */
void http_detach(struct http_request *request);
/* Suspends the connection until the ticket wakes it. With the ticket's lock held. False when the
 * peer has left: then the request is to be given up. */
bool http_wait(struct http_request *request);
/* Whether the ticket's work is done; else it waits for that, or the request is given up. */
bool http_work_done(struct http_request *request);
/* For logs and metrics, in `end`: the reply's; where it did not get out 413 or 408 when the request
 * was too large or did not come in time, 499 when the client has left. */
int http_status(const struct http_request *request);
void http_log(const struct http_request *request);
/* Closes the connection without a reply. */
void http_hang_up(struct http_request *request);
/* Ends the connection both ways, with libmicrohttpd still to notice. */
void http_shutdown(const struct http_request *request);

#endif
