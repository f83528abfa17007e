/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_address.h"

#include <stdio.h>
#include <string.h>

static const char TCP[] = "redis://", TLS[] = "rediss://",
                  UNIX[] = "unix:", SENTINEL[] = "redis+sentinel://",
                  SENTINEL_TLS[] = "rediss+sentinel://";

enum { REDIS_PORT = 6379, SENTINEL_PORT = 26379 };

static bool begins(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool redis_location(const char *location)
{
    return begins(location, TCP) || begins(location, TLS) || begins(location, UNIX) ||
           begins(location, SENTINEL) || begins(location, SENTINEL_TLS);
}

bool redis_location_tls(const char *location)
{
    return begins(location, TLS) || begins(location, SENTINEL_TLS);
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

/* Of text [length]: "host", "host:port", "[address]:port". */
static int parse_host(struct redis_address *address, const char *text, size_t length, int port,
                      struct error *err)
{
    enum { MOST_PORT = 65535 };
    char rest[sizeof address->host];
    char *host = rest, *colon;
    address->port = port;
    if (length >= sizeof rest)
        return error_set(err, ERROR_INVALID, "the host is too long");
    snprintf(rest, sizeof rest, "%.*s", (int)length, text);
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
    return 0;
}

/* "/database", or nothing. */
static int parse_database(struct redis_address *address, const char *slash, struct error *err)
{
    enum { MOST_DATABASE = 1 << 20 };
    if (slash == NULL || slash[1] == 0 ||
        (address->database = number(slash + 1, MOST_DATABASE)) >= 0)
        return 0;
    return error_set(err, ERROR_INVALID, "expected the number of a database after /, got %s",
                     slash + 1);
}

/* ---- Sentinels ---- */

unsigned redis_address_sentinels(const struct redis_address *address)
{
    unsigned count = address->sentinels[0] != 0;
    for (const char *at = address->sentinels; *at != 0; at++)
        count += *at == ',';
    return count;
}

int redis_address_sentinel(const struct redis_address *address, unsigned index,
                           struct redis_address *sentinel, struct error *err)
{
    const char *at = address->sentinels;
    for (; index > 0; index--)
        at = strchr(at, ',') + 1;
    *sentinel = (struct redis_address){.tls = address->tls, .trust = address->trust};
    if (parse_host(sentinel, at, strcspn(at, ","), SENTINEL_PORT, err) != 0)
        return -1;
    snprintf(sentinel->name, sizeof sentinel->name, "Sentinel %s:%d", sentinel->host,
             sentinel->port);
    return 0;
}

/* "host:port,host:port/master", with "/database" perhaps. */
static int parse_sentinels(struct redis_address *address, const char *text, struct error *err)
{
    const size_t hosts = strcspn(text, "/");
    const char *master = text + hosts + (text[hosts] == '/');
    const size_t length = strcspn(master, "/");
    struct redis_address sentinel;
    if (hosts >= sizeof address->sentinels)
        return error_set(err, ERROR_INVALID, "the hosts of the Sentinels are too long");
    if (hosts == 0)
        return error_set(err, ERROR_INVALID, "expected the hosts of Sentinels");
    snprintf(address->sentinels, sizeof address->sentinels, "%.*s", (int)hosts, text);
    if (decode(master, length, address->master, sizeof address->master) != 0 || length == 0)
        return error_set(err, ERROR_INVALID,
                         "expected the name of the master behind the Sentinels, "
                         "host:port,host:port/NAME, of at most %zu bytes",
                         sizeof address->master - 1);
    for (unsigned i = 0; i < redis_address_sentinels(address); i++)
        if (redis_address_sentinel(address, i, &sentinel, err) != 0)
            return -1;
    snprintf(address->name, sizeof address->name, "%s%s/%s", address->tls ? SENTINEL_TLS : SENTINEL,
             address->sentinels, address->master);
    return parse_database(address, strchr(master, '/'), err);
}

/* ---- locations ---- */

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
    const bool sentinels = begins(location, SENTINEL) || begins(location, SENTINEL_TLS);
    const char *rest = strstr(location, "//") + 2, *at = strrchr(rest, '@');
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
    if (sentinels)
        return parse_sentinels(address, rest, err);
    if (parse_host(address, rest, strcspn(rest, "/"), REDIS_PORT, err) != 0 ||
        parse_database(address, strchr(rest, '/'), err) != 0)
        return -1;
    snprintf(address->name, sizeof address->name, "%s%s:%d/%d", scheme(address), address->host,
             address->port, address->database);
    return 0;
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
