/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/connection.h"

#include "engine/base/clock.h"
#include "server/log.h"

#include <stdio.h>
#include <stdlib.h>
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
static void refuse(struct receiver *receiver, int fd)
{
    struct connection *peer = receiver->context;
    const struct api_error_row *row = api_error_row(receiver->error.code);
    char id[REQUEST_ID_SIZE];
    struct strbuf body = {0}, reply = {0};
    peer->linger = true;
    if (peer->in_request && peer->replied) /* early: the connection is being closed */
        return;
    connection_make_id(id);
    api_error_encode(&body, &receiver->error);
    strbuf_printf(&reply,
                  "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\n"
                  "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                  row->status, MHD_get_reason_phrase_for((unsigned)row->status), id, body.length);
    strbuf_append(&reply, body.data, body.length);
    /* All earlier replies are out, so there is room; who left does not wait for it. */
    if (!body.failed && !reply.failed)
        send(fd, reply.data, reply.length, MSG_NOSIGNAL | MSG_DONTWAIT);
    strbuf_clear(&body);
    strbuf_clear(&reply);
    if (!peer->in_request) /* else its end is logged */
        log_refusal(id, &receiver->error);
}

static void begin(struct connections *all, int fd, void **socket_context)
{
    struct connection *peer = calloc(1, sizeof *peer);
    int size = SEND_BUFFER_BYTES;
    if (!peer)
        return;
    peer->all = all;
    peer->receiver.refuse = refuse;
    peer->receiver.context = peer;
    if (receive_watch(fd, &peer->receiver) != 0) {
        free(peer);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    peer->slot = watcher_add(all->watcher, fd);
    atomic_fetch_add(&all->service->metrics.connections, 1);
    *socket_context = peer;
}

static void end(struct connection *peer, int fd)
{
    receive_forget(fd);
    watcher_remove(peer->all->watcher, peer->slot, peer->linger);
    atomic_fetch_sub(&peer->all->service->metrics.connections, 1);
    free(peer);
}

void connection_notify(void *context, struct MHD_Connection *connection, void **socket_context,
                       enum MHD_ConnectionNotificationCode code)
{
    int fd = connection_fd(connection);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        begin(context, fd, socket_context);
        /* Nobody looks at what comes there, so nothing of it is taken. */
        if (!*socket_context)
            shutdown(fd, SHUT_RDWR);
    } else if (*socket_context) {
        end(*socket_context, fd);
        *socket_context = NULL;
    }
}
