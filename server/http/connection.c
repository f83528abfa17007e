/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/connection.h"

#include "lib/base/clock.h"
#include "server/http/front.h"
#include "server/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>

/* Enough for a few frames: more would only delay the moment a slow reader is noticed. */
enum { SEND_BUFFER_BYTES = 128 * 1024 };

struct connection *connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

int connection_fd(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

bool connection_send(struct connection *peer, const char *bytes, size_t length)
{
    if (peer->session) /* what it could not send whole would be taken for a part of the reply */
        return gnutls_record_send(peer->session, bytes, length) == (ssize_t)length;
    ssize_t sent = send(peer->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == (ssize_t)length || (sent < 0 && errno == EAGAIN);
}

void connection_make_id(char id[REQUEST_ID_SIZE])
{
    uint64_t random[2] = {0, 0};
    if (getrandom(random, sizeof random, 0) < 0)
        random[0] = (uint64_t)(clock_seconds() * 1e9);
    snprintf(id, REQUEST_ID_SIZE, "req-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
}

static void log_refusal(const char *id, const struct api_error *err)
{
    struct log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "request");
    log_text(&line, "id", id);
    log_int(&line, "status", api_error_row(err->code)->status);
    log_text(&line, "error", api_error_row(err->code)->code);
    log_end(&line);
}

/* libmicrohttpd has not seen a whole request here, so the reply is written past it. */
static void refuse(struct receiver *receiver)
{
    struct connection *peer = receiver->context;
    const struct api_error_row *row = api_error_row(receiver->error.code);
    char id[REQUEST_ID_SIZE];
    struct strbuf body = {0}, reply = {0};
    peer->linger = true;
    if (peer->in_request && peer->replied) /* early: the connection is being closed */
        return;
    if (peer->in_request)
        snprintf(id, sizeof id, "%s", peer->request_id);
    else
        connection_make_id(id);
    api_error_encode(&body, &receiver->error);
    strbuf_printf(&reply,
                  "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\n"
                  "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                  row->status, MHD_get_reason_phrase_for((unsigned)row->status), id, body.length);
    strbuf_append(&reply, body.data, body.length);
    /* All earlier replies are out, so there is room; who left does not wait for it. */
    if (!body.failed && !reply.failed)
        connection_send(peer, reply.data, reply.length);
    strbuf_clear(&body);
    strbuf_clear(&reply);
    if (!peer->in_request) /* else its end is logged */
        log_refusal(id, &receiver->error);
}

/* What comes after a handshake is a request, which has its own time. */
static int on_handshake(gnutls_session_t session, unsigned type, unsigned when, unsigned incoming,
                        const gnutls_datum_t *message)
{
    const struct connection *peer = gnutls_session_get_ptr(session);
    (void)type, (void)when, (void)message;
    if (incoming)
        watcher_secured(peer->all->watcher, peer->slot);
    return 0;
}

static void begin_tls(struct connection *peer)
{
    peer->identity = tls_begin(peer->all->tls, peer->session);
    peer->receiver.secure = true;
    gnutls_session_set_ptr(peer->session, peer);
    gnutls_handshake_set_hook_function(peer->session, GNUTLS_HANDSHAKE_FINISHED, GNUTLS_HOOK_POST,
                                       on_handshake);
}

static void find_kind(struct connection *peer, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *from =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const union MHD_ConnectionInfo *secured =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    peer->by_file = from && from->client_addr->sa_family == AF_UNIX;
    if (secured) {
        peer->session = secured->tls_session;
        begin_tls(peer);
    }
}

static void begin(struct connections *all, struct MHD_Connection *connection, void **socket_context)
{
    struct connection *peer = calloc(1, sizeof *peer);
    int size = SEND_BUFFER_BYTES;
    if (!peer)
        return;
    peer->all = all;
    peer->fd = connection_fd(connection);
    peer->receiver.refuse = refuse;
    peer->receiver.context = peer;
    find_kind(peer, connection);
    if (receive_watch(peer->fd, &peer->receiver) != 0) {
        tls_end(peer->identity);
        free(peer);
        return;
    }
    setsockopt(peer->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    peer->slot = watcher_add(all->watcher, peer->fd);
    *socket_context = peer;
}

static void end(struct connection *peer)
{
    receive_forget(peer->fd);
    watcher_remove(peer->all->watcher, peer->slot, peer->linger);
    tls_end(peer->identity);
    free(peer);
}

void connection_notify(void *context, struct MHD_Connection *connection, void **socket_context,
                       enum MHD_ConnectionNotificationCode code)
{
    struct connections *all = context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        atomic_fetch_add(&all->service->metrics.connections, 1);
        acceptor_begun(all->front->acceptor);
        begin(all, connection, socket_context);
        /* Nobody looks at what comes there, so nothing of it is taken. */
        if (!*socket_context)
            shutdown(connection_fd(connection), SHUT_RDWR);
        return;
    }
    if (*socket_context)
        end(*socket_context);
    *socket_context = NULL;
    atomic_fetch_sub(&all->service->metrics.connections, 1);
    acceptor_ended(all->front->acceptor);
}

/* RFC 9112, section 3.2.2. */
static void keep_authority(struct connection *peer, const char *target)
{
    static const char *const schemes[] = {"http://", "https://"};
    peer->absolute = false;
    *peer->authority = 0;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t scheme = strlen(schemes[i]);
        if (strncasecmp(target, schemes[i], scheme) != 0)
            continue;
        size_t length = strcspn(target + scheme, "/?");
        peer->absolute = true;
        if (length < sizeof peer->authority)
            snprintf(peer->authority, sizeof peer->authority, "%.*s", (int)length, target + scheme);
    }
}

/* libmicrohttpd unescapes the target later. Of a Unix socket nobody counts the bytes: a request's
 * time begins with its first line. */
void *connection_target(void *context, const char *target, struct MHD_Connection *connection)
{
    const struct connections *all = context;
    struct connection *peer = connection_of(connection);
    if (peer)
        keep_authority(peer, target);
    if (peer && peer->by_file)
        watcher_receiving(all->watcher, peer->slot);
    return NULL;
}
