/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_replicas.h"

#include "server/store/redis_refusals.h"

void redis_replicas_note(const struct store_place *place, struct store_session_op *session)
{
    if (place->replicas == 0)
        return;
    session->route.connection = place->link.last;
    session->route.closed = place->link.last->closed;
}

/* All are operations on sessions. */
static struct store_route *route_of(struct store_op *op)
{
    return &((struct store_session_op *)op)->route;
}

/* Asks over a connection, once. */
static int ask(struct redis_connection *connection, const struct store_place *place,
               uint64_t closed, struct error *err)
{
    struct redis_command command;
    if (connection->closed != closed)
        return error_set(err, ERROR_IO, "%s: the connection was lost", connection->address.name);
    if (connection->waits)
        return 0;
    redis_command_begin(&command, "WAIT");
    redis_command_number(&command, place->replicas);
    redis_command_number(&command, (int64_t)(connection->timeout_s * 1e3 / 2));
    if (redis_connection_append(connection, &command, err) != 0 ||
        redis_connection_flush(connection, err) != 0)
        return -1;
    connection->waits = true;
    return 0;
}

/* How many replicas have it. -1, with the error: that is not known. */
static long long take(struct redis_connection *connection, struct error *err)
{
    redisReply *reply = redis_connection_take(connection, err);
    long long count = -1;
    connection->waits = false;
    if (reply != NULL && reply->type == REDIS_REPLY_INTEGER)
        count = reply->integer;
    else if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
        redis_refusals_set(connection->address.name, reply->str, err);
    else if (reply != NULL)
        error_set(err, ERROR_INTERNAL, "%s: WAIT: expected a number, got something else",
                  connection->address.name);
    freeReplyObject(reply);
    return count;
}

/* Tells the operation and those behind it whose changes went over its connection. */
static void tell(const struct store_place *place, struct store_op *first, long long count,
                 const struct error *err)
{
    struct redis_connection *connection = route_of(first)->connection;
    for (struct store_op *op = first; op != NULL; op = op->next) {
        if (route_of(op)->connection != connection)
            continue;
        route_of(op)->connection = NULL;
        if (err->code == ERROR_NONE && count >= place->replicas)
            continue; /* as it is, also one that was refused */
        op->error = *err;
        if (err->code == ERROR_NONE)
            error_set(&op->error, ERROR_INVALID, "%s: %lld of %d replicas of the store have it",
                      connection->address.name, count, place->replicas);
        if (op->error.code != ERROR_IO) /* done, and no more */
            op->refusal = STORE_AWAY;
    }
}

void redis_replicas_wait(struct store_place *place, struct store_op *first)
{
    for (struct store_op *op = first; op != NULL; op = op->next)
        if (route_of(op)->connection != NULL &&
            ask(route_of(op)->connection, place, route_of(op)->closed, &op->error) != 0)
            route_of(op)->connection = NULL;
    for (struct store_op *op = first; op != NULL; op = op->next)
        if (route_of(op)->connection != NULL) {
            struct redis_connection *connection = route_of(op)->connection;
            struct error err = ERROR_INIT;
            long long count = take(connection, &err);
            tell(place, op, count, &err);
            if (count < place->replicas) /* it may be a master that they have left */
                redis_link_leave(&place->link, connection);
        }
}
