/* SPDX-License-Identifier: Apache-2.0 */
/* What the server keeps of texts: the tree of their states, sessions, and the store of both. Made
 * before the engine thread starts, closed after it has ended. */
#ifndef SERVER_STATES_STATES_H
#define SERVER_STATES_STATES_H

#include "server/service.h"

struct states_options {
    bool reuse; /* of prompts' prefixes */
    int64_t interval_tokens, host_bytes;
    const char *directory; /* NULL: no store */
    int64_t disk_bytes;
    double session_ttl_s;
    int64_t session_quota_bytes;
    /* From the store's thread: store_poll has something to do. */
    void (*wake)(void *context);
    void *wake_context;
};

/* Sets service->store, tree and sessions. On an error the caller closes them, too. */
int states_open(struct service *service, const struct states_options *options, struct error *err);

/* Writes what is only in memory to the store, for `seconds` at most, and frees all. */
void states_close(struct service *service, double seconds);

#endif
