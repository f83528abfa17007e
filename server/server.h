/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a server, for a program to call in this order: server_create checks the options,
 * server_listen takes the model and opens the socket, server_load brings the weights into memory
 * and starts to serve, server_drain lets what runs finish, server_free ends everything.
 *
 * Between listening and loading /health answers already, and /ready says 503. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "server/admission.h"
#include "server/memory.h"
#include "server/states/states.h"

#include <sys/types.h>

struct author_sampling;
struct http_server;
struct model;
struct server;

/* Strings are borrowed until server_free. A field that is not needed may be 0 or NULL. A list's
 * texts may each hold several, separated by commas. MEMORY_AUTO (memory.h), for
 * limits.max_body_bytes, states.host_bytes and idempotency_bytes: a share of what is left. */
struct server_options {
    const char *const *served_model_names; /* [num_served_model_names]: the model's names to
                                            * clients; none: its own */
    size_t num_served_model_names;
    const char *const *api_keys; /* [num_api_keys] */
    size_t num_api_keys;
    const char *api_key_file;
    const char *const *allowed_origins; /* [num_allowed_origins]: origin.h */
    size_t num_allowed_origins;
    const char *const *allowed_hosts; /* [num_allowed_hosts] */
    size_t num_allowed_hosts;

    bool page;                       /* for people, at / */
    const char *const *page_compare; /* [num_page_compare]: endpoints/page.h */
    size_t num_page_compare;

    const char *const *hosts; /* [num_hosts]: listen.h */
    size_t num_hosts;
    int port;                              /* 0: any */
    mode_t socket_mode;                    /* of a Unix socket's file */
    const char *tls_certificate, *tls_key; /* both, or NULL: no TLS */
    int http_threads, max_connections;
    double request_timeout_s, idle_timeout_s, stall_timeout_s;

    struct engine_options engine; /* but for its progress, which is logged */
    int64_t max_model_len;        /* tokens of a prompt and its completion; 0: no limit */
    int64_t default_max_tokens;   /* of a chat that names no max_tokens, without max_model_len */
    bool token_ids_only;          /* the tokenizer is one without tokens */
    bool reasoning;               /* of chats is split off */
    const struct author_sampling *sampling; /* of requests that say nothing; NULL: the API's */
    bool content_tokens, drafts;            /* as struct completion_limits has them */
    int tokenizer_threads;
    struct admission_limits limits;          /* max_running: texts that are advanced at once */
    int prefill_chunk;                       /* most tokens of one prompt in a step; 0: any */
    double max_step_s;                       /* of a step with prompts; 0: schedule/pace.h */
    size_t max_prompts;                      /* of one request */
    int64_t max_body_bytes, max_state_bytes; /* where limits.max_body_bytes is MEMORY_AUTO: less, if
                                              * memory is scarce */

    struct states_options states; /* but for its wake */
    int64_t idempotency_bytes;    /* of kept replies */
    bool vllm_names;              /* metrics also under the names of vLLM */
    /* Counts the sessions that --state-dir does not have, or may not have, as they are; NULL: it
     * need not be known before the end. */
    _Atomic size_t *unsaved;
};

/* On an error there is nothing to free. */
int server_create(struct server **out, const struct server_options *options, struct error *err);

/* Takes model, tokenizer and what *chat holds over, also on an error: what was validated is what is
 * loaded. chat NULL: there is no tokenizer. From now on requests are answered. */
int server_listen(struct server *server, struct model *model, struct tokenizer *tokenizer,
                  const struct chat_template *chat, struct error *err);

/* Loads the model, opens the tree, the sessions and their store, and starts the engine thread. */
int server_load(struct server *server, struct error *err);

/* From any thread; returns at once. The files of API keys and of the certificate are read again. */
void server_reload(struct server *server);

/* From any thread: nothing new comes in from now on. False: the model is still being loaded. */
bool server_refuse(struct server *server);

/* How long the end takes at most, from the signal on: what timeout_s is, but as much as it takes to
 * tell clients and to save what is in memory. */
double server_end_seconds(double timeout_s);
/* After server_refuse: lets what runs finish, and cancels it when no more of timeout_s is left than
 * the end needs. Who waits for a disk that does not answer is told that. */
void server_drain(struct server *server, double timeout_s);

/* Ends all threads and frees everything, in any phase of the server; NULL is allowed. States that
 * are only in memory are written to --state-dir, if there is one. Returns how many
 * sessions it does not have as they are. */
size_t server_free(struct server *server);

/* For callers that look inside: what the threads share, and the HTTP server (NULL: not listening).
 */
struct service *server_service(struct server *server);
struct http_server *server_http(struct server *server);

#endif
