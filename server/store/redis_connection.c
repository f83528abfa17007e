/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_connection.h"

#include "lib/base/clock.h"
#include "server/store/redis_refusals.h"
#include "server/store/redis_tls.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* The longest reply is a session with its tokens, or a list of names. */
enum { MOST_REPLY_BYTES = 512 << 20, MOST_ELEMENTS = 1 << 20, MOST_DEPTH = 7 };

/* A new master is found no later than the longest two together after it is there. */
static const double SHORTEST_PAUSE = 0.05, LONGEST_PAUSE = 2, LONGEST_CONNECT = 2;

void redis_connection_init(struct redis_connection *connection, const struct redis_address *address,
                           double timeout_s)
{
    *connection = (struct redis_connection){.address = *address, .timeout_s = timeout_s};
}

void redis_connection_close(struct redis_connection *connection)
{
    redis_tls_close(connection->tls);
    connection->tls = NULL;
    if (connection->context != NULL)
        redisFree(connection->context);
    connection->closed += connection->context != NULL;
    connection->context = NULL;
    connection->num_told = 0;
    connection->waits = false;
}

static int lost(struct redis_connection *connection, struct error *err, const char *why)
{
    char reason[400];
    snprintf(reason, sizeof reason, "%s", why);
    redis_connection_close(connection);
    return error_set(err, ERROR_IO, "%s: %s", connection->address.name, reason);
}

/* What is wrong with the connection, in words. late: no answer came. */
static const char *trouble(struct redis_connection *connection, bool late)
{
    const redisContext *context = connection->context;
    connection->silent =
        late || (context->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK));
    return connection->silent ? "no answer in time" : context->errstr;
}

/* hiredis before 1.0 allocates as many elements as a reply says that it has; later ones take any
 * depth, and free a reply by recursion. */
#if HIREDIS_MAJOR == 0
typedef int element_count;
#else
typedef size_t element_count;
#endif
static redisReplyObjectFunctions bounded;
static void *(*create_array)(const redisReadTask *task, element_count elements);

static void *create_bounded(const redisReadTask *task, element_count elements)
{
    int depth = 0;
    for (const redisReadTask *at = task->parent; at != NULL && depth <= MOST_DEPTH; at = at->parent)
        depth++;
    return elements > MOST_ELEMENTS || depth > MOST_DEPTH ? NULL : create_array(task, elements);
}

static void bound_arrays(redisReader *reader)
{
    if (create_array == NULL) { /* the first is opened while no other thread has one */
        bounded = *reader->fn;
        create_array = bounded.createArray;
        bounded.createArray = create_bounded;
    }
    reader->fn = &bounded;
}

int redis_connection_flush(struct redis_connection *connection, struct error *err)
{
    int done = 0;
    struct error why = ERROR_INIT;
    if (connection->context == NULL)
        return error_set(err, ERROR_IO, "%s: not connected", connection->address.name);
    if (connection->tls != NULL)
        return redis_tls_flush(connection->tls, connection->timeout_s, &why) == 0
                   ? 0
                   : lost(connection, err, why.message);
    while (!done)
        if (redisBufferWrite(connection->context, &done) != REDIS_OK)
            return lost(connection, err, trouble(connection, false));
    return 0;
}

/* What has come goes to the reader. */
static int read_some(struct redis_connection *connection, double until, struct error *err)
{
    enum { SOME = 16 * 1024 };
    char bytes[SOME];
    struct error why = ERROR_INIT;
    if (connection->tls == NULL)
        return redisBufferRead(connection->context) == REDIS_OK
                   ? 0
                   : lost(connection, err, trouble(connection, false));
    ssize_t some = redis_tls_read(connection->tls, bytes, sizeof bytes, until, &why);
    if (some < 0)
        return lost(connection, err, why.message);
    return redisReaderFeed(connection->context->reader, bytes, (size_t)some) == REDIS_OK
               ? 0
               : lost(connection, err, "no memory for a reply");
}

redisReply *redis_connection_take(struct redis_connection *connection, struct error *err)
{
    enum { PROGRESS_BYTES = 64 * 1024 };
    void *reply = NULL;
    double until = clock_seconds() + connection->timeout_s;
    size_t mark = 0;
    if (connection->context == NULL) {
        error_set(err, ERROR_IO, "%s: not connected", connection->address.name);
        return NULL;
    }
    bool flushed = false;
    for (;;) {
        if (redisGetReplyFromReader(connection->context, &reply) != REDIS_OK) {
            lost(connection, err, connection->context->errstr);
            return NULL;
        }
        if (reply != NULL)
            break;
        if (!flushed) {
            if (redis_connection_flush(connection, err) != 0)
                return NULL;
            until = clock_seconds() + connection->timeout_s;
        }
        flushed = true;
        size_t held = connection->context->reader->len;
        if (held >= mark + PROGRESS_BYTES) {
            mark = held;
            until = clock_seconds() + connection->timeout_s;
        }
        bool over = held > MOST_REPLY_BYTES, late = clock_seconds() > until;
        if (over || late) {
            lost(connection, err,
                 over ? "its reply is longer than any that is expected"
                      : trouble(connection, late));
            return NULL;
        }
        if (read_some(connection, until, err) != 0)
            return NULL;
    }
    return reply;
}

int redis_connection_put(struct redis_connection *connection, const char *bytes, size_t size,
                         struct error *err)
{
    if (connection->context == NULL)
        return error_set(err, ERROR_IO, "%s: not connected", connection->address.name);
    if (connection->tls != NULL
            ? redis_tls_put(connection->tls, bytes, size) != 0
            : redisAppendFormattedCommand(connection->context, bytes, size) != REDIS_OK)
        return lost(connection, err, "no memory for a command");
    return 0;
}

int redis_connection_append(struct redis_connection *connection,
                            const struct redis_command *command, struct error *err)
{
    char *bytes = NULL;
    long long size = redisFormatCommandArgv(&bytes, command->count, (const char **)command->words,
                                            command->sizes);
    if (size < 0)
        return error_set(err, ERROR_IO, "%s: no memory for a command", connection->address.name);
    int result = redis_connection_put(connection, bytes, (size_t)size, err);
    redisFreeCommand(bytes);
    return result;
}

redisReply *redis_connection_ask(struct redis_connection *connection,
                                 const struct redis_command *command, struct error *err)
{
    if (redis_connection_append(connection, command, err) != 0)
        return NULL;
    redisReply *reply = redis_connection_take(connection, err);
    if (reply != NULL && reply->type == REDIS_REPLY_ERROR) {
        redis_refusals_set(connection->address.name, reply->str, err);
        freeReplyObject(reply);
        return NULL;
    }
    return reply;
}

static int ask_ok(struct redis_connection *connection, const struct redis_command *command,
                  struct error *err)
{
    redisReply *reply = redis_connection_ask(connection, command, err);
    freeReplyObject(reply);
    return reply != NULL ? 0 : -1;
}

/* A change that changes nothing: a replica, and all that takes none now, refuses it like any other.
 * What refuses it for another reason answers, as a node of a cluster that does not have its slot.
 */
int redis_connection_probe(struct redis_connection *connection, struct error *err)
{
    struct redis_command command;
    struct error why = ERROR_INIT;
    redis_command_begin(&command, "UNLINK");
    redis_command_text(&command, "regla:probe");
    return ask_ok(connection, &command, &why) == 0 || why.code != ERROR_IO
               ? 0
               : error_set(err, why.code, "%s", why.message);
}

static int greet(struct redis_connection *connection, struct error *err)
{
    const struct redis_address *address = &connection->address;
    struct redis_command command;
    if (address->password[0] != 0) {
        redis_command_begin(&command, "AUTH");
        if (address->user[0] != 0)
            redis_command_text(&command, address->user);
        redis_command_text(&command, address->password);
        if (ask_ok(connection, &command, err) != 0)
            return -1;
    }
    if (address->database != 0) {
        redis_command_begin(&command, "SELECT");
        redis_command_number(&command, address->database);
        if (ask_ok(connection, &command, err) != 0)
            return -1;
    }
    struct error why = ERROR_INIT;
    if (redis_connection_probe(connection, &why) == 0)
        return 0;
    const struct redis_refusal *refusal = redis_refusals_behind(&why);
    return connection->context != NULL && refusal != NULL && refusal->outcome != REDIS_LEAVE
               ? 0
               : error_set(err, why.code, "%s", why.message);
}

static int connect_to(struct redis_connection *connection, struct error *err)
{
    const struct redis_address *address = &connection->address;
    const double patience = fmin(connection->timeout_s, LONGEST_CONNECT);
    struct error why = ERROR_INIT;
    struct timeval limit = {(time_t)connection->timeout_s,
                            (suseconds_t)(fmod(connection->timeout_s, 1) * 1e6)};
    struct timeval soon = {(time_t)patience, (suseconds_t)(fmod(patience, 1) * 1e6)};
    if (connection->find != NULL && connection->find(connection, err) != 0)
        return -1;
    connection->context = address->path[0] != 0
                              ? redisConnectUnixWithTimeout(address->path, soon)
                              : redisConnectWithTimeout(address->host, address->port, soon);
    if (connection->context == NULL)
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory for a connection", address->name);
    if (connection->context->err != 0)
        return lost(connection, err, connection->context->errstr);
    if (redisSetTimeout(connection->context, limit) != REDIS_OK)
        return lost(connection, err, "cannot set its timeouts");
    if (address->path[0] == 0)
        redisEnableKeepAlive(connection->context);
    bound_arrays(connection->context->reader);
    if (address->tls &&
        redis_tls_open(&connection->tls, address->trust, connection->context->fd, address->host,
                       connection->timeout_s, &connection->silent, &why) != 0)
        return lost(connection, err, why.message);
    if (greet(connection, err) == 0)
        return 0;
    redis_connection_close(connection);
    return -1;
}

/* Between half and all of it, so that many servers do not come at once. */
static double some_of(double pause)
{
    uint16_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        random = UINT16_MAX;
    return pause * (0.5 + 0.5 * random / UINT16_MAX);
}

int redis_connection_open(struct redis_connection *connection, bool hurry, struct error *err)
{
    if (connection->context != NULL)
        return 0;
    double now = clock_seconds();
    if (!hurry && now < connection->retry_at)
        return error_set(err, ERROR_IO, "%s: away; it is tried again in %.1f s: %s",
                         connection->address.name, connection->retry_at - now,
                         connection->why.message);
    if (connect_to(connection, err) == 0) {
        connection->pause = connection->retry_at = 0;
        connection->silent = false;
        return 0;
    }
    connection->why = *err;
    connection->turn++;
    connection->pause = fmin(fmax(2 * connection->pause, SHORTEST_PAUSE), LONGEST_PAUSE);
    connection->retry_at = clock_seconds() + some_of(connection->pause);
    return -1;
}
