/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP by libmicrohttpd. Every request goes through the same steps whatever it asks for: id, key,
 * route, a body within bounds, a reply. Threads of the pool never block: the connection of a
 * request that waits for other threads is suspended. */
#ifndef SERVER_HTTP_HTTP_H
#define SERVER_HTTP_HTTP_H

#include "api/errors.h"
#include "server/http/origin.h"
#include "server/http/routes.h"
#include "server/service.h"

#include <microhttpd.h>
#include <sys/types.h>

struct http_server;
struct credentials;

struct http_request {
    struct MHD_Connection *connection;
    struct http_server *server;
    struct service *service;
    const struct route *route;
    const char *method;
    char path[512];
    char parameter[256];              /* the part of the path that the route's asterisk matches */
    char request_id[REQUEST_ID_SIZE]; /* the client's X-Request-Id, or ours */
    bool request_id_given;
    int owner;         /* index of the API key */
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
    bool replayed; /* the reply was kept of an earlier request */
    int status;    /* of the reply; 0: none was sent */

    struct ticket *ticket; /* a reference: of the work that handle has begun on other threads */
    /* For `end`: the connection was lost before the reply was out; it was cut because the request
     * did not come in time. */
    bool aborted, timed_out;
};

struct http_options {
    const struct names *hosts; /* listen.h */
    int port;                  /* 0: any */
    mode_t socket_mode;        /* of a Unix socket's file */
    int threads;
    int max_connections;
    double request_timeout_s, idle_timeout_s;
    struct credentials *credentials; /* borrowed, as what follows */
    struct origin_rules origins;     /* checks_host is http_start's to set */
    const struct route_table *routes;
    void (*cancelled)(void *context); /* from any thread: a request's ticket was cancelled */
    void *context;
};

/* Binds and listens. From now on requests are answered. */
int http_start(struct http_server **out, struct service *service,
               const struct http_options *options, struct error *err);
/* "http://127.0.0.1:8000, http://[::1]:8000, unix:/run/regla.sock": where it listens. */
const char *http_addresses(const struct http_server *server);
/* Whether others than this machine reach it. */
bool http_is_exposed(const struct http_server *server);
size_t http_active(const struct http_server *server); /* requests that are not answered yet */
/* Before this all requests must have been answered or cancelled. */
void http_stop(struct http_server *server);

/* The value of a header; NULL: absent. */
const char *http_header(const struct http_request *request, const char *name);

/* A reply takes what is in *body and leaves it empty. content_type NULL: no such header. */
void http_reply(struct http_request *request, int status, const char *content_type,
                struct strbuf *body);
void http_reply_json(struct http_request *request, struct strbuf *body);
void http_reply_error(struct http_request *request, const struct api_error *err);

/* The reply to an earlier request. */
struct http_kept {
    int status;
    enum api_code error; /* API_OK: none */
    bool stream;         /* server-sent events */
    const char *data;    /* [length] */
    size_t length;
};
/* Replies the same again; copies the data. */
void http_reply_kept(struct http_request *request, const struct http_kept *kept);

/* Replies with server-sent events, which `read` makes until it says that they end. Its context is
 * the request. */
void http_reply_stream(struct http_request *request, MHD_ContentReaderCallback read);

/* Moves the body and what it has reserved to *body and *reserved, for work that outlives the
 * request. admission_body gives the reservation back. */
void http_take_body(struct http_request *request, struct strbuf *body, int64_t *reserved);

/* Ties the request to work on other threads. Takes over a reference of the ticket. */
void http_attach(struct http_request *request, struct ticket *ticket);
/* Unties it, and cancels the work if it is not done. */
void http_detach(struct http_request *request);
/* With the ticket's lock held: suspends the connection until the ticket wakes it. False: the client
 * has left, and the request is given up. */
bool http_wait(struct http_request *request);
/* Whether the ticket's work is done. If not, waits as http_wait does. */
bool http_work_done(struct http_request *request);
/* For logs and metrics, in `end`: the status of the reply. If none got out: 413 when the request
 * was too large, 408 when it did not come in time, 499 when the client has left. */
int http_status(const struct http_request *request);
void http_log(const struct http_request *request);
/* Closes the connection without a reply. */
void http_hang_up(struct http_request *request);
/* Shuts the socket down both ways; libmicrohttpd has still to notice. */
void http_shutdown(const struct http_request *request);

#endif
