/* SPDX-License-Identifier: Apache-2.0 */
/* The replies to requests: their headers, and what libmicrohttpd is to send. */
#ifndef SERVER_HTTP_HTTP_REPLY_H
#define SERVER_HTTP_HTTP_REPLY_H

#include "server/http/http_request.h"

/* A reply takes what is in *body and leaves it empty. content_type NULL: no such header. */
void http_reply(struct http_request *request, int status, const char *content_type,
                struct strbuf *body);
void http_reply_json(struct http_request *request, struct strbuf *body);
void http_reply_error(struct http_request *request, const struct api_error *err);

/* The reply to OPTIONS. A page's browser asks so before it sends what a form could not (a
 * preflight); it shows no key. */
void http_reply_options(struct http_request *request);

/* The reply to an earlier request. */
struct http_kept {
    int status;
    enum api_code error; /* API_OK: none */
    bool stream;         /* server-sent events */
    const char *data;    /* [length] */
    size_t length;
};
/* Replies the same again; copies the data. */
void http_reply_kept(struct http_request *request, const struct http_kept *kept);

/* A file that never changes while the server runs. Strings and data outlive the request. */
struct http_file {
    const char *content_type, *etag;
    const char *policy; /* Content-Security-Policy */
    const void *data;   /* [length] */
    size_t length;
};
/* 304 to a client that has it. */
void http_reply_file(struct http_request *request, const struct http_file *file);

/* Replies with server-sent events, which `read` makes until it says that they end. Its context is
 * the request. */
void http_reply_stream(struct http_request *request, MHD_ContentReaderCallback read);

/* Closes the connection without a reply. */
void http_hang_up(struct http_request *request);

#endif
