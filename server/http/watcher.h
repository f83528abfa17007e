/* SPDX-License-Identifier: Apache-2.0 */
/* Watches the sockets of all connections in addition to libmicrohttpd. libmicrohttpd does not look
 * at a socket while its connection is suspended, has no deadline for a whole request, and may
 * forget to look.
 *
 * - A client that closes cancels the ticket of its request. TCP does not tell that from a client
 * that only sends nothing more and waits: so the client is sent something, and one that has left
 * answers with a reset.
 * - A request whose last byte has not come `request_timeout` after its first is cut off.
 * - Where all places are taken, the connection that was idle longest, or that has sent a part of a
 *   request for longest, goes for a new one. One whose request is at work never goes.
 * - Every 200 ms the watcher shows unread bytes of a request to libmicrohttpd again, which may be
 *   waiting with 128 events in hand.
 * - A stream that has been silent for long is woken to say that it is there (ticket_due).
 * - After an early reply the watcher reads the rest of the body for a while and throws it away.
 *   Closing a socket with unread bytes resets it, and the client would never see the reply. */
#ifndef SERVER_HTTP_WATCHER_H
#define SERVER_HTTP_WATCHER_H

#include "lib/base/error.h"
#include "server/ticket.h"

#include <stdbool.h>

struct watcher;

/* Beyond max_connections, for those that find all others at work. */
enum { WATCHER_SPARE_PLACES = 16 };

struct watcher_options {
    int max_connections;
    double request_timeout_s;
    void (*cancelled)(void *context); /* called after it has cancelled a ticket */
    void *context;
};

int watcher_create(struct watcher **out, const struct watcher_options *options, struct error *err);
void watcher_free(struct watcher *watcher);

/* Adds a connection, for which another one may have to go. Returns its slot, or -1 when none is
 * free. fd is borrowed until watcher_remove. */
int watcher_add(struct watcher *watcher, int fd);
/* Removes a connection. linger: its last reply went out before its request was read. */
void watcher_remove(struct watcher *watcher, int slot, bool linger);

/* Whether the connection has one of the max_connections places. If not, all of these are at work.
 */
bool watcher_has_place(struct watcher *watcher, int slot);

/* Say in which phase its request is: its bytes come in, all are there, it has been answered. False:
 * the connection has been cut, so there is nobody to work for. */
void watcher_receiving(struct watcher *watcher, int slot);
bool watcher_answering(struct watcher *watcher, int slot);
void watcher_idle(struct watcher *watcher, int slot);
/* Its TLS handshake is over: what has not been read yet begins a request. The handshake's own bytes
 * had the time of one. */
void watcher_secured(struct watcher *watcher, int slot);
/* Whether the connection was cut because its request did not come in time, or before its place was
 * needed. */
bool watcher_timed_out(struct watcher *watcher, int slot);

/* The ticket to cancel when the client leaves; it may have left already. Where the client only
 * closes its half of the connection the ticket is probed (ticket.h), or cancelled too if it may not
 * be. Detach it before the request gives up its reference. */
void watcher_attach(struct watcher *watcher, int slot, struct ticket *ticket, bool probes);
void watcher_detach(struct watcher *watcher, int slot);

#endif
