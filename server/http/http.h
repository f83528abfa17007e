/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP by libmicrohttpd. Every request goes through the same steps whatever it asks for: id, key,
 * route, a body within bounds, a reply. Threads of the pool never block: the connection of a
 * request that waits for other threads is suspended. */
#ifndef SERVER_HTTP_HTTP_H
#define SERVER_HTTP_HTTP_H

#include "server/http/http_reply.h"

#include <sys/types.h>

struct credentials;

struct http_options {
    const struct names *hosts; /* listen.h */
    int port;                  /* 0: any */
    mode_t socket_mode;        /* of a Unix socket's file */
    int threads;
    int max_connections;
    double request_timeout_s, idle_timeout_s;
    struct credentials *credentials; /* borrowed, as what follows */
    struct origin_rules origins;     /* its lists; http_start decides what is checked */
    const struct route_table *routes;
    void (*cancelled)(void *context); /* from any thread: a request's ticket was cancelled */
    void *context;
};

/* Binds and listens. From now on requests are answered. */
int http_start(struct http_server **out, struct service *service,
               const struct http_options *options, struct error *err);
/* "http://127.0.0.1:8000, http://[::1]:8000, unix:/run/regla.sock": where it listens. */
const char *http_addresses(const struct http_server *server);
/* "http://127.0.0.1:8000/": where a browser on this machine finds the page; NULL: nowhere. */
const char *http_page(const struct http_server *server);
/* Whether others than this machine reach it. */
bool http_is_exposed(const struct http_server *server);
size_t http_active(const struct http_server *server); /* requests that are not answered yet */
/* Before this all requests must have been answered or cancelled. */
void http_stop(struct http_server *server);

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
/* The request's traceparent (W3C Trace Context, level 1), for the log; NULL: it has none, or none
 * that is one. */
const char *http_traceparent(const struct http_request *request);
/* Shuts the socket down both ways; libmicrohttpd has still to notice. */
void http_shutdown(const struct http_request *request);

#endif
