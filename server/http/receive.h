/* SPDX-License-Identifier: Apache-2.0 */
/* What libmicrohttpd receives goes through wire.h first. It has no hook for that, but it calls
 * recv, or with TLS gnutls_record_recv, and a program may define such a function itself: for all
 * its libraries, this one is called.
 *
 * Why not its own strictness: with MHD_OPTION_STRICT_FOR_CLIENT 0.9.75 (Debian 12) still takes two
 * Content-Lengths, folded lines, a bare LF, a bare CR and a NUL in a header, and leaves unknown
 * Transfer-Encodings without an answer (tests/http/test_framing.py). Why not a socket pair behind
 * the acceptor: it would take TLS and each byte's way out of the library, too. */
#ifndef SERVER_HTTP_RECEIVE_H
#define SERVER_HTTP_RECEIVE_H

#include "server/http/wire.h"

/* One connection, as long as it is watched. */
struct receiver {
    struct wire wire;
    struct api_error error; /* its code is API_OK until a request is malformed */
    uint64_t answered;      /* requests */
    bool refused;           /* the reply has been sent */
    bool closed;            /* the client sends nothing more */
    bool secure;            /* it comes through TLS */
    /* Sends the reply of a malformed request. Called on the thread that serves the connection, when
     * replies to earlier requests are out. */
    void (*refuse)(struct receiver *receiver);
    void *context;
};

/* Once in a program, before the others. ERROR_UNSUPPORTED: our recv is not what libraries call. */
int receive_start(struct error *err);
/* From now on what comes on fd is looked at. -1: there are too many descriptors. */
int receive_watch(int fd, struct receiver *receiver);
/* A reply is out. */
void receive_answered(int fd, struct receiver *receiver);
/* Before fd is closed. */
void receive_forget(int fd);

#endif
