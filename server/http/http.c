/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/http.h"

#include "lib/base/clock.h"
#include "server/http/connection.h"
#include "server/http/credentials.h"
#include "server/http/front.h"
#include "server/log.h"
#include "server/tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

enum { BODY_STEP_BYTES = 64 * 1024 };

struct http_server {
    struct front front;
    struct service *service;
    struct connections connections;
    struct http_options options;
    struct names own; /* names, as origin.h has them */
    _Atomic size_t active;
};

void http_shutdown(const struct http_request *request)
{
    shutdown(connection_fd(request->connection), SHUT_RDWR);
}

/* Work on other threads. */

static void resume(void *context)
{
    MHD_resume_connection(context);
}

void http_take_body(struct http_request *request, struct strbuf *body, int64_t *reserved)
{
    *body = request->body;
    *reserved = request->body_reserved;
    admission_received(&request->service->admission, request->tenant, request->body_reserved);
    request->body = (struct strbuf){0};
    request->body_reserved = 0;
}

void http_attach(struct http_request *request, struct ticket *ticket)
{
    ticket_lock(ticket);
    ticket->wake = resume;
    ticket->wake_context = request->connection;
    ticket_unlock(ticket);
    request->ticket = ticket;
    watcher_attach(request->server->connections.watcher, request->slot, ticket,
                   request->may_inform);
}

/* A client that is there ignores an interim reply (RFC 9110, section 15.2); one that has left
 * answers it with a reset. */
static bool probe(const struct http_request *request)
{
    static const char INTERIM[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct connection *peer = connection_of(request->connection);
    return peer && connection_send(peer, INTERIM, sizeof INTERIM - 1);
}

bool http_wait(struct http_request *request)
{
    /* If the client left before this, nobody waited for its wake-up call. */
    if (ticket_gone(request->ticket) ||
        (!request->replied && ticket_probed(request->ticket) && !probe(request))) {
        http_hang_up(request);
        return false;
    }
    MHD_suspend_connection(request->connection);
    ticket_wait(request->ticket);
    return true;
}

bool http_work_done(struct http_request *request)
{
    ticket_lock(request->ticket);
    bool done = request->ticket->done;
    if (!done)
        http_wait(request);
    ticket_unlock(request->ticket);
    return done;
}

void http_detach(struct http_request *request)
{
    struct ticket *ticket = request->ticket;
    if (!ticket)
        return;
    request->ticket = NULL;
    watcher_detach(request->server->connections.watcher, request->slot);
    ticket_lock(ticket);
    ticket->waiting = false;
    ticket_unlock(ticket);
    const struct http_options *options = &request->server->options;
    if (ticket_cancel(ticket, CANCEL_GONE))
        options->cancelled(options->context);
    ticket_release(ticket);
}

/* Requests. */

static void take_request_id(struct http_request *request)
{
    const char *given = http_header(request, "X-Request-Id");
    if (given && request_id_valid(given, strlen(given))) {
        snprintf(request->request_id, sizeof request->request_id, "%s", given);
        request->request_id_given = true;
        return;
    }
    connection_make_id(request->request_id);
}

static bool is_json(const char *content_type)
{
    static const char JSON[] = "application/json";
    size_t length = sizeof JSON - 1;
    return content_type && strncasecmp(content_type, JSON, length) == 0 &&
           (content_type[length] == 0 || content_type[length] == ';' ||
            content_type[length] == ' ');
}

/* What a page of another origin sends changes nothing, whatever key it has. */
static void check_origin(struct http_request *request)
{
    const char *origin = http_header(request, "Origin");
    const char *site = http_header(request, "Sec-Fetch-Site");
    bool reads = strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0 ||
                 strcmp(request->method, "OPTIONS") == 0;
    if (reads || origin_may_change(request->origins, origin, site, http_header(request, "Host")))
        return;
    api_error_clear(&request->error);
    api_error_set(&request->error, API_ORIGIN_NOT_ALLOWED, NULL,
                  "%s: %.200s: a web page of another origin may not send %.20s here; "
                  "--allowed-origins adds origins",
                  origin ? "Origin" : "Sec-Fetch-Site", origin ? origin : site, request->method);
}

static enum MHD_Result forget_key(void *context, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    (void)context, (void)kind;
    if (value && (strcasecmp(name, "Authorization") == 0 || strcasecmp(name, "X-Api-Key") == 0))
        explicit_bzero((char *)value, strlen(value));
    return MHD_YES;
}

/* A key that is taken away later is not to be found in memory that libmicrohttpd has freed. */
static void take_owner(struct http_request *request)
{
    struct auth *auth = credentials_auth(request->server->options.credentials);
    request->owner =
        auth_check(auth, http_header(request, "Authorization"), http_header(request, "X-Api-Key"));
    MHD_get_connection_values(request->connection, MHD_HEADER_KIND, forget_key, NULL);
}

/* Requests without a key that is known are one tenant, where keys are asked for. */
static uint64_t tenant_of(const struct http_request *request)
{
    if (auth_count(credentials_auth(request->server->options.credentials)) > 0)
        return tenant_of_key(request->owner);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return tenant_of_address(info ? info->client_addr : NULL);
}

/* Refuses what the headers alone tell. The body is then read and thrown away, so that the
 * connection lives on. */
static void check_headers(struct http_request *request, const char *path)
{
    struct api_error *err = &request->error;
    const struct http_options *options = &request->server->options;
    request->route = route_find(options->routes, request->method, path, request->parameter,
                                sizeof request->parameter, err);
    bool open = request->route && request->route->open;
    take_owner(request);
    request->tenant = tenant_of(request);
    if (strcmp(request->method, "OPTIONS") == 0 &&
        route_methods(options->routes, path, request->parameter, sizeof request->parameter)) {
        api_error_clear(err);
        request->asks_options = true;
        return;
    }
    if (request->owner < 0 && !open) {
        api_error_clear(err);
        api_error_set(err, API_INVALID_KEY, NULL,
                      "missing or wrong API key: send it as \"Authorization: Bearer KEY\" or "
                      "\"X-Api-Key: KEY\"");
    } else if (request->route && request->route->json &&
               !is_json(http_header(request, "Content-Type"))) {
        const char *type = http_header(request, "Content-Type");
        api_error_set(err, API_MEDIA_TYPE, NULL,
                      "Content-Type: expected application/json, got %s%s%s", type ? "\"" : "",
                      type ? type : "none", type ? "\"" : "");
    }
    const char *encoding = http_header(request, "Content-Encoding");
    if (request->route && (request->route->json || request->route->octets) && encoding &&
        strcasecmp(encoding, "identity") != 0)
        api_error_set(err, API_MEDIA_TYPE, NULL, "Content-Encoding: expected none, got \"%s\"",
                      encoding);
    check_origin(request);
}

static int64_t body_limit(const struct http_request *request)
{
    const struct service *service = request->service;
    return request->route && request->route->octets ? service->max_state_bytes
                                                    : service->max_body_bytes;
}

static void set_too_large(const struct http_request *request, struct api_error *err)
{
    api_error_set(err, API_BODY_TOO_LARGE, NULL, "the body is larger than %lld bytes",
                  (long long)body_limit(request));
}

static bool declared_too_large(struct http_request *request)
{
    const char *length = http_header(request, "Content-Length");
    return length && strtoull(length, NULL, 10) > (unsigned long long)body_limit(request);
}

/* The path of a request's target, which may be a whole URL (RFC 9112, section 3.2.2). */
static const char *path_of(const struct connection *peer, const char *target)
{
    if (!peer || !peer->absolute)
        return target;
    const char *path = strchr(strstr(target, "//") + 2, '/');
    return path ? path : "/";
}

/* Replies before the body has come. The connection is closed then. */
static enum MHD_Result refuse(struct http_request *request, const struct api_error *err)
{
    request->error = *err;
    http_reply_error(request, &request->error);
    return request->replied ? MHD_YES : MHD_NO;
}

/* What is no name may be read otherwise by a proxy; and a target that names its host names the same
 * (RFC 9112, sections 3.2 and 3.2.2). No web page reaches a Unix socket. */
static int check_host(const struct http_request *request, struct api_error *err)
{
    const char *host = http_header(request, "Host");
    const struct origin_rules *rules = request->origins;
    const struct connection *peer = connection_of(request->connection);
    const char *named = peer && peer->absolute ? peer->authority : NULL;
    if (named && !host)
        host = named;
    if (!origin_host_valid(host))
        return api_error_set(err, API_MALFORMED, NULL,
                             "Host: expected a name or an address, perhaps with a port, got "
                             "\"%.200s\"",
                             host);
    if (named && (!*named || strcasecmp(named, host) != 0))
        return api_error_set(err, API_MALFORMED, NULL,
                             "Host: expected %.200s, as the request line has it, got %.200s", named,
                             host);
    if (origin_host_allowed(rules, host) || (rules->hosts.count == 0 && peer && peer->by_file))
        return 0;
    return api_error_set(err, API_HOST_NOT_ALLOWED, NULL,
                         "Host: %.200s is not a name of this server; --allowed-hosts adds names",
                         host);
}

static int check_place(struct http_request *request, struct api_error *err)
{
    struct http_server *server = request->server;
    if ((request->route && request->route->vital) ||
        watcher_has_place(server->connections.watcher, request->slot))
        return 0;
    request->closes = true;
    return api_error_set(err, API_QUEUE_FULL, NULL,
                         "all %d connections that --max-connections allows are at work",
                         server->options.max_connections);
}

static enum MHD_Result begin_request(struct http_server *server, struct MHD_Connection *connection,
                                     const char *url, const char *method, const char *version,
                                     void **context)
{
    struct http_request *request = calloc(1, sizeof *request);
    if (!request)
        return MHD_NO;
    *context = request;
    request->connection = connection;
    request->server = server;
    request->service = server->service;
    request->origins = &server->options.origins;
    request->method = method;
    request->started = clock_seconds();
    struct connection *peer = connection_of(connection);
    const char *path = path_of(peer, url);
    request->slot = peer ? peer->slot : -1;
    request->may_inform = strcmp(version, MHD_HTTP_VERSION_1_1) == 0;
    if (peer) {
        peer->in_request = true;
        peer->request_id = request->request_id;
        peer->replied = false;
    }
    char clean[ROUTE_PATH_SIZE];
    snprintf(request->path, sizeof request->path, "%s", path);
    atomic_fetch_add(&server->active, 1);
    watcher_receiving(server->connections.watcher, request->slot);
    take_request_id(request);
    check_headers(request, route_clean(path, clean));
    struct api_error err = {0};
    if (check_host(request, &err) != 0)
        return refuse(request, &err);
    if (check_place(request, &err) != 0)
        return refuse(request, &err);
    if (declared_too_large(request)) {
        set_too_large(request, &err);
        return refuse(request, &err);
    }
    return MHD_YES;
}

/* Grows the body in steps whose memory is accounted for: all connections together have a budget. */
static int reserve_body(struct http_request *request, size_t size)
{
    while (request->body_reserved < (int64_t)(request->body.length + size)) {
        if (!admission_upload(&request->service->admission, request->tenant, request->body_reserved,
                              BODY_STEP_BYTES))
            return api_error_set(&request->error, API_QUEUE_FULL, NULL,
                                 "too many request bodies are being received");
        request->body_reserved += BODY_STEP_BYTES;
    }
    return 0;
}

static void release_body(struct http_request *request)
{
    struct strbuf body;
    int64_t reserved;
    http_take_body(request, &body, &reserved);
    strbuf_clear(&body);
    admission_body(&request->service->admission, -reserved);
}

static enum MHD_Result take_body(struct http_request *request, const char *bytes, size_t size)
{
    /* Only a chunked body gets here without having said its length: there is no way to reply in
     * the middle of it. */
    request->received += size;
    if (request->received > (uint64_t)body_limit(request)) {
        api_error_clear(&request->error);
        set_too_large(request, &request->error);
        return MHD_NO;
    }
    if (request->error.code != API_OK || !request->route ||
        !(request->route->json || request->route->octets))
        return MHD_YES;
    if (reserve_body(request, size) == 0)
        strbuf_append(&request->body, bytes, size);
    if (request->body.failed)
        api_error_set(&request->error, API_OUT_OF_MEMORY, NULL, "out of memory for the body");
    if (request->error.code != API_OK)
        release_body(request);
    return MHD_YES;
}

static enum MHD_Result run(struct http_request *request)
{
    if (request->ticket && ticket_gone(request->ticket))
        return MHD_NO;
    if (!request->complete) {
        request->complete = true;
        if (!watcher_answering(request->server->connections.watcher, request->slot))
            return MHD_NO;
    }
    if (request->error.code != API_OK)
        http_reply_error(request, &request->error);
    else if (request->asks_options)
        http_reply_options(request);
    else
        request->route->handle(request);
    release_body(request); /* it has been parsed or taken by now */
    return request->hang_up ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **request_context)
{
    struct http_request *request = *request_context;
    if (!request)
        return begin_request(context, connection, url, method, version, request_context);
    if (*upload_size) {
        enum MHD_Result result = take_body(request, upload, *upload_size);
        *upload_size = 0;
        return result;
    }
    if (request->replied)
        return MHD_YES;
    return run(request);
}

int http_status(const struct http_request *request)
{
    if (!request->aborted)
        return request->status;
    if (request->error.code == API_BODY_TOO_LARGE || request->error.code == API_MALFORMED)
        return api_error_row(request->error.code)->status;
    return request->timed_out ? 408 : 499;
}

const char *http_traceparent(const struct http_request *request)
{
    static const char FORM[] = "hh-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";
    const char *given = http_header(request, "traceparent");
    if (!given || strlen(given) != sizeof FORM - 1)
        return NULL;
    for (size_t i = 0; FORM[i]; i++)
        if (FORM[i] == 'h' ? !strchr("0123456789abcdef", given[i]) : given[i] != FORM[i])
            return NULL;
    return given;
}

void http_log(const struct http_request *request)
{
    struct log_line line;
    bool quiet = request->route && request->route->quiet;
    log_begin(&line, quiet ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, "request");
    log_text(&line, "id", request->request_id);
    log_text(&line, "traceparent", http_traceparent(request));
    log_text(&line, "method", request->method);
    log_text(&line, "path", request->path);
    log_int(&line, "status", http_status(request));
    log_text(&line, "warning", reply_warnings_first(request->warnings));
    if (request->replayed)
        log_int(&line, "replayed", 1);
    log_ms(&line, "ms", (clock_seconds() - request->started) * 1e3);
    if (request->error.code != API_OK)
        log_text(&line, "error", api_error_row(request->error.code)->code);
    else if (request->timed_out)
        log_text(&line, "error", "request_timeout");
    log_end(&line);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **request_context,
                         enum MHD_RequestTerminationCode code)
{
    struct http_server *server = context;
    struct http_request *request = *request_context;
    if (!request)
        return;
    *request_context = NULL;
    struct connection *peer = connection_of(connection);
    if (peer) {
        peer->in_request = false;
        if (peer->receiver.refused)
            request->error = peer->receiver.error;
    }
    request->aborted = code != MHD_REQUEST_TERMINATED_COMPLETED_OK;
    request->timed_out =
        request->aborted && watcher_timed_out(server->connections.watcher, request->slot);
    if (request->route && request->route->end)
        request->route->end(request);
    else
        http_log(request);
    http_detach(request);
    release_body(request);
    watcher_idle(server->connections.watcher, request->slot);
    free(request);
    atomic_fetch_sub(&server->active, 1);
    if (peer)
        receive_answered(connection_fd(connection), &peer->receiver);
}

static void log_hosts(const struct origin_rules *rules)
{
    const struct names *lists[] = {&rules->own, &rules->hosts};
    struct strbuf names = {0};
    for (size_t list = 0; list < 2; list++)
        for (size_t i = 0; i < lists[list]->count; i++)
            strbuf_printf(&names, ", %s", lists[list]->items[i]);
    strbuf_append(&names, "", 1);
    log_message(LOG_LEVEL_INFO,
                "without --api-key requests may name as their Host: an address, localhost%s; "
                "--allowed-hosts adds names",
                names.failed ? "" : names.data);
    strbuf_clear(&names);
}

/* No page has a key, unless its user gives it one. */
static int set_host_rules(struct http_server *server, struct error *err)
{
    const struct http_options *options = &server->options;
    struct origin_rules *rules = &server->options.origins;
    bool keyless = auth_count(credentials_auth(options->credentials)) == 0;
    if (origin_add_own(&server->own, options->hosts, err))
        return -1;
    rules->own = server->own;
    rules->checks_host = rules->hosts.count > 0 || keyless;
    rules->strict = keyless && server->front.exposed;
    if (rules->strict)
        log_hosts(rules);
    return 0;
}

static int start(struct http_server *server, struct error *err)
{
    const struct http_options *options = &server->options;
    struct watcher_options watching = {options->max_connections, options->request_timeout_s,
                                       options->cancelled, options->context};
    const struct front_options front = {.hosts = options->hosts,
                                        .port = options->port,
                                        .socket_mode = options->socket_mode,
                                        .threads = options->threads,
                                        .max_connections = options->max_connections,
                                        .idle_timeout_s = options->idle_timeout_s,
                                        .tls = credentials_tls(options->credentials) != NULL,
                                        .request = on_request,
                                        .completed = on_completed,
                                        .context = server,
                                        .connection = connection_notify,
                                        .target = connection_target,
                                        .connection_context = &server->connections};
    server->connections.service = server->service;
    server->connections.front = &server->front;
    server->connections.tls = credentials_tls(options->credentials);
    if (front_open(&server->front, &front, err) || receive_start(err) ||
        watcher_create(&server->connections.watcher, &watching, err))
        return -1;
    if (set_host_rules(server, err))
        return -1;
    return front_serve(&server->front, &front, err);
}

int http_start(struct http_server **out, struct service *service,
               const struct http_options *options, struct error *err)
{
    struct http_server *server = calloc(1, sizeof *server);
    if (!server)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the HTTP server");
    server->service = service;
    server->options = *options;
    if (start(server, err)) {
        http_stop(server);
        return -1;
    }
    *out = server;
    return 0;
}

const char *http_addresses(const struct http_server *server)
{
    return server->front.addresses.data;
}

const char *http_page(const struct http_server *server)
{
    return server->front.page.data;
}

bool http_is_exposed(const struct http_server *server)
{
    return server->front.exposed;
}

size_t http_active(const struct http_server *server)
{
    return atomic_load(&server->active);
}

void http_stop(struct http_server *server)
{
    if (!server)
        return;
    front_close(&server->front);
    watcher_free(server->connections.watcher);
    names_clear(&server->own);
    free(server);
}
