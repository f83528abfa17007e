/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CRC-16/XMODEM, bit by bit: keys are short. */
static uint16_t crc16(const char *bytes, size_t size)
{
    enum { POLYNOMIAL = 0x1021, TOP = 0x8000 };
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++) {
        sum ^= (unsigned)(unsigned char)bytes[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            sum = sum & TOP ? sum << 1 ^ POLYNOMIAL : sum << 1;
    }
    return (uint16_t)sum;
}

int redis_cluster_slot(const char *key, size_t size)
{
    const char *open = memchr(key, '{', size);
    const char *close = open != NULL ? memchr(open, '}', size - (size_t)(open - key)) : NULL;
    if (close != NULL && close > open + 1) {
        key = open + 1;
        size = (size_t)(close - key);
    }
    return crc16(key, size) % REDIS_SLOTS;
}

struct redis_cluster *redis_cluster_create(void)
{
    return calloc(1, sizeof(struct redis_cluster));
}

void redis_cluster_free(struct redis_cluster *cluster)
{
    for (size_t i = 0; cluster != NULL && i < cluster->count; i++) {
        redis_connection_close(&cluster->nodes[i]->main);
        redis_connection_close(&cluster->nodes[i]->aside);
        free(cluster->nodes[i]);
    }
    free(cluster);
}

struct redis_node *redis_cluster_node(const struct redis_cluster *cluster, int slot)
{
    uint16_t at = cluster->slots[slot];
    return at > 0 ? cluster->nodes[at - 1] : NULL;
}

/* Finds or adds a node. Its index plus 1; 0: it is none, or one too many. */
static uint16_t enter(struct redis_cluster *cluster, const struct redis_connection *asked,
                      const char *host, size_t length, int port)
{
    struct redis_address address = asked->address;
    if (length == 0) { /* it does not know its own: that by which it was reached */
        host = asked->address.host;
        length = strlen(host);
    }
    if (redis_address_move(&address, host, length, port) != 0)
        return 0;
    for (size_t i = 0; i < cluster->count; i++)
        if (strcmp(cluster->nodes[i]->main.address.name, address.name) == 0)
            return (uint16_t)(i + 1);
    struct redis_node *node = cluster->count < REDIS_MOST_NODES ? calloc(1, sizeof *node) : NULL;
    if (node == NULL)
        return 0;
    redis_connection_init(&node->main, &address, asked->timeout_s);
    redis_connection_init(&node->aside, &address, asked->timeout_s);
    cluster->nodes[cluster->count++] = node;
    return (uint16_t)cluster->count;
}

static const redisReply *element(const redisReply *reply, size_t at, int type)
{
    return reply != NULL && reply->type == REDIS_REPLY_ARRAY && at < reply->elements &&
                   reply->element[at]->type == type
               ? reply->element[at]
               : NULL;
}

/* The slots from first to last are those of the node at this place; 0: it is none. */
static int assign(struct redis_cluster *cluster, long long first, long long last, uint16_t at)
{
    if (at == 0 || first < 0 || first > last || last >= REDIS_SLOTS)
        return -1;
    for (long long slot = first; slot <= last; slot++)
        cluster->slots[slot] = at;
    cluster->nodes[at - 1]->serves = true;
    return 0;
}

/* {first slot, last slot, {host, port, ...}, replicas...}. Port 0: the node has none for the kind
 * of connection that asked, TLS or not. */
static int take_range(struct redis_cluster *cluster, const redisReply *range,
                      const struct redis_connection *asked)
{
    const redisReply *first = element(range, 0, REDIS_REPLY_INTEGER);
    const redisReply *last = element(range, 1, REDIS_REPLY_INTEGER);
    const redisReply *node = element(range, 2, REDIS_REPLY_ARRAY);
    const redisReply *host = element(node, 0, REDIS_REPLY_STRING);
    const redisReply *port = element(node, 1, REDIS_REPLY_INTEGER);
    if (first == NULL || last == NULL || port == NULL || port->integer < 0 ||
        port->integer > UINT16_MAX)
        return -1;
    if (port->integer == 0) {
        cluster->portless = true;
        return 0;
    }
    return assign(cluster, first->integer, last->integer,
                  enter(cluster, asked, host != NULL ? host->str : "", host != NULL ? host->len : 0,
                        (int)port->integer));
}

static void begin(struct redis_cluster *cluster)
{
    cluster->portless = false;
    for (size_t i = 0; i < cluster->count; i++)
        cluster->nodes[i]->serves = false;
}

int redis_cluster_take(struct redis_cluster *cluster, const redisReply *reply,
                       const struct redis_connection *asked, struct error *err)
{
    begin(cluster);
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++)
        if (take_range(cluster, reply->element[i], asked) != 0)
            return error_set(err, ERROR_INVALID,
                             "%s: CLUSTER SLOTS: expected ranges of slots and addresses of at most "
                             "%d nodes, got something else",
                             asked->address.name, REDIS_MOST_NODES);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0)
        return error_set(err, ERROR_IO, "%s: the cluster has no slots yet", asked->address.name);
    cluster->stale = false;
    return 0;
}

/* ---- CLUSTER SHARDS ---- */

/* The value of {name, value, ...}. NULL: it has none of this type. */
static const redisReply *field(const redisReply *map, const char *name, int type)
{
    for (size_t i = 0; map->type == REDIS_REPLY_ARRAY && i + 1 < map->elements; i += 2) {
        const redisReply *key = element(map, i, REDIS_REPLY_STRING);
        if (key != NULL && strcmp(key->str, name) == 0)
            return element(map, i + 1, type);
    }
    return NULL;
}

static bool is_set(const redisReply *text)
{
    return text != NULL && text->len > 0 && strcmp(text->str, "?") != 0;
}

/* Of {"id", ..., "port", "tls-port", "ip", "endpoint", "role", "health"}: the node that takes
 * changes. Its place plus 1; 0: it takes none, or has no port for such connections. */
static uint16_t enter_master(struct redis_cluster *cluster, const redisReply *node,
                             const struct redis_connection *asked)
{
    const redisReply *role = field(node, "role", REDIS_REPLY_STRING);
    const redisReply *health = field(node, "health", REDIS_REPLY_STRING);
    const redisReply *host = field(node, "endpoint", REDIS_REPLY_STRING);
    const redisReply *port =
        field(node, asked->address.tls ? "tls-port" : "port", REDIS_REPLY_INTEGER);
    if (role == NULL || strcmp(role->str, "master") != 0 ||
        (health != NULL && strcmp(health->str, "online") != 0))
        return 0;
    if (!is_set(host))
        host = field(node, "ip", REDIS_REPLY_STRING);
    if (port == NULL || port->integer < 1 || port->integer > UINT16_MAX) {
        cluster->portless = true;
        return 0;
    }
    return enter(cluster, asked, is_set(host) ? host->str : "", is_set(host) ? host->len : 0,
                 (int)port->integer);
}

/* {"slots", {first, last, ...}, "nodes", {node, ...}}. -1: it makes no sense. */
static int take_shard(struct redis_cluster *cluster, const redisReply *shard,
                      const struct redis_connection *asked)
{
    const redisReply *slots = field(shard, "slots", REDIS_REPLY_ARRAY);
    const redisReply *nodes = field(shard, "nodes", REDIS_REPLY_ARRAY);
    uint16_t at = 0;
    if (slots == NULL || nodes == NULL || slots->elements % 2 != 0)
        return -1;
    for (size_t i = 0; at == 0 && slots->elements > 0 && i < nodes->elements; i++)
        at = enter_master(cluster, nodes->element[i], asked);
    for (size_t i = 0; at > 0 && i < slots->elements; i += 2) {
        const redisReply *first = element(slots, i, REDIS_REPLY_INTEGER);
        const redisReply *last = element(slots, i + 1, REDIS_REPLY_INTEGER);
        if (first == NULL || last == NULL ||
            assign(cluster, first->integer, last->integer, at) != 0)
            return -1;
    }
    return 0;
}

int redis_cluster_take_shards(struct redis_cluster *cluster, const redisReply *reply,
                              const struct redis_connection *asked, struct error *err)
{
    begin(cluster);
    int result = reply->type == REDIS_REPLY_ARRAY ? 0 : -1;
    for (size_t i = 0; result == 0 && i < reply->elements; i++)
        result = take_shard(cluster, reply->element[i], asked);
    if (result != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: CLUSTER SHARDS: expected ranges of slots and at most %d nodes, got "
                         "something else",
                         asked->address.name, REDIS_MOST_NODES);
    if (cluster->portless)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: nodes of the cluster have no port for connections %s TLS: expected "
                         "%s://",
                         asked->address.name, asked->address.tls ? "with" : "without",
                         asked->address.tls ? "redis" : "rediss");
    cluster->stale = false;
    return 0;
}

struct redis_node *redis_cluster_follow(struct redis_cluster *cluster, const char *text,
                                        const struct redis_connection *asked, bool *moved)
{
    int slot = 0, port = 0, host = 0;
    *moved = strncmp(text, "MOVED ", 6) == 0;
    if (!*moved && strncmp(text, "ASK ", 4) != 0)
        return NULL;
    if (sscanf(strchr(text, ' '), " %5d %n", &slot, &host) != 1 || host == 0 || slot < 0 ||
        slot >= REDIS_SLOTS)
        return NULL;
    const char *from = strchr(text, ' ') + host, *colon = strrchr(from, ':');
    if (colon == NULL || sscanf(colon, ":%5d", &port) != 1)
        return NULL;
    uint16_t at = enter(cluster, asked, from, (size_t)(colon - from), port);
    if (at == 0) { /* as with port 0: CLUSTER SHARDS may say more */
        cluster->stale = true;
        return NULL;
    }
    cluster->stale = *moved;
    if (*moved) {
        cluster->slots[slot] = at;
        cluster->nodes[at - 1]->serves = true;
    }
    return cluster->nodes[at - 1];
}
