/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the listening sockets of a server for addresses as people write them: "localhost",
 * "0.0.0.0", "::1", "[::1]", "unix:/run/regla.sock". */
#ifndef SERVER_HTTP_LISTEN_H
#define SERVER_HTTP_LISTEN_H

#include "server/names.h"

#include <stdbool.h>
#include <sys/types.h>

/* A socket that listens. */
struct listener {
    int fd;
    char address[128]; /* "127.0.0.1:8000", "[::1]:8000", "unix:/run/regla.sock" */
    bool is_file;      /* a Unix socket */
    bool loopback;     /* only this machine reaches it */
};

/* Zero-initialise; listeners_close frees it, in every state. */
struct listeners {
    struct listener *items; /* [count]: TCP first, then files */
    size_t count;
};

/* port: of all TCP addresses; 0: any, the same for all. mode: of a Unix socket's file. A file that
 * no server listens on any more is replaced; anything else that is in the way is an error. */
int listeners_open(struct listeners *listeners, const struct names *hosts, int port, mode_t mode,
                   struct error *err);
/* Removes the files, too. */
void listeners_close(struct listeners *listeners);
#endif
