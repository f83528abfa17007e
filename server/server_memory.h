/* SPDX-License-Identifier: Apache-2.0 */
/* What a server asks of memory.h: which of its parts take memory, as its options and its model say,
 * and what each of them gets. */
#ifndef SERVER_SERVER_MEMORY_H
#define SERVER_SERVER_MEMORY_H

#include "engine/engine.h"
#include "server/memory.h"
#include "server/service.h"

#include <stdbool.h>

struct model;

/* Of the server's options. Bytes; MEMORY_AUTO, for those of checkpoints, bodies and replies: a
 * share of what is left. */
struct server_memory_options {
    int http_threads, tokenizer_threads, max_connections;
    int64_t max_model_len; /* 0: no limit */
    bool store;            /* states go to --state-dir, too */
    int64_t checkpoint_bytes, body_bytes, reply_bytes;
    int64_t max_body_bytes, max_state_bytes; /* of one body, and of one that is a state */
};

struct server_memory {
    struct server_memory_options options;
    struct memory_needs needs; /* once the engine has been opened */
    struct memory_plan plan;
};

/* Before the weights are read, as far as that can be known: fails where they have no room. */
int server_memory_check_weights(const struct model *model, const struct engine_options *options,
                                struct error *err);

/* What has no budget of its own and does not yet count for the limit, once the engine has been
 * opened: connections, the stacks of threads, buffers. */
int64_t server_memory_taken(const struct server_memory_options *options,
                            const struct engine_info *info, enum free_memory_limit limiting);

/* For engine_options.budget, whose context is a struct server_memory: plans what each part gets. */
int server_memory_share(void *context, const struct engine_info *info, size_t given, size_t *bytes,
                        struct error *err);

/* Gives bodies their memory, and one of them a part of it at most. */
void server_memory_limit_bodies(const struct server_memory *memory, struct service *service,
                                int64_t bytes);

/* Logs what each part gets. */
void server_memory_report(const struct server_memory *memory, const struct service *service);

#endif
