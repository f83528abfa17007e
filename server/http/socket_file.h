/* SPDX-License-Identifier: Apache-2.0 */
/* Listens on a Unix socket, whose file exists as long as somebody listens. A server that was killed
 * leaves its file: the next one replaces it. Nothing else is ever removed. */
#ifndef SERVER_HTTP_SOCKET_FILE_H
#define SERVER_HTTP_SOCKET_FILE_H

#include "lib/base/error.h"

#include <sys/types.h>

/* Returns a listening socket, or -1. Refused: a file that is no socket, and a socket on which a
 * server listens. */
int socket_file_open(const char *path, mode_t mode, int backlog, struct error *err);
/* Removes the file, if it is still ours, and closes the socket. */
void socket_file_close(int fd);
/* Removes all files that are still ours. For an end without socket_file_close; any thread. */
void socket_file_remove_all(void);

#endif
