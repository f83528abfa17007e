/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts connections for libmicrohttpd, which listens on one socket only: a thread that accepts
 * from all listeners, in plain or with TLS, and keeps to the limit of connections and some more,
 * for which others have to go (watcher.h). Those that come beyond it wait in the kernel's line. */
#ifndef SERVER_HTTP_ACCEPTOR_H
#define SERVER_HTTP_ACCEPTOR_H

#include "lib/base/error.h"
#include "server/http/listen.h"

#include <microhttpd.h>

struct acceptor;

struct acceptor_options {
    const struct listeners *listeners; /* borrowed, as what follows */
    struct MHD_Daemon *plain, *secure; /* secure takes what comes by TCP; NULL: plain takes it */
    int max_connections;               /* for which make room: watcher.h */
};

/* Sets *out before the first connection comes. */
int acceptor_start(struct acceptor **out, const struct acceptor_options *options,
                   struct error *err);
/* From now on nobody is accepted. */
void acceptor_stop(struct acceptor *acceptor);
void acceptor_free(struct acceptor *acceptor); /* after acceptor_stop and the daemons' end */

/* Any thread: a connection that was accepted begins, and ends. */
void acceptor_begun(struct acceptor *acceptor);
void acceptor_ended(struct acceptor *acceptor);

#endif
