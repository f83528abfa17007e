/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* A server that says nothing for so long is given up; a state may take a while to be written. */
enum { SECONDS = 300, MOST_HEAD = 64 * 1024, FIRST_ROOM = 64 * 1024 };
static const size_t MOST_REPLY = (size_t)1 << 36;

static const char HTTP[] = "http://", UNIX[] = "unix:";

bool client_url(const char *text)
{
    return strncmp(text, HTTP, sizeof HTTP - 1) == 0 || strncmp(text, UNIX, sizeof UNIX - 1) == 0;
}

/* ---- connecting ---- */

static int connect_unix(const char *path, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return error_set(err, ERROR_INVALID, "unix:%s: the path is too long", path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int code = errno;
    if (fd >= 0)
        close(fd);
    return error_set(err, ERROR_IO, "unix:%s: cannot connect: %s", path, strerror(code));
}

static int connect_to(const char *host, const char *port, struct error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *first = NULL;
    int code = getaddrinfo(host, port, &hints, &first), fd = -1;
    if (code != 0)
        return error_set(err, ERROR_IO, "%s: cannot find it: %s", host, gai_strerror(code));
    for (struct addrinfo *at = first; at != NULL && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
        if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
            code = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(first);
    return fd >= 0
               ? fd
               : error_set(err, ERROR_IO, "%s:%s: cannot connect: %s", host, port, strerror(code));
}

/* "host", "host:port", "[address]:port", maybe with a slash behind. authority: [size], for Host. */
static int connect_http(const char *text, char *authority, size_t size, struct error *err)
{
    char host[256], port[8] = "80";
    size_t length = strcspn(text, "/");
    if (text[length] != 0 && text[length + 1] != 0)
        return error_set(err, ERROR_INVALID, "http://%s: expected no path", text);
    if (length == 0 || length >= size || memchr(text, '@', length) != NULL)
        return error_set(err, ERROR_INVALID, "http://%s: expected http://HOST:PORT", text);
    snprintf(authority, size, "%.*s", (int)length, text);
    const char *colon = strrchr(authority, ':'), *bracket = strrchr(authority, ']');
    size_t host_length = length;
    if (colon != NULL && (bracket == NULL || colon > bracket)) {
        host_length = (size_t)(colon - authority);
        if (strlen(colon + 1) == 0 || strlen(colon + 1) >= sizeof port)
            return error_set(err, ERROR_INVALID, "http://%s: expected a port", text);
        snprintf(port, sizeof port, "%s", colon + 1);
    }
    bool quoted = host_length >= 2 && authority[0] == '[' && authority[host_length - 1] == ']';
    if (host_length - 2 * quoted >= sizeof host)
        return error_set(err, ERROR_INVALID, "http://%s: the name is too long", text);
    snprintf(host, sizeof host, "%.*s", (int)(host_length - 2 * quoted), authority + quoted);
    return connect_to(host, port, err);
}

/* ---- sending ---- */

static int send_all(int fd, const char *bytes, size_t size, struct error *err)
{
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0) /* it may have said why, and closed: the reply tells */
            return errno == EPIPE || errno == ECONNRESET
                       ? 0
                       : error_set(err, ERROR_IO, "cannot send: %s", strerror(errno));
        bytes += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int send_request(int fd, const struct client_request *request, const char *authority,
                        struct error *err)
{
    char *head = NULL;
    bool key = request->api_key != NULL && request->api_key[0] != 0;
    int length = asprintf(&head,
                          "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n"
                          "Content-Type: application/octet-stream\r\nContent-Length: %zu\r\n"
                          "%s%s%s\r\n",
                          request->method, request->path, authority, request->body_length,
                          key ? "Authorization: Bearer " : "", key ? request->api_key : "",
                          key ? "\r\n" : "");
    if (length < 0)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a request");
    int result = send_all(fd, head, (size_t)length, err);
    free(head);
    return result != 0 || request->body == NULL
               ? result
               : send_all(fd, request->body, request->body_length, err);
}

/* ---- the reply ---- */

struct receiving {
    int fd;
    char *bytes; /* [capacity], of which `size` are there, and a NUL */
    size_t size, capacity;
};

/* 1: more has come. 0: it was closed. */
static int receive_more(struct receiving *in, struct error *err)
{
    if (in->capacity - in->size < 2) {
        size_t capacity = in->capacity == 0 ? FIRST_ROOM : 2 * in->capacity;
        char *bytes = capacity > MOST_REPLY ? NULL : realloc(in->bytes, capacity);
        if (bytes == NULL)
            return error_set(err, ERROR_NO_MEMORY, "no memory for a reply of over %zu bytes",
                             in->size);
        in->bytes = bytes;
        in->capacity = capacity;
    }
    ssize_t got;
    do
        got = recv(in->fd, in->bytes + in->size, in->capacity - in->size - 1, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return error_set(err, ERROR_IO, "no reply: %s",
                         errno == EAGAIN ? "the server says nothing" : strerror(errno));
    in->size += (size_t)got;
    in->bytes[in->size] = 0;
    return got > 0;
}

/* The number in the header, or -1. */
static long long header_number(const char *head, const char *name)
{
    for (const char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
            return atoll(line + strlen(name) + 1);
    }
    return -1;
}

static int receive(struct receiving *in, struct client_reply *reply, struct error *err)
{
    char *end = NULL;
    int got = 1;
    while (end == NULL && got > 0 && in->size < MOST_HEAD) {
        got = receive_more(in, err);
        end = got > 0 ? strstr(in->bytes, "\r\n\r\n") : NULL;
    }
    if (got < 0)
        return -1;
    if (end == NULL || sscanf(in->bytes, "HTTP/1.1 %3d", &reply->status) != 1)
        return error_set(err, ERROR_INVALID, "expected an HTTP reply, got %zu other bytes",
                         in->size);
    end[2] = 0;
    long long length = header_number(in->bytes, "Content-Length");
    if (length < 0 && reply->status == 204)
        length = 0;
    if (length < 0 || (size_t)length > MOST_REPLY)
        return error_set(err, ERROR_INVALID, "expected a reply with Content-Length");
    size_t start = (size_t)(end + 4 - in->bytes);
    while (got > 0 && in->size - start < (size_t)length)
        got = receive_more(in, err);
    if (got < 0)
        return -1;
    if (in->size - start != (size_t)length)
        return error_set(err, ERROR_IO, "the reply ended at %zu of %lld bytes", in->size - start,
                         length);
    memmove(in->bytes, in->bytes + start, (size_t)length + 1);
    reply->body = in->bytes;
    reply->length = (size_t)length;
    in->bytes = NULL;
    return 0;
}

int client_ask(const struct client_request *request, struct client_reply *reply, struct error *err)
{
    const struct timeval limit = {.tv_sec = SECONDS};
    char authority[300] = "localhost";
    bool socket_file = strncmp(request->url, UNIX, sizeof UNIX - 1) == 0;
    *reply = (struct client_reply){0};
    struct receiving in = {.fd = socket_file ? connect_unix(request->url + sizeof UNIX - 1, err)
                                             : connect_http(request->url + sizeof HTTP - 1,
                                                            authority, sizeof authority, err)};
    if (in.fd < 0)
        return -1;
    int result = -1;
    if (setsockopt(in.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(in.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
        error_set(err, ERROR_IO, "cannot limit its time: %s", strerror(errno));
    else if (send_request(in.fd, request, authority, err) == 0)
        result = receive(&in, reply, err);
    close(in.fd);
    free(in.bytes);
    return result != 0 ? error_prefix(err, "%s", request->url) : 0;
}

void client_reply_clear(struct client_reply *reply)
{
    free(reply->body);
    *reply = (struct client_reply){0};
}
