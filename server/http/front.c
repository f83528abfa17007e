/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/front.h"

#include "server/http/tls.h"
#include "server/http/watcher.h"
#include "server/log.h"

#include <gnutls/abstract.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A daemon's threads share its limit, and connections are not even between them. The acceptor keeps
 * to the limit of all. */
enum { SPARE_CONNECTIONS = 64 };

static void on_log(void *context, const char *format, va_list args)
{
    (void)context;
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = 0;
    log_message(LOG_LEVEL_DEBUG, "libmicrohttpd: %s", text);
}

/* A path with a NUL stays escaped, as it was sent, and so names nothing. Unescaped, the NUL would
 * end it. */
static size_t unescape(void *context, struct MHD_Connection *connection, char *text)
{
    (void)context;
    (void)connection;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

/* Of a connection that has none, for lack of memory: its handshake fails. */
static int no_certificate(gnutls_session_t session, const gnutls_datum_t *names, int num_names,
                          const gnutls_pk_algorithm_t *algorithms, int num_algorithms,
                          gnutls_pcert_st **certificate, unsigned *length, gnutls_privkey_t *key)
{
    (void)session, (void)names, (void)num_names, (void)algorithms, (void)num_algorithms;
    (void)certificate, (void)length, (void)key;
    return -1;
}

static struct MHD_Daemon *start_daemon(const struct front_options *options, bool secure)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     MHD_USE_NO_LISTEN_SOCKET | (secure ? MHD_USE_TLS : 0);
    struct MHD_OptionItem secured[] = {{MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)TLS_PRIORITIES},
                                       {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)no_certificate},
                                       {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem items[] = {
        {MHD_OPTION_CONNECTION_LIMIT,
         options->max_connections + SPARE_CONNECTIONS * options->threads, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)(options->idle_timeout_s + 0.999), NULL},
        {MHD_OPTION_UNESCAPE_CALLBACK, (intptr_t)unescape, NULL},
        /* A pool of one thread is none. */
        {MHD_OPTION_THREAD_POOL_SIZE, options->threads > 1 ? options->threads : 0, NULL},
        {secure ? MHD_OPTION_ARRAY : MHD_OPTION_END, 0, secured},
        {MHD_OPTION_END, 0, NULL}};
    return MHD_start_daemon(flags, 0, NULL, NULL, options->request, options->context,
                            MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_URI_LOG_CALLBACK,
                            options->target, options->connection_context,
                            MHD_OPTION_NOTIFY_COMPLETED, options->completed, options->context,
                            MHD_OPTION_NOTIFY_CONNECTION, options->connection,
                            options->connection_context, MHD_OPTION_ARRAY, items, MHD_OPTION_END);
}

/* Where a browser on this machine finds the page: all addresses together are no address. */
static void write_page(struct front *front, const char *scheme, const char *address)
{
    bool any = strncmp(address, "0.0.0.0:", 8) == 0 || strncmp(address, "[::]:", 5) == 0;
    strbuf_printf(&front->page, "%s%s%s/", scheme, any ? "localhost" : "",
                  any ? strrchr(address, ':') : address);
    strbuf_append(&front->page, "", 1);
}

static void write_addresses(struct front *front, bool tls)
{
    for (size_t i = 0; i < front->listeners.count; i++) {
        const struct listener *listener = &front->listeners.items[i];
        const char *scheme = listener->is_file ? "" : tls ? "https://" : "http://";
        strbuf_printf(&front->addresses, "%s%s%s", i ? ", " : "", scheme, listener->address);
        front->exposed |= !listener->loopback;
        if (!listener->is_file && front->page.length == 0)
            write_page(front, scheme, listener->address);
    }
    strbuf_append(&front->addresses, "", 1);
}

int front_open(struct front *front, const struct front_options *options, struct error *err)
{
    if (listeners_open(&front->listeners, options->hosts, options->port, options->socket_mode, err))
        return -1;
    write_addresses(front, options->tls);
    return front->addresses.failed || front->page.failed
               ? error_set(err, ERROR_NO_MEMORY, "out of memory")
               : 0;
}

int front_serve(struct front *front, const struct front_options *options, struct error *err)
{
    bool tcp = false, files = false;
    for (size_t i = 0; i < front->listeners.count; i++) {
        tcp |= !front->listeners.items[i].is_file;
        files |= front->listeners.items[i].is_file;
    }
    bool plain = files || (tcp && !options->tls), secure = tcp && options->tls;
    front->plain = plain ? start_daemon(options, false) : NULL;
    front->secure = secure ? start_daemon(options, true) : NULL;
    if ((plain && !front->plain) || (secure && !front->secure))
        return error_set(err, ERROR_IO, "cannot start the threads of the HTTP server");
    struct acceptor_options accepting = {&front->listeners, front->plain, front->secure,
                                         options->max_connections + WATCHER_SPARE_PLACES};
    return acceptor_start(&front->acceptor, &accepting, err);
}

void front_close(struct front *front)
{
    if (front->acceptor)
        acceptor_stop(front->acceptor);
    listeners_close(&front->listeners);
    if (front->plain)
        MHD_stop_daemon(front->plain);
    if (front->secure)
        MHD_stop_daemon(front->secure);
    acceptor_free(front->acceptor);
    strbuf_clear(&front->addresses);
    strbuf_clear(&front->page);
}
