/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_sentinel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* There are others. */
static const double MOST_SECONDS = 0.5;

int redis_sentinel_take(struct redis_address *address, const redisReply *reply, const char *asked,
                        struct error *err)
{
    enum { HOST, PORT, ELEMENTS };
    if (reply->type == REDIS_REPLY_NIL)
        return error_set(err, ERROR_IO, "%s: the Sentinel knows no master \"%s\"", asked,
                         address->master);
    const bool pair = reply->type == REDIS_REPLY_ARRAY && reply->elements == ELEMENTS &&
                      reply->element[HOST]->type == REDIS_REPLY_STRING &&
                      reply->element[PORT]->type == REDIS_REPLY_STRING;
    char *end = NULL;
    const long port = pair ? strtol(reply->element[PORT]->str, &end, 10) : 0;
    if (!pair || *end != 0 || port < 1 || port > UINT16_MAX ||
        redis_address_move(address, reply->element[HOST]->str, reply->element[HOST]->len,
                           (int)port) != 0)
        return error_set(err, ERROR_IO,
                         "%s: expected the Sentinel to say host and port of the master, got "
                         "something else",
                         asked);
    return 0;
}

/* Of one Sentinel, over a connection of its own. password: it gets ours. */
static int ask(struct redis_address *address, const struct redis_address *sentinel, double timeout,
               struct error *err)
{
    struct redis_connection connection;
    struct redis_command command;
    redis_connection_init(&connection, sentinel, timeout);
    if (redis_connection_open(&connection, true, err) != 0)
        return -1;
    redis_command_begin(&command, "SENTINEL");
    redis_command_text(&command, "GET-MASTER-ADDR-BY-NAME");
    redis_command_text(&command, address->master);
    redisReply *reply = redis_connection_ask(&connection, &command, err);
    int result = reply != NULL ? redis_sentinel_take(address, reply, sentinel->name, err) : -1;
    freeReplyObject(reply);
    redis_connection_close(&connection);
    return result;
}

/* Without our password, and with it if it wants one. */
static int ask_either(struct redis_address *address, struct redis_address *sentinel, double timeout,
                      struct error *err)
{
    struct error why = ERROR_INIT;
    if (ask(address, sentinel, timeout, &why) == 0)
        return 0;
    if (strstr(why.message, "NOAUTH") == NULL || address->password[0] == 0)
        return error_set(err, why.code, "%s", why.message);
    memcpy(sentinel->user, address->user, sizeof sentinel->user);
    memcpy(sentinel->password, address->password, sizeof sentinel->password);
    return ask(address, sentinel, timeout, err);
}

int redis_sentinel_find(struct redis_connection *connection, struct error *err)
{
    const double timeout = fmin(connection->timeout_s, MOST_SECONDS);
    struct redis_address *address = &connection->address, sentinel;
    struct error why = ERROR_INIT;
    const unsigned count = redis_address_sentinels(address);
    for (unsigned i = 0; i < count; i++) {
        error_clear(&why);
        if (redis_address_sentinel(address, (connection->turn + i) % count, &sentinel, &why) == 0 &&
            ask_either(address, &sentinel, timeout, &why) == 0) {
            connection->turn += i;
            return 0;
        }
    }
    return error_set(err, ERROR_IO, "no Sentinel says where the master is, the last: %s",
                     why.message);
}
