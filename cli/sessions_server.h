/* SPDX-License-Identifier: Apache-2.0 */
/* A server of our own on a place, for what needs the model: a child process that listens on a Unix
 * socket in a new directory. A directory that another server uses it cannot take; in a store it is
 * one more. */
#ifndef CLI_SESSIONS_SERVER_H
#define CLI_SESSIONS_SERVER_H

#include "cli/sessions.h"

#include <signal.h>
#include <sys/types.h>

enum { SESSIONS_SERVER_SIGNALS = 3 };

struct sessions_server {
    char folder[64], url[96];
    pid_t process;
    struct sigaction before[SESSIONS_SERVER_SIGNALS]; /* what the signals did that end us */
};

/* In the environment of such a server: it removes no checkpoint of the directory, neither those of
 * other builds or formats, nor for room. */
#define SESSIONS_SERVER_KEEPS_FILES "REGLA_SESSIONS_SERVER"

/* Returns once it is ready. The caller ends it in every case. A signal that ends this process
 * before ends it, too. One at a time. */
int sessions_server_start(struct sessions_server *server, const struct sessions_call *call,
                          struct error *err);
/* Waits until all is saved. -1: it was not. */
int sessions_server_end(struct sessions_server *server, struct error *err);

#endif
