/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to Redis or Valkey, for one thread. It is made again when it is needed, with pauses
 * that grow while the store is away. Replies are hostile: their bytes, their elements and the time
 * that they take are bounded.
 *
 * Errors: ERROR_IO where the store is away, or what it has done is not known; ERROR_NO_MEMORY where
 * it is full; ERROR_UNSUPPORTED where it is a cluster; ERROR_INVALID and ERROR_INTERNAL else. */
#ifndef SERVER_STORE_REDIS_LINK_H
#define SERVER_STORE_REDIS_LINK_H

#include "engine/base/error.h"

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdint.h>

/* redis://[[user][:password]@]host[:port][/database], or unix:PATH. */
struct redis_address {
    char host[256], path[108]; /* one of them */
    int port, database;
    char user[128], password[256]; /* "": none */
    char name[400];                /* for people: without user and password */
};

struct redis_link {
    struct redis_address address;
    double timeout_s;       /* without progress */
    redisContext *context;  /* NULL: not connected */
    double retry_at, pause; /* clock_seconds(), seconds; 0: it may be tried at once */
};

enum { REDIS_MOST_WORDS = 24, REDIS_NUMBER_SIZE = 24 };

/* A command, as it is put together. Borrows all but the numbers. */
struct redis_command {
    const char *words[REDIS_MOST_WORDS]; /* [count], each of so many bytes: */
    size_t sizes[REDIS_MOST_WORDS];
    char numbers[REDIS_MOST_WORDS][REDIS_NUMBER_SIZE];
    int count;
};

void redis_command_begin(struct redis_command *command, const char *name);
void redis_command_text(struct redis_command *command, const char *text);
void redis_command_bytes(struct redis_command *command, const void *bytes, size_t size);
void redis_command_number(struct redis_command *command, int64_t number);

/* Of a location that redis_location takes. An error does not quote the password. */
int redis_address_parse(struct redis_address *address, const char *location, struct error *err);
bool redis_location(const char *location);

void redis_link_init(struct redis_link *link, const struct redis_address *address,
                     double timeout_s);
void redis_link_close(struct redis_link *link);
/* Connects, unless it is. hurry: whatever pause there is. */
int redis_link_open(struct redis_link *link, bool hurry, struct error *err);
/* Puts the command behind those that are to be sent; the link is open. */
int redis_link_send(struct redis_link *link, const struct redis_command *command,
                    struct error *err);
/* The reply to the first command that has none; the caller frees it (freeReplyObject). NULL: none
 * came, or the reply was an error. After ERROR_IO without a reply the link is closed, and whether
 * the commands were carried out is not known. */
redisReply *redis_link_receive(struct redis_link *link, struct error *err);
/* Sends one and receives. */
redisReply *redis_link_ask(struct redis_link *link, const struct redis_command *command,
                           struct error *err);

#endif
