/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections wait here while we have no processor; net.core.somaxconn may lower it. If the line is
 * full, a client tries again after one second, then three, then seven. */
enum { BACKLOG = 4096 };

static int open_one(const struct addrinfo *info)
{
    int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    info->ai_protocol);
    if (fd < 0)
        return -1;
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* "::" means every address, IPv4 too. */
    if (info->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

static void describe(int fd, char *address, size_t size)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    char host[64] = "?", port[16] = "?";
    if (getsockname(fd, (struct sockaddr *)&name, &length) == 0)
        getnameinfo((struct sockaddr *)&name, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(address, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

int listen_open(const char *host, int port, char *address, size_t size, struct error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int code = getaddrinfo(host, service, &hints, &found);
    if (code)
        return error_set(err, ERROR_IO, "--host %s: %s", host, gai_strerror(code));
    int fd = -1;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next)
        fd = open_one(at);
    code = errno;
    freeaddrinfo(found);
    if (fd < 0)
        return error_set(err, ERROR_IO, "cannot listen on %s port %d: %s", host, port,
                         strerror(code));
    describe(fd, address, size);
    return fd;
}

void listen_close(int fd)
{
    close(fd);
}

bool listen_is_loopback(const char *address)
{
    static const char *const beginnings[] = {"127.", "[::1]:", "[::ffff:127."};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncmp(address, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}
