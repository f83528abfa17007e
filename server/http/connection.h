/* SPDX-License-Identifier: Apache-2.0 */
/* A connection from its beginning to its end: watched, and refused where what comes is no HTTP. */
#ifndef SERVER_HTTP_CONNECTION_H
#define SERVER_HTTP_CONNECTION_H

#include "api/request.h"
#include "server/http/origin.h"
#include "server/http/receive.h"
#include "server/http/tls.h"
#include "server/http/watcher.h"
#include "server/service.h"

#include <microhttpd.h>

struct front;

/* Of a server. */
struct connections {
    struct service *service;
    struct watcher *watcher;
    struct tls *tls; /* of those with TLS; NULL: there are none */
    const struct front *front;
};

/* libmicrohttpd's context of a socket. */
struct connection {
    struct connections *all;
    int slot;               /* in the watcher's table */
    bool linger;            /* at its end, what still comes is read for a while */
    bool in_request;        /* a request's head has been read, and it has not ended */
    const char *request_id; /* of that */
    bool replied;           /* its reply is under way, or out */
    int fd;
    bool by_file;                     /* through a Unix socket */
    bool absolute;                    /* the target of its request is a whole URL, with a host: */
    char authority[ORIGIN_HOST_SIZE]; /* as it was sent; empty: none, or one that is too long */
    gnutls_session_t session;         /* NULL: without TLS */
    struct tls_identity *identity;    /* its certificate */
    struct receiver receiver;
};

/* NULL: there was no memory for it, when it began. */
struct connection *connection_of(struct MHD_Connection *connection);
int connection_fd(struct MHD_Connection *connection);

/* Sends bytes past libmicrohttpd, on the thread that serves the connection, while it sends nothing.
 * False: the client has left. */
bool connection_send(struct connection *peer, const char *bytes, size_t length);

/* For libmicrohttpd; context: struct connections. A connection begins or ends; it has received the
 * first line of a request. */
void connection_notify(void *context, struct MHD_Connection *connection, void **socket_context,
                       enum MHD_ConnectionNotificationCode code);
void *connection_target(void *context, const char *target, struct MHD_Connection *connection);

/* A new name for a request. */
void connection_make_id(char id[REQUEST_ID_SIZE]);

#endif
