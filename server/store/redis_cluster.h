/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a cluster, and which of them has which slot: by the hash of what is in a key's
 * braces. What a cluster says is hostile: addresses, numbers and how many nodes there are. */
#ifndef SERVER_STORE_REDIS_CLUSTER_H
#define SERVER_STORE_REDIS_CLUSTER_H

#include "server/store/redis_connection.h"

#include <stdbool.h>

enum { REDIS_SLOTS = 16384, REDIS_MOST_NODES = 1000 };

struct redis_node {
    struct redis_connection main;  /* commands, one behind the other */
    struct redis_connection aside; /* those that another node sent on, and questions */
    bool serves;                   /* it has slots */
};

struct redis_cluster {
    struct redis_node *nodes[REDIS_MOST_NODES]; /* [count] */
    size_t count;
    uint16_t slots[REDIS_SLOTS]; /* index of the node, plus 1; 0: not known */
    bool stale;                  /* it is to be asked for anew */
    bool portless;               /* CLUSTER SLOTS left ports out: CLUSTER SHARDS may have them */
};

/* Of a key [size]. */
int redis_cluster_slot(const char *key, size_t size);
/* NULL: no memory. */
struct redis_cluster *redis_cluster_create(void);
void redis_cluster_free(struct redis_cluster *cluster); /* NULL is allowed */
/* NULL: nobody has it. */
struct redis_node *redis_cluster_node(const struct redis_cluster *cluster, int slot);
/* Takes the reply to CLUSTER SLOTS of the node that `asked` goes to. */
int redis_cluster_take(struct redis_cluster *cluster, const redisReply *reply,
                       const struct redis_connection *asked, struct error *err);
/* The same of the reply to CLUSTER SHARDS, which has the ports of connections with TLS apart. */
int redis_cluster_take_shards(struct redis_cluster *cluster, const redisReply *reply,
                              const struct redis_connection *asked, struct error *err);
/* "MOVED slot host:port" or "ASK slot host:port" of the node that `asked` goes to: the other node.
 * *moved: for good. NULL: it is neither. */
struct redis_node *redis_cluster_follow(struct redis_cluster *cluster, const char *text,
                                        const struct redis_connection *asked, bool *moved);

#endif
