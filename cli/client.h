/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a server over HTTP, one request a connection: for commands that look after a server's
 * sessions. Without TLS. */
#ifndef CLI_CLIENT_H
#define CLI_CLIENT_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* http://HOST[:PORT], or unix:PATH. */
bool client_url(const char *text);

struct client_request {
    const char *url, *api_key; /* api_key NULL: none */
    const char *method, *path;
    const void *body; /* [body_length]; NULL: none */
    size_t body_length;
};

struct client_reply {
    int status;
    char *body; /* [length], with a NUL after it; malloc'd, the caller's */
    size_t length;
};

/* -1: the server cannot be reached, or its reply is none. A status of an error is a reply. */
int client_ask(const struct client_request *request, struct client_reply *reply, struct error *err);
void client_reply_clear(struct client_reply *reply);

#endif
