/* SPDX-License-Identifier: Apache-2.0 */
/* The side of the HTTP server that the network sees: its listeners, who accepts from them, and the
 * threads of libmicrohttpd that serve what was accepted, in plain or with TLS. */
#ifndef SERVER_HTTP_FRONT_H
#define SERVER_HTTP_FRONT_H

#include "api/strbuf.h"
#include "server/http/acceptor.h"
#include "server/http/listen.h"

#include <microhttpd.h>

struct front_options {
    const struct names *hosts; /* listen.h; borrowed until front_open returns */
    int port;                  /* 0: any */
    mode_t socket_mode;        /* of a Unix socket's file */
    int threads, max_connections;
    double idle_timeout_s;
    bool tls; /* but for Unix sockets */
    MHD_AccessHandlerCallback request;
    MHD_RequestCompletedCallback completed;
    void *context; /* of both */
    /* A connection begins or ends: gives it a certificate, tells the acceptor. It has received the
     * first line of a request. */
    MHD_NotifyConnectionCallback connection;
    void *(*target)(void *context, const char *target, struct MHD_Connection *connection);
    void *connection_context; /* of both */
};

/* Zero-initialise; front_close ends it, in every state. */
struct front {
    struct listeners listeners;
    struct MHD_Daemon *plain, *secure; /* NULL: no listener needs it */
    struct acceptor *acceptor;
    struct strbuf addresses; /* "http://127.0.0.1:8000, unix:/run/regla.sock", and a NUL */
    struct strbuf page;      /* "http://127.0.0.1:8000/", for a browser here, and a NUL; or empty */
    bool exposed;            /* others than this machine reach it */
};

/* Binds, so that connections come, which wait until front_serve. */
int front_open(struct front *front, const struct front_options *options, struct error *err);
int front_serve(struct front *front, const struct front_options *options, struct error *err);
/* No connection may be suspended. */
void front_close(struct front *front);

#endif
