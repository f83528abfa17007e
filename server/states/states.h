/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes what the server keeps of texts: the tree of states, the sessions, and the store
 * of both. The engine thread runs only between the two. */
#ifndef SERVER_STATES_STATES_H
#define SERVER_STATES_STATES_H

#include "server/service.h"
#include "server/store/store_op.h"

struct states_options {
    bool reuse; /* of prompts' prefixes */
    int64_t interval_tokens, host_bytes;
    int64_t soon_bytes;     /* state_tree_options */
    int64_t files_bytes;    /* of states on their way to and from files; 0: any */
    int64_t texts_bytes;    /* of the tokens of sessions and checkpoints; 0: any */
    int64_t database_bytes; /* store_options */
    const char *location;   /* store_options; NULL: no store */
    struct store_tls tls;   /* likewise */
    const char *option;     /* that gave it, for errors */
    double lease_s;         /* store_options */
    int store_replicas;     /* store_options.replicas */
    bool local_states;      /* states are not kept there */
    bool share_prefixes;    /* those of prompts are, too, for all servers */
    int64_t disk_bytes;
    bool keeps_files; /* store_options */
    double session_ttl_s, response_ttl_s;
    int64_t session_quota_bytes;
    bool memory_durability; /* sessions are on disk later than their clients are told */
    /* Called from the store's thread when store_poll has something to do. */
    void (*wake)(void *context);
    void *wake_context;
    void (*waits)(void *context, const char *words); /* store_options */
    void *waits_context;
    /* Called while it opens, for each reply to a request with an Idempotency-Key. */
    void (*reply)(void *context, const struct store_reply *reply);
    void *reply_context;
};

/* Sets service->store, tree and sessions. The caller closes them, on an error too. */
int states_open(struct service *service, const struct states_options *options, struct error *err);

/* Writes to the store what is only in memory, for `seconds` at most, and frees everything.
 * service->unsaved: the sessions that it does not have then. */
void states_close(struct service *service, double seconds);

#endif
