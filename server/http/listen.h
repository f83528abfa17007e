/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a listening TCP socket for a host and a port as people write them. */
#ifndef SERVER_HTTP_LISTEN_H
#define SERVER_HTTP_LISTEN_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* host: a name or an address, IPv4 or IPv6; port 0: any. Returns the socket and writes where it
 * listens, "127.0.0.1:8000", into address [size]; -1 with *err naming host and port. */
int listen_open(const char *host, int port, char *address, size_t size, struct error *err);
void listen_close(int fd);

/* Whether only this machine reaches an address that listen_open wrote. */
bool listen_is_loopback(const char *address);

#endif
