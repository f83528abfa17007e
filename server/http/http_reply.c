/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/http_reply.h"

#include "server/http/connection.h"

#include <stdio.h>
#include <string.h>

enum { STREAM_BLOCK_BYTES = 8192 };

static const char EVENT_STREAM[] = "text/event-stream; charset=utf-8";

/* Lets the page that sent the request read the reply, if it may (Fetch, section 3.2). */
static bool set_origin_headers(const struct http_request *request, struct MHD_Response *response)
{
    const struct origin_rules *rules = request->origins;
    const char *allowed = origin_allowed(rules, http_header(request, "Origin"));
    if (rules->origins.count > 0)
        MHD_add_response_header(response, "Vary", "Origin");
    if (!allowed)
        return false;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", allowed);
    MHD_add_response_header(response, "Access-Control-Expose-Headers",
                            "X-Request-Id, request-id, Retry-After, Idempotent-Replayed, "
                            "x-should-retry, X-Regla-Warning, X-Regla-Cache-Miss");
    return true;
}

static void tell_warnings(const struct http_request *request, struct MHD_Response *response)
{
    struct metrics *metrics = &request->service->metrics;
    char header[REPLY_WARNINGS_HEADER_SIZE];
    reply_warnings_header(header, request->warnings);
    if (!header[0])
        return;
    MHD_add_response_header(response, "X-Regla-Warning", header);
    for (int kind = 0; kind < NUM_WARNING_KINDS; kind++)
        atomic_fetch_add(&metrics->warnings[kind], request->warnings->counts[kind]);
}

/* Whether a page may read the reply. */
static bool set_headers(struct http_request *request, struct MHD_Response *response,
                        const char *content_type)
{
    if (content_type)
        MHD_add_response_header(response, "Content-Type", content_type);
    MHD_add_response_header(response, "X-Request-Id", request->request_id);
    if (request->route && request->route->id_header)
        MHD_add_response_header(response, request->route->id_header, request->request_id);
    if (service_phase(request->service) == SERVICE_DRAINING)
        MHD_add_response_header(response, "Connection", "close");
    tell_warnings(request, response);
    if (request->cache_miss[0])
        MHD_add_response_header(response, "X-Regla-Cache-Miss", request->cache_miss);
    return set_origin_headers(request, response);
}

static void queue(struct http_request *request, int status, struct MHD_Response *response)
{
    request->status = status;
    request->replied =
        MHD_queue_response(request->connection, (unsigned)status, response) == MHD_YES;
    request->hang_up = !request->replied;
    struct connection *peer = connection_of(request->connection);
    if (peer)
        peer->replied = request->replied;
    MHD_destroy_response(response);
}

static struct MHD_Response *buffered(struct strbuf *body)
{
    const bool failed = body->failed, empty = body->length == 0;
    if (failed || empty)
        strbuf_clear(body); /* it may have room */
    if (failed)
        return NULL;
    struct MHD_Response *response =
        empty ? MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT)
              : MHD_create_response_from_buffer(body->length, body->data, MHD_RESPMEM_MUST_FREE);
    if (response)
        *body = (struct strbuf){0};
    return response;
}

void http_reply(struct http_request *request, int status, const char *content_type,
                struct strbuf *body)
{
    struct MHD_Response *response = buffered(body);
    if (!response) {
        strbuf_clear(body);
        http_hang_up(request);
        return;
    }
    set_headers(request, response, content_type);
    queue(request, status, response);
}

void http_reply_json(struct http_request *request, struct strbuf *body)
{
    http_reply(request, 200, "application/json", body);
}

/* Headers that the table of errors asks for. */
static void set_error_headers(struct MHD_Response *response, const struct api_error_row *row,
                              int retry_after_s)
{
    if (retry_after_s == 0)
        retry_after_s = row->retry_after_s;
    if (retry_after_s) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", retry_after_s);
        MHD_add_response_header(response, "Retry-After", seconds);
    }
    if (row->should_retry)
        MHD_add_response_header(response, "x-should-retry", row->should_retry);
    if (row->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
}

void http_reply_error(struct http_request *request, const struct api_error *err)
{
    const struct api_error_row *row = api_error_row(err->code);
    struct strbuf body = {0};
    if (err != &request->error)
        request->error = *err;
    api_error_encode_as(&body, request->route ? request->route->encode_error : NULL, err,
                        request->request_id);
    struct MHD_Response *response = buffered(&body);
    if (!response) {
        http_hang_up(request);
        return;
    }
    set_headers(request, response, "application/json");
    set_error_headers(response, row, err->retry_after_s);
    if (err->allow[0])
        MHD_add_response_header(response, "Allow", err->allow);
    if (row->close || request->closes) {
        MHD_add_response_header(response, "Connection", "close");
        struct connection *peer = connection_of(request->connection);
        if (peer) /* NULL: out of memory when it began */
            peer->linger = true;
    }
    queue(request, row->status, response);
}

void http_reply_options(struct http_request *request)
{
    struct strbuf none = {0};
    struct MHD_Response *response = buffered(&none);
    const char *wanted = http_header(request, "Access-Control-Request-Headers");
    if (!response) {
        http_hang_up(request);
        return;
    }
    MHD_add_response_header(response, "Allow", request->parameter);
    if (set_headers(request, response, NULL) &&
        http_header(request, "Access-Control-Request-Method")) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", request->parameter);
        if (wanted)
            MHD_add_response_header(response, "Access-Control-Allow-Headers", wanted);
        MHD_add_response_header(response, "Access-Control-Max-Age", "3600");
    }
    queue(request, 204, response);
}

static void set_stream_headers(struct MHD_Response *response)
{
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
}

void http_reply_kept(struct http_request *request, const struct http_kept *kept)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(kept->length, (void *)kept->data, MHD_RESPMEM_MUST_COPY);
    if (!response) {
        http_hang_up(request);
        return;
    }
    set_headers(request, response, kept->stream ? EVENT_STREAM : "application/json");
    MHD_add_response_header(response, "Idempotent-Replayed", "true");
    if (kept->stream)
        set_stream_headers(response);
    if (kept->error != API_OK)
        set_error_headers(response, api_error_row(kept->error), 0);
    request->replayed = kept->error == API_OK;
    queue(request, kept->status, response);
}

/* Whether a list of ETags (RFC 9110, section 13.1.2) has this one, which has its quotes. */
static bool has_etag(const char *list, const char *etag)
{
    return list && (strcmp(list, "*") == 0 || strstr(list, etag));
}

void http_reply_file(struct http_request *request, const struct http_file *file)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(file->length, (void *)file->data, MHD_RESPMEM_PERSISTENT);
    if (!response) {
        http_hang_up(request);
        return;
    }
    set_headers(request, response, file->content_type);
    MHD_add_response_header(response, "ETag", file->etag);
    MHD_add_response_header(response, "Cache-Control", "no-cache"); /* kept, and asked about */
    MHD_add_response_header(response, "Content-Security-Policy", file->policy);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    queue(request, has_etag(http_header(request, "If-None-Match"), file->etag) ? 304 : 200,
          response);
}

void http_reply_stream(struct http_request *request, MHD_ContentReaderCallback read)
{
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read, request, NULL);
    if (!response) {
        http_hang_up(request);
        return;
    }
    set_headers(request, response, EVENT_STREAM);
    set_stream_headers(response);
    queue(request, 200, response);
}

void http_hang_up(struct http_request *request)
{
    request->hang_up = true;
}
