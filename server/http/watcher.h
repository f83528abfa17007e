/* SPDX-License-Identifier: Apache-2.0 */
/* Watches the sockets of all connections beside libmicrohttpd, which does not look at one while it
 * is suspended, knows no deadline for a whole request, and may forget to look.
 *
 * - A peer that closes (or half-closes: shutdown(SHUT_WR) counts as leaving, as with nginx and
 *   uvicorn) cancels the ticket of the request that is being answered.
 * - A request whose last byte has not come `request_timeout` after its first is cut off.
 * - Bytes of a request that are unread, as seen every 200 ms, are shown to libmicrohttpd again: it
 *   may be waiting with 128 events in hand.
 * - After an early reply the rest of the body is read and thrown away for a while: closing a socket
 *   with unread bytes resets it, and the client would never see the reply. */
#ifndef SERVER_HTTP_WATCHER_H
#define SERVER_HTTP_WATCHER_H

#include "engine/base/error.h"
#include "server/ticket.h"

#include <stdbool.h>

struct watcher;

struct watcher_options {
    int max_connections;
    double request_timeout_s;
    void (*cancelled)(void *context); /* called after a ticket was cancelled */
    void *context;
};

int watcher_create(struct watcher **out, const struct watcher_options *options, struct error *err);
void watcher_free(struct watcher *watcher);

/* A connection begins; returns its slot, or -1 when there is none. fd is borrowed until
 * watcher_remove. */
int watcher_add(struct watcher *watcher, int fd);
/* It ends. linger: its last reply went out before its request was read. */
void watcher_remove(struct watcher *watcher, int slot, bool linger);

/* Where its request stands: bytes come in, all are there, it has been answered. */
void watcher_receiving(struct watcher *watcher, int slot);
void watcher_answering(struct watcher *watcher, int slot);
void watcher_idle(struct watcher *watcher, int slot);
/* Whether its request did not come in time, so that the connection was cut. */
bool watcher_timed_out(struct watcher *watcher, int slot);

/* The ticket to cancel when the peer leaves; it may have left already. Detached before the request
 * gives up its reference. */
void watcher_attach(struct watcher *watcher, int slot, struct ticket *ticket);
void watcher_detach(struct watcher *watcher, int slot);

#endif
