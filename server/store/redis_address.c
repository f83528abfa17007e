/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_address.h"

#include <stdio.h>
#include <string.h>

static const char TCP[] = "redis://", TLS[] = "rediss://", UNIX[] = "unix:";

static bool begins(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool redis_location(const char *location)
{
    return begins(location, TCP) || begins(location, TLS) || begins(location, UNIX);
}

bool redis_location_tls(const char *location)
{
    return begins(location, TLS);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Copies text [length], with its %XX decoded. -1: it is too long, or not well formed. */
static int decode(const char *text, size_t length, char *out, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '%') {
            if (length - i < 3 || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0)
                return -1;
            c = (char)(16 * hex_digit(text[i + 1]) + hex_digit(text[i + 2]));
            i += 2;
        }
        if (at + 1 >= size || c == 0)
            return -1;
        out[at++] = c;
    }
    out[at] = 0;
    return 0;
}

/* A number from 0 to most, all of text. -1: it is none. */
static int number(const char *text, int most)
{
    int value = 0;
    if (*text == 0)
        return -1;
    for (; *text != 0; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        value = 10 * value + (*text - '0');
        if (value > most)
            return -1;
    }
    return value;
}

static const char *scheme(const struct redis_address *address)
{
    return address->tls ? TLS : TCP;
}

/* "host", "host:port", "[address]:port", each with "/database" perhaps. */
static int parse_host(struct redis_address *address, const char *text, struct error *err)
{
    enum { PORT = 6379, MOST_PORT = 65535, MOST_DATABASE = 1 << 20 };
    char rest[sizeof address->host];
    char *host = rest, *colon;
    address->port = PORT;
    if (strlen(text) >= sizeof rest)
        return error_set(err, ERROR_INVALID, "the host is too long");
    snprintf(rest, sizeof rest, "%s", text);
    char *slash = strchr(rest, '/');
    if (slash != NULL)
        *slash = 0;
    if (slash != NULL && slash[1] != 0 &&
        (address->database = number(slash + 1, MOST_DATABASE)) < 0)
        return error_set(err, ERROR_INVALID, "expected the number of a database after /, got %s",
                         slash + 1);
    if (*host == '[') {
        char *end = strchr(host, ']');
        if (end == NULL || (end[1] != 0 && end[1] != ':'))
            return error_set(err, ERROR_INVALID, "expected [address] or [address]:port, got %s",
                             host);
        colon = end[1] == ':' ? end + 1 : NULL;
        *end = 0;
        host++;
    } else {
        colon = strrchr(host, ':');
    }
    if (colon != NULL) {
        *colon = 0;
        if ((address->port = number(colon + 1, MOST_PORT)) < 1)
            return error_set(err, ERROR_INVALID, "expected a port from 1 to %d, got %s", MOST_PORT,
                             colon + 1);
    }
    if (*host == 0)
        return error_set(err, ERROR_INVALID, "expected a host");
    snprintf(address->host, sizeof address->host, "%s", host);
    snprintf(address->name, sizeof address->name, "%s%s:%d/%d", scheme(address), address->host,
             address->port, address->database);
    return 0;
}

int redis_address_parse(struct redis_address *address, const char *location, struct error *err)
{
    *address = (struct redis_address){.tls = redis_location_tls(location)};
    if (begins(location, UNIX)) {
        const char *path = location + strlen(UNIX);
        if (*path == 0 || strlen(path) >= sizeof address->path)
            return error_set(err, ERROR_INVALID, "unix: expected a path of at most %zu bytes",
                             sizeof address->path - 1);
        snprintf(address->path, sizeof address->path, "%s", path);
        snprintf(address->name, sizeof address->name, "%s", location);
        return 0;
    }
    const char *rest = location + strlen(scheme(address)), *at = strrchr(rest, '@');
    if (at != NULL) {
        const char *colon = memchr(rest, ':', (size_t)(at - rest));
        const char *end = colon != NULL ? colon : at;
        if (decode(rest, (size_t)(end - rest), address->user, sizeof address->user) != 0 ||
            (colon != NULL && decode(colon + 1, (size_t)(at - colon - 1), address->password,
                                     sizeof address->password) != 0))
            return error_set(err, ERROR_INVALID,
                             "user and password: too long, or a %% without two digits");
        rest = at + 1;
    }
    return parse_host(address, rest, err);
}

int redis_address_move(struct redis_address *address, const char *host, size_t length, int port)
{
    const int most = 65535;
    if (length == 0 || length >= sizeof address->host || memchr(host, 0, length) != NULL ||
        port < 1 || port > most)
        return -1;
    snprintf(address->host, sizeof address->host, "%.*s", (int)length, host);
    address->path[0] = 0;
    address->port = port;
    snprintf(address->name, sizeof address->name, "%s%s:%d", scheme(address), address->host, port);
    return 0;
}
