/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_link.h"

#include "server/store/redis_refusals.h"
#include "server/store/redis_scripts.h"
#include "server/store/redis_sentinel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void redis_link_init(struct redis_link *link, const struct redis_address *address, double timeout_s)
{
    *link = (struct redis_link){0};
    redis_connection_init(&link->first, address, timeout_s);
    redis_connection_init(&link->aside, address, timeout_s);
    if (address->sentinels[0] != 0)
        link->first.find = redis_sentinel_find;
}

static void drop_pending(struct redis_link *link)
{
    for (size_t i = 0; i < link->count; i++)
        redisFreeCommand(link->pending[link->begin + i].bytes);
    link->begin = link->count = link->unnoted = 0;
}

void redis_link_close(struct redis_link *link)
{
    drop_pending(link);
    free(link->pending);
    link->pending = NULL;
    link->capacity = 0;
    redis_connection_close(&link->first);
    redis_connection_close(&link->aside);
    redis_cluster_free(link->cluster);
    link->cluster = NULL;
}

const char *redis_link_name(const struct redis_link *link)
{
    return link->first.address.name;
}

/* ---- nodes ---- */

static void enter_silent(struct redis_link *link, const struct redis_connection *connection)
{
    if (link->away != NULL && connection->context == NULL && connection->silent)
        redis_away_enter(link->away, connection);
}

/* Connects to a node, unless it is known not to answer. */
static int open_node(struct redis_link *link, struct redis_connection *connection,
                     struct error *err)
{
    struct error why = ERROR_INIT;
    if (link->away == NULL)
        return redis_connection_open(connection, link->hurry, err);
    if (redis_away_has(link->away, connection))
        return error_set(err, ERROR_IO, "%s: does not answer; it is tried again",
                         connection->address.name);
    if (redis_connection_open(connection, true, &why) == 0)
        return 0;
    if (why.code == ERROR_IO)
        redis_away_enter(link->away, connection);
    return error_set(err, why.code, "%s", why.message);
}

static redisReply *take(struct redis_link *link, struct redis_connection *connection,
                        struct error *err)
{
    redisReply *reply = redis_connection_take(connection, err);
    if (reply == NULL)
        enter_silent(link, connection);
    return reply;
}

/* Asks over a connection on which nothing is under way. */
static redisReply *ask_node(struct redis_link *link, struct redis_connection *connection,
                            const struct redis_command *command, struct error *err)
{
    if (open_node(link, connection, err) != 0)
        return NULL;
    redisReply *reply = redis_connection_ask(connection, command, err);
    if (reply == NULL)
        enter_silent(link, connection);
    return reply;
}

void redis_link_leave(struct redis_link *link, struct redis_connection *connection)
{
    redis_connection_close(connection);
    if (link->cluster != NULL) {
        link->cluster->stale = true;
        return;
    }
    redis_connection_close(&link->first);
    redis_connection_close(&link->aside);
}

/* The error is of a reply over the connection. It is closed if the server has not its role; what
 * was sent over it meanwhile has no reply. */
static void leave_refused(struct redis_link *link, struct redis_connection *connection,
                          const struct error *err)
{
    const struct redis_refusal *refusal = redis_refusals_behind(err);
    if (refusal == NULL)
        return;
    if (link->cluster != NULL && refusal->code == ERROR_IO)
        link->cluster->stale = true;
    if (refusal->outcome != REDIS_STAY)
        redis_link_leave(link, connection);
}

/* ---- opening ---- */

static redisReply *ask_slots(struct redis_link *link, struct redis_connection *connection,
                             struct error *err)
{
    struct redis_command command;
    redis_command_begin(&command, "CLUSTER");
    redis_command_text(&command, "SLOTS");
    return ask_node(link, connection, &command, err);
}

/* Takes the reply to CLUSTER SLOTS, and asks the same node for what it leaves out. */
static int learn(struct redis_link *link, struct redis_connection *connection,
                 const redisReply *slots, struct error *err)
{
    struct redis_command command;
    if (redis_cluster_take(link->cluster, slots, connection, err) != 0)
        return -1;
    if (!link->cluster->portless)
        return 0;
    redis_command_begin(&command, "CLUSTER");
    redis_command_text(&command, "SHARDS");
    redisReply *reply = ask_node(link, connection, &command, err);
    int result =
        reply != NULL ? redis_cluster_take_shards(link->cluster, reply, connection, err) : -1;
    link->cluster->stale = result != 0;
    freeReplyObject(reply);
    return result;
}

/* Whether it is a cluster: an error reply says that it is none, unless the server is away. */
static int discover(struct redis_link *link, struct error *err)
{
    struct error none = ERROR_INIT;
    redisReply *reply = ask_slots(link, &link->first, &none);
    bool clustered = reply != NULL && reply->type == REDIS_REPLY_ARRAY;
    int result = 0;
    if (link->first.context == NULL || none.code == ERROR_IO)
        result = error_set(err, none.code, "%s", none.message);
    else if (clustered && (link->cluster = redis_cluster_create()) == NULL)
        result =
            error_set(err, ERROR_NO_MEMORY, "%s: no memory for a cluster", redis_link_name(link));
    else if (clustered)
        result = learn(link, &link->first, reply, err);
    freeReplyObject(reply);
    if (result != 0) {
        redis_cluster_free(link->cluster);
        link->cluster = NULL;
        redis_connection_close(&link->first);
    }
    return result;
}

/* From whichever node answers. If none does, commands find out. */
static void refresh(struct redis_link *link)
{
    struct redis_cluster *cluster = link->cluster;
    for (size_t i = 0; cluster->stale && i <= cluster->count; i++) {
        struct redis_connection *connection =
            i < cluster->count ? &cluster->nodes[i]->aside : &link->first;
        struct error ignored = ERROR_INIT;
        redisReply *reply = ask_slots(link, connection, &ignored);
        if (reply != NULL)
            learn(link, connection, reply, &ignored);
        freeReplyObject(reply);
    }
}

int redis_link_open(struct redis_link *link, bool hurry, struct error *err)
{
    bool was_open = link->first.context != NULL;
    link->hurry = hurry;
    if (link->cluster != NULL) {
        if (link->cluster->stale)
            refresh(link);
        return 0;
    }
    if (redis_connection_open(&link->first, hurry, err) != 0)
        return -1;
    if (was_open)
        return 0;
    redis_connection_close(&link->aside); /* it may go to another server */
    link->aside.address = link->first.address;
    return discover(link, err);
}

size_t redis_link_nodes(const struct redis_link *link)
{
    return link->cluster != NULL ? link->cluster->count : 1;
}

redisReply *redis_link_ask_node(struct redis_link *link, size_t node,
                                const struct redis_command *command, struct error *err)
{
    struct redis_connection *connection =
        link->cluster != NULL ? &link->cluster->nodes[node]->aside : &link->first;
    return ask_node(link, connection, command, err);
}

int redis_link_check(struct redis_link *link, struct error *err)
{
    const struct redis_cluster *cluster = link->cluster;
    if (redis_link_open(link, false, err) != 0)
        return -1;
    if (cluster == NULL && redis_connection_probe(&link->first, err) != 0)
        leave_refused(link, &link->first, err);
    for (size_t i = 0; cluster != NULL && link->away != NULL && i < cluster->count; i++)
        if (cluster->nodes[i]->serves && redis_away_has(link->away, &cluster->nodes[i]->main))
            error_set(err, ERROR_IO, "%s: does not answer", cluster->nodes[i]->main.address.name);
    return err->code == ERROR_NONE ? 0 : -1;
}

/* ---- sending ---- */

/* A place at the end. NULL: no memory. */
static struct redis_pending *note(struct redis_link *link)
{
    enum { SOME = 64 };
    if (link->unnoted > 0)
        return NULL;
    if (link->begin + link->count == link->capacity && link->begin > 0) {
        memmove(link->pending, link->pending + link->begin, link->count * sizeof *link->pending);
        link->begin = 0;
    }
    if (link->begin + link->count == link->capacity) {
        size_t capacity = 2 * link->capacity + SOME;
        struct redis_pending *more = realloc(link->pending, capacity * sizeof *more);
        if (more == NULL)
            return NULL;
        link->pending = more;
        link->capacity = capacity;
    }
    struct redis_pending *pending = &link->pending[link->begin + link->count++];
    *pending = (struct redis_pending){0};
    return pending;
}

/* Whether the server has had the text of a script; from now on it has. */
static bool is_told(struct redis_connection *connection, const struct redis_script *script)
{
    for (size_t i = 0; i < connection->num_told; i++)
        if (connection->told[i] == script)
            return true;
    if (!connection->by_text && connection->num_told < REDIS_MOST_SCRIPTS)
        connection->told[connection->num_told++] = script;
    return false;
}

/* *script: that the server may not have; NULL: none. A script goes by its text first: else what is
 * sent behind it would be carried out before it, where the server does not have it. */
static int format(struct redis_connection *connection, const struct redis_command *command,
                  char **bytes, size_t *size, const struct redis_script **script)
{
    long long length = redisFormatCommandArgv(bytes, command->count, (const char **)command->words,
                                              command->sizes);
    if (length <= 0)
        return -1;
    *size = (size_t)length;
    *script = command->script;
    if (command->script == NULL || is_told(connection, command->script))
        return 0;
    char *text = redis_scripts_by_text(command->script, *bytes, *size, size);
    redisFreeCommand(*bytes);
    *bytes = text;
    *script = NULL;
    return text != NULL ? 0 : -1;
}

/* Where the command goes, connected. NULL, with the error: nowhere. */
static struct redis_connection *find(struct redis_link *link, const struct redis_command *command,
                                     struct error *err)
{
    size_t size = 0;
    const char *key = redis_command_key(command, &size);
    struct redis_cluster *cluster = link->cluster;
    if (cluster == NULL) {
        if (link->first.context != NULL)
            return &link->first;
        error_set(err, ERROR_IO, "%s: not connected", redis_link_name(link));
        return NULL;
    }
    int slot = key != NULL ? redis_cluster_slot(key, size) : 0;
    struct redis_node *node = redis_cluster_node(cluster, slot);
    if (node == NULL)
        error_set(err, ERROR_IO, "%s: no node of the cluster has slot %d", redis_link_name(link),
                  slot);
    else if (open_node(link, &node->main, err) == 0)
        return &node->main;
    cluster->stale = true;
    return NULL;
}

void redis_link_send(struct redis_link *link, const struct redis_command *command)
{
    struct error err = ERROR_INIT;
    struct redis_pending *pending = note(link);
    char *bytes = NULL;
    size_t size = 0;
    if (pending == NULL) {
        link->unnoted++;
        return;
    }
    struct redis_connection *connection = find(link, command, &err);
    const struct redis_script *script = NULL;
    if (connection != NULL && format(connection, command, &bytes, &size, &script) != 0)
        error_set(&err, ERROR_IO, "no memory for a command");
    if (err.code == ERROR_NONE && redis_connection_put(connection, bytes, size, &err) == 0) {
        pending->connection = connection;
        pending->closed = connection->closed;
        link->unflushed = true;
    }
    snprintf(pending->why, sizeof pending->why, "%s", err.message);
    if (pending->connection != NULL && (link->cluster != NULL || script != NULL)) {
        pending->bytes = bytes;
        pending->size = size;
        pending->script = script;
    } else {
        redisFreeCommand(bytes);
    }
}

/* ---- receiving ---- */

/* What was put for one node is not to wait until another has answered. */
static void flush(struct redis_link *link)
{
    for (size_t i = 0; i < link->count; i++) {
        const struct redis_pending *pending = &link->pending[link->begin + i];
        struct error ignored = ERROR_INIT; /* who takes the reply meets it */
        if (pending->connection == NULL || pending->connection->closed != pending->closed)
            continue;
        if (redis_connection_flush(pending->connection, &ignored) != 0)
            enter_silent(link, pending->connection);
    }
    link->unflushed = false;
}

static int put_again(struct redis_link *link, struct redis_connection *connection,
                     const struct redis_pending *pending, bool moved, struct error *err)
{
    static const char ASKING[] = "*1\r\n$6\r\nASKING\r\n";
    if (open_node(link, connection, err) != 0 ||
        (!moved && redis_connection_put(connection, ASKING, sizeof ASKING - 1, err) != 0) ||
        redis_connection_put(connection, pending->bytes, pending->size, err) != 0)
        return -1;
    if (!moved) {
        redisReply *reply = take(link, connection, err);
        freeReplyObject(reply);
        return reply != NULL ? 0 : -1;
    }
    return 0;
}

static bool begins(const redisReply *reply, const char *text)
{
    return reply != NULL && reply->type == REDIS_REPLY_ERROR &&
           strncmp(reply->str, text, strlen(text)) == 0;
}

/* The other connection of its node, where commands are under way over this one. */
static struct redis_connection *aside_of(struct redis_link *link,
                                         struct redis_connection *connection)
{
    const struct redis_cluster *cluster = link->cluster;
    if (link->count == 0)
        return connection;
    for (size_t i = 0; cluster != NULL && i < cluster->count; i++)
        if (&cluster->nodes[i]->main == connection)
            return &cluster->nodes[i]->aside;
    return connection == &link->first ? &link->aside : connection;
}

/* Where the command goes once more, after such a reply. NULL: nowhere. */
static struct redis_connection *next_of(struct redis_link *link, struct redis_pending *pending,
                                        struct redis_connection *connection,
                                        const redisReply *reply, bool *moved)
{
    const struct timespec pause = {0, 10 * 1000000};
    size_t size = 0;
    char *text = NULL;
    *moved = true;
    if (pending->script != NULL && (begins(reply, "NOSCRIPT") || begins(reply, "NOPERM"))) {
        connection->num_told = 0; /* it has dropped them, or may not be asked by their sums */
        connection->by_text |= begins(reply, "NOPERM");
        text = redis_scripts_by_text(pending->script, pending->bytes, pending->size, &size);
        if (text == NULL)
            return NULL;
        redisFreeCommand(pending->bytes);
        pending->bytes = text;
        pending->size = size;
        pending->script = NULL;
        return aside_of(link, connection);
    }
    if (link->cluster == NULL)
        return NULL;
    if (begins(reply, "TRYAGAIN")) {
        nanosleep(&pause, NULL);
        return aside_of(link, connection);
    }
    struct redis_node *node = redis_cluster_follow(link->cluster, reply->str, connection, moved);
    return node != NULL ? &node->aside : NULL;
}

/* Sends a command on as often as nodes say so, and waits a little where a slot is being moved. */
static redisReply *follow(struct redis_link *link, struct redis_pending *pending, redisReply *reply,
                          struct error *err)
{
    enum { MOST_TIMES = 16 };
    struct redis_connection *connection = pending->connection;
    for (int i = 0; reply != NULL && reply->type == REDIS_REPLY_ERROR && i < MOST_TIMES; i++) {
        bool moved;
        struct redis_connection *next = next_of(link, pending, connection, reply, &moved);
        if (next == NULL)
            break;
        link->last = connection = next;
        freeReplyObject(reply);
        reply = put_again(link, connection, pending, moved, err) == 0 ? take(link, connection, err)
                                                                      : NULL;
    }
    if (link->cluster != NULL && (begins(reply, "MOVED ") || begins(reply, "ASK "))) {
        error_set(err, ERROR_IO, "%s: sent on too often: it said \"%.200s\"",
                  connection->address.name, reply->str);
        freeReplyObject(reply);
        return NULL;
    }
    if (reply == NULL || reply->type != REDIS_REPLY_ERROR)
        return reply;
    redis_refusals_set(connection->address.name, reply->str, err);
    freeReplyObject(reply);
    leave_refused(link, connection, err);
    return NULL;
}

static redisReply *receive(struct redis_link *link, struct redis_pending *pending,
                           struct error *err)
{
    struct redis_connection *connection = pending->connection;
    if (connection == NULL) {
        error_set(err, ERROR_IO, "%s", pending->why);
        return NULL;
    }
    if (connection->closed != pending->closed) {
        error_set(err, ERROR_IO, "%s: the connection was lost", connection->address.name);
        return NULL;
    }
    redisReply *reply = take(link, connection, err);
    link->last = connection;
    if (link->cluster != NULL && connection->context == NULL)
        link->cluster->stale = true;
    return follow(link, pending, reply, err);
}

redisReply *redis_link_receive(struct redis_link *link, struct error *err)
{
    link->last = NULL;
    if (link->count == 0) {
        link->unnoted -= link->unnoted > 0;
        error_set(err, ERROR_IO, "%s: no memory for a command", redis_link_name(link));
        return NULL;
    }
    if (link->unflushed)
        flush(link);
    struct redis_pending pending = link->pending[link->begin++];
    link->count--;
    redisReply *reply = receive(link, &pending, err);
    redisFreeCommand(pending.bytes);
    return reply;
}

redisReply *redis_link_ask(struct redis_link *link, const struct redis_command *command,
                           struct error *err)
{
    struct error why = ERROR_INIT, ignored = ERROR_INIT;
    redis_link_send(link, command);
    redisReply *reply = redis_link_receive(link, &why);
    if (reply != NULL)
        return reply;
    const struct redis_refusal *refusal = redis_refusals_behind(&why);
    if (refusal != NULL && refusal->outcome != REDIS_STAY &&
        redis_link_open(link, true, &ignored) == 0) {
        redis_link_send(link, command);
        return redis_link_receive(link, err);
    }
    error_set(err, why.code, "%s", why.message);
    return NULL;
}
