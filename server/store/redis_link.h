/* SPDX-License-Identifier: Apache-2.0 */
/* How a thread reaches the store: one Redis or Valkey, or the nodes of a cluster, each over a
 * connection of its own. A command goes where its key is, and again where a node sends it on
 * (MOVED, ASK), or does not have its script.
 *
 * Errors: ERROR_IO where the store is away, or what it has done is not known; ERROR_NO_MEMORY where
 * it is full; ERROR_INVALID where a key is damaged; ERROR_UNSUPPORTED and ERROR_INTERNAL else. A
 * server that has not its role any more is left (redis_refusals.h): whoever opens the link next is
 * led to the new one, by the address or by Sentinel. */
#ifndef SERVER_STORE_REDIS_LINK_H
#define SERVER_STORE_REDIS_LINK_H

#include "server/store/redis_away.h"
#include "server/store/redis_cluster.h"

/* A command that was sent, and has no reply yet. */
struct redis_pending {
    struct redis_connection *connection; /* NULL: it could not be sent */
    uint64_t closed;                     /* connection->closed at that time */
    char *bytes;                         /* [size], malloc'd, where it may be sent again */
    size_t size;
    const struct redis_script *script; /* that the store may not have; NULL: none */
    char why[200];                     /* it could not be sent */
};

struct redis_link {
    struct redis_connection first; /* of the address that was given */
    struct redis_connection aside; /* the same, for a script that the store has not; see follow */
    struct redis_cluster *cluster; /* NULL: it is none */
    bool hurry;                    /* it is tried whatever pause there is */
    bool unflushed;                /* commands have been put, and not all been sent */
    struct redis_away *away;       /* borrowed: nodes that do not answer; NULL: it is no cluster */
    struct redis_pending *pending; /* [capacity]: `count` of them from `begin` on */
    size_t begin, count, capacity;
    size_t unnoted;                /* sent after these; for lack of memory they were not */
    struct redis_connection *last; /* that the last reply came over; NULL: none came */
};

void redis_link_init(struct redis_link *link, const struct redis_address *address,
                     double timeout_s);
void redis_link_close(struct redis_link *link);
/* For people. */
const char *redis_link_name(const struct redis_link *link);
/* Connects, unless it is. hurry: whatever pause there is. */
int redis_link_open(struct redis_link *link, bool hurry, struct error *err);
/* Whether all of the store answers, as far as that is known. Nothing is under way. */
int redis_link_check(struct redis_link *link, struct error *err);

/* Puts the command behind those that are to be sent. Each that is sent has one reply: where it
 * could not be sent, that is an error. */
void redis_link_send(struct redis_link *link, const struct redis_command *command);
/* The reply to the first command that has none; the caller frees it (freeReplyObject). NULL, with
 * the error: none came, or the reply was an error. */
redisReply *redis_link_receive(struct redis_link *link, struct error *err);
/* Sends one and receives; once more by another connection where the server has not its role. */
redisReply *redis_link_ask(struct redis_link *link, const struct redis_command *command,
                           struct error *err);
/* The server of this connection may not have its role any more, though it does not say so: whoever
 * opens the link next is led to the new one. */
void redis_link_leave(struct redis_link *link, struct redis_connection *connection);
/* How many nodes there are, and the same of one of them: a setting. */
size_t redis_link_nodes(const struct redis_link *link);
redisReply *redis_link_ask_node(struct redis_link *link, size_t node,
                                const struct redis_command *command, struct error *err);

#endif
