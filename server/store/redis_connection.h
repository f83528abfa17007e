/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to one Redis or Valkey, for one thread. It is made again when it is needed, with
 * pauses that grow while the store is away. Replies are hostile: their bytes, their elements and
 * the time that they take are bounded. Errors are ERROR_IO, or those of its greeting. */
#ifndef SERVER_STORE_REDIS_CONNECTION_H
#define SERVER_STORE_REDIS_CONNECTION_H

#include "server/store/redis_address.h"
#include "server/store/redis_command.h"

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdint.h>

enum { REDIS_MOST_SCRIPTS = 32 };

struct redis_connection {
    struct redis_address address;
    /* Sets the address before it connects (redis_sentinel.h); NULL: it stays as it is. */
    int (*find)(struct redis_connection *connection, struct error *err);
    unsigned turn;         /* how often it could not be opened */
    double timeout_s;      /* without progress */
    redisContext *context; /* NULL: not connected */
    struct redis_tls *tls; /* NULL: plain */
    uint64_t closed;       /* so often: what was sent before has no reply any more */
    const struct redis_script *told[REDIS_MOST_SCRIPTS]; /* [num_told]: by their text */
    size_t num_told;
    bool by_text;           /* all of them, always: the user may not use EVALSHA */
    bool waits;             /* for replicas: redis_replicas.h */
    bool silent;            /* it was closed since nothing came in time */
    double retry_at, pause; /* clock_seconds(), seconds; 0: it may be tried at once */
    struct error why;       /* of the last attempt, while it is not tried again */
};

void redis_connection_init(struct redis_connection *connection, const struct redis_address *address,
                           double timeout_s);
void redis_connection_close(struct redis_connection *connection);
/* Connects, unless it is. hurry: whatever pause there is. */
int redis_connection_open(struct redis_connection *connection, bool hurry, struct error *err);
/* Puts a formatted command [size] behind those that are to be sent; it is open. */
int redis_connection_put(struct redis_connection *connection, const char *bytes, size_t size,
                         struct error *err);
/* The same of a command that is not formatted. */
int redis_connection_append(struct redis_connection *connection,
                            const struct redis_command *command, struct error *err);
/* Sends what was put. Whoever takes a reply need not. */
int redis_connection_flush(struct redis_connection *connection, struct error *err);
/* The next reply, which may be an error. NULL: none came, and the connection is closed. */
redisReply *redis_connection_take(struct redis_connection *connection, struct error *err);
/* Sends one command and takes its reply, where no other is under way. An error reply sets the
 * error, and gives NULL. */
redisReply *redis_connection_ask(struct redis_connection *connection,
                                 const struct redis_command *command, struct error *err);

/* Whether the server takes changes, where no command is under way. -1, with the error: not now, or
 * it does not answer. */
int redis_connection_probe(struct redis_connection *connection, struct error *err);

#endif
