/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/listen.h"

#include "server/http/socket_file.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections wait here while we have no processor; net.core.somaxconn may lower it. If the line is
 * full, a client tries again after one second, then three, then seven. */
enum { BACKLOG = 4096 };

static const char UNIX_PREFIX[] = "unix:";

/* An address of TCP that is to be listened on. */
struct target {
    const char *host;
    struct addrinfo *found; /* tried in order, until one works */
};

/* "[::1]" is "::1". */
static int resolve(struct target *target, const char *host, int port, struct error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    size_t length = strlen(host);
    char service[16], *bare = NULL;
    if (length > 2 && host[0] == '[' && host[length - 1] == ']' &&
        !(bare = strndup(host + 1, length - 2)))
        return error_set(err, ERROR_NO_MEMORY, "out of memory for addresses");
    snprintf(service, sizeof service, "%d", port);
    target->host = host;
    int code = getaddrinfo(bare ? bare : host, service, &hints, &target->found);
    free(bare);
    if (code)
        return error_set(err, ERROR_IO, "--host %s: %s", host, gai_strerror(code));
    return 0;
}

static void set_port(struct sockaddr *address, int port)
{
    if (address->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)address)->sin_port = htons((uint16_t)port);
}

static int port_of(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

static int open_one(const struct addrinfo *info, bool only_v6)
{
    int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    info->ai_protocol);
    if (fd < 0)
        return -1;
    int on = 1, v6 = only_v6;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (info->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6, sizeof v6);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

static bool is_loopback(const char *address)
{
    static const char *const beginnings[] = {"127.", "[::1]:", "[::ffff:127."};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncmp(address, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

/* Returns the port. */
static int describe(struct listener *listener)
{
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    char host[64] = "?", port[16] = "?";
    if (getsockname(listener->fd, (struct sockaddr *)&name, &length) == 0)
        getnameinfo((struct sockaddr *)&name, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(listener->address, sizeof listener->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s",
             host, port);
    listener->loopback = is_loopback(listener->address);
    return port_of(&name);
}

/* Whether an address is listened on already: "localhost,127.0.0.1" is one. */
static bool is_open(const struct listeners *listeners, const struct addrinfo *info)
{
    for (size_t i = 0; i < listeners->count; i++) {
        struct sockaddr_storage name = {0};
        socklen_t length = sizeof name;
        if (getsockname(listeners->items[i].fd, (struct sockaddr *)&name, &length) == 0 &&
            length == info->ai_addrlen && memcmp(&name, info->ai_addr, length) == 0)
            return true;
    }
    return false;
}

/* Another result than -1 of what a port of the system's choice can make good. */
enum { TAKEN = -2, TRIES = 32 };

static int open_target(struct listeners *listeners, const struct target *target, int *port,
                       bool only_v6, struct error *err)
{
    struct listener *listener = &listeners->items[listeners->count];
    *listener = (struct listener){.fd = -1};
    for (struct addrinfo *at = target->found; at && listener->fd < 0; at = at->ai_next) {
        set_port(at->ai_addr, *port);
        if (is_open(listeners, at))
            return 0;
        listener->fd = open_one(at, only_v6);
    }
    if (listener->fd < 0) {
        const int code = errno;
        error_set(err, ERROR_IO, "cannot listen on %s port %d: %s", target->host, *port,
                  strerror(code));
        return code == EADDRINUSE ? TAKEN : -1;
    }
    *port = describe(listener); /* of --port 0 the others take the same */
    listeners->count++;
    return 0;
}

/* "::" means every address, IPv4 too, unless one of IPv4 is named beside it. */
static bool names_v4(const struct target *targets, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (targets[i].found && targets[i].found->ai_family == AF_INET)
            return true;
    return false;
}

/* Where any port is right, one that is free on the first address may be taken on another. The first
 * address keeps it meanwhile, so that the system gives another one. */
static int open_targets(struct listeners *listeners, const struct target *targets, size_t count,
                        int port, struct error *err)
{
    const bool only_v6 = names_v4(targets, count);
    int held[TRIES], tries = 0, result;
    do {
        int same = port;
        error_clear(err);
        result = 0;
        for (size_t i = 0; i < count && result == 0; i++)
            result = open_target(listeners, &targets[i], &same, only_v6, err);
        if (result != TAKEN || port != 0 || listeners->count == 0)
            break;
        while (listeners->count > 1)
            close(listeners->items[--listeners->count].fd);
        held[tries++] = listeners->items[--listeners->count].fd;
    } while (tries < TRIES);
    while (tries > 0)
        close(held[--tries]);
    return result;
}

static int open_tcp(struct listeners *listeners, const struct names *hosts, int port,
                    struct error *err)
{
    struct target *targets = calloc(hosts->count, sizeof *targets);
    size_t count = 0;
    int result = 0;
    if (!targets)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for addresses");
    for (size_t i = 0; i < hosts->count && result == 0; i++)
        if (strncmp(hosts->items[i], UNIX_PREFIX, strlen(UNIX_PREFIX)) != 0)
            result = resolve(&targets[count++], hosts->items[i], port, err);
    if (result == 0)
        result = open_targets(listeners, targets, count, port, err);
    for (size_t i = 0; i < count; i++)
        if (targets[i].found)
            freeaddrinfo(targets[i].found);
    free(targets);
    return result;
}

static int open_files(struct listeners *listeners, const struct names *hosts, mode_t mode,
                      struct error *err)
{
    for (size_t i = 0; i < hosts->count; i++) {
        const char *host = hosts->items[i];
        if (strncmp(host, UNIX_PREFIX, strlen(UNIX_PREFIX)) != 0)
            continue;
        struct listener *listener = &listeners->items[listeners->count];
        *listener = (struct listener){.is_file = true, .loopback = true};
        snprintf(listener->address, sizeof listener->address, "%s", host);
        listener->fd = socket_file_open(host + strlen(UNIX_PREFIX), mode, BACKLOG, err);
        if (listener->fd < 0)
            return error_prefix(err, "--host %s", host);
        listeners->count++;
    }
    return 0;
}

int listeners_open(struct listeners *listeners, const struct names *hosts, int port, mode_t mode,
                   struct error *err)
{
    if (hosts->count == 0)
        return error_set(err, ERROR_INVALID,
                         "--host (REGLA_HOST): expected an address, got an empty text");
    listeners->items = calloc(hosts->count, sizeof *listeners->items);
    if (!listeners->items)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for addresses");
    return open_tcp(listeners, hosts, port, err) || open_files(listeners, hosts, mode, err) ? -1
                                                                                            : 0;
}

void listeners_close(struct listeners *listeners)
{
    for (size_t i = 0; i < listeners->count; i++)
        if (listeners->items[i].is_file)
            socket_file_close(listeners->items[i].fd);
        else
            close(listeners->items[i].fd);
    free(listeners->items);
    *listeners = (struct listeners){0};
}
