/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_link.h"

#include "engine/base/clock.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* The longest reply is a session with its tokens, or a list of names. */
enum { MOST_REPLY_BYTES = 512 << 20, MOST_ELEMENTS = 1 << 20 };

static const double SHORTEST_PAUSE = 0.05, LONGEST_PAUSE = 5;

/* ---- commands ---- */

void redis_command_bytes(struct redis_command *command, const void *bytes, size_t size)
{
    if (command->count == REDIS_MOST_WORDS)
        return; /* each command has a fixed number of words: the tests would see it */
    command->words[command->count] = bytes != NULL ? bytes : "";
    command->sizes[command->count++] = size;
}

void redis_command_text(struct redis_command *command, const char *text)
{
    redis_command_bytes(command, text, strlen(text));
}

void redis_command_number(struct redis_command *command, int64_t number)
{
    if (command->count == REDIS_MOST_WORDS)
        return;
    char *text = command->numbers[command->count];
    snprintf(text, REDIS_NUMBER_SIZE, "%lld", (long long)number);
    redis_command_text(command, text);
}

void redis_command_begin(struct redis_command *command, const char *name)
{
    command->count = 0;
    redis_command_text(command, name);
}

/* ---- addresses ---- */

static const char TCP[] = "redis://", TLS[] = "rediss://", UNIX[] = "unix:";

static bool begins(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool redis_location(const char *location)
{
    return begins(location, TCP) || begins(location, TLS) || begins(location, UNIX);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Copies text [length], with its %XX decoded. -1: it is too long, or not well formed. */
static int decode(const char *text, size_t length, char *out, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '%') {
            if (length - i < 3 || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0)
                return -1;
            c = (char)(16 * hex_digit(text[i + 1]) + hex_digit(text[i + 2]));
            i += 2;
        }
        if (at + 1 >= size || c == 0)
            return -1;
        out[at++] = c;
    }
    out[at] = 0;
    return 0;
}

/* A number from 0 to most, all of text. -1: it is none. */
static int number(const char *text, int most)
{
    int value = 0;
    if (*text == 0)
        return -1;
    for (; *text != 0; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        value = 10 * value + (*text - '0');
        if (value > most)
            return -1;
    }
    return value;
}

/* "host", "host:port", "[address]:port", each with "/database" perhaps. */
static int parse_host(struct redis_address *address, const char *text, struct error *err)
{
    enum { PORT = 6379, MOST_PORT = 65535, MOST_DATABASE = 1 << 20 };
    char rest[sizeof address->host];
    char *host = rest, *colon;
    address->port = PORT;
    if (strlen(text) >= sizeof rest)
        return error_set(err, ERROR_INVALID, "the host is too long");
    snprintf(rest, sizeof rest, "%s", text);
    char *slash = strchr(rest, '/');
    if (slash != NULL)
        *slash = 0;
    if (slash != NULL && slash[1] != 0 &&
        (address->database = number(slash + 1, MOST_DATABASE)) < 0)
        return error_set(err, ERROR_INVALID, "expected the number of a database after /, got %s",
                         slash + 1);
    if (*host == '[') {
        char *end = strchr(host, ']');
        if (end == NULL || (end[1] != 0 && end[1] != ':'))
            return error_set(err, ERROR_INVALID, "expected [address] or [address]:port, got %s",
                             host);
        colon = end[1] == ':' ? end + 1 : NULL;
        *end = 0;
        host++;
    } else {
        colon = strrchr(host, ':');
    }
    if (colon != NULL) {
        *colon = 0;
        if ((address->port = number(colon + 1, MOST_PORT)) < 1)
            return error_set(err, ERROR_INVALID, "expected a port from 1 to %d, got %s", MOST_PORT,
                             colon + 1);
    }
    if (*host == 0)
        return error_set(err, ERROR_INVALID, "expected a host");
    snprintf(address->host, sizeof address->host, "%s", host);
    snprintf(address->name, sizeof address->name, "redis://%s:%d/%d", address->host, address->port,
             address->database);
    return 0;
}

int redis_address_parse(struct redis_address *address, const char *location, struct error *err)
{
    *address = (struct redis_address){0};
    if (begins(location, TLS))
        return error_set(err, ERROR_UNSUPPORTED,
                         "rediss:// is not supported: this program has no TLS to a store; put "
                         "stunnel or a network of your own between, and use redis://");
    if (begins(location, UNIX)) {
        const char *path = location + strlen(UNIX);
        if (*path == 0 || strlen(path) >= sizeof address->path)
            return error_set(err, ERROR_INVALID, "unix: expected a path of at most %zu bytes",
                             sizeof address->path - 1);
        snprintf(address->path, sizeof address->path, "%s", path);
        snprintf(address->name, sizeof address->name, "%s", location);
        return 0;
    }
    const char *rest = location + strlen(TCP), *at = strrchr(rest, '@');
    if (at != NULL) {
        const char *colon = memchr(rest, ':', (size_t)(at - rest));
        const char *end = colon != NULL ? colon : at;
        if (decode(rest, (size_t)(end - rest), address->user, sizeof address->user) != 0 ||
            (colon != NULL && decode(colon + 1, (size_t)(at - colon - 1), address->password,
                                     sizeof address->password) != 0))
            return error_set(err, ERROR_INVALID,
                             "user and password: too long, or a %% without two digits");
        rest = at + 1;
    }
    return parse_host(address, rest, err);
}

/* ---- the connection ---- */

void redis_link_init(struct redis_link *link, const struct redis_address *address, double timeout_s)
{
    *link = (struct redis_link){.address = *address, .timeout_s = timeout_s};
}

void redis_link_close(struct redis_link *link)
{
    if (link->context != NULL)
        redisFree(link->context);
    link->context = NULL;
}

static int lost(struct redis_link *link, struct error *err, const char *why)
{
    char reason[160];
    snprintf(reason, sizeof reason, "%s", why);
    redis_link_close(link);
    return error_set(err, ERROR_IO, "%s: %s", link->address.name, reason);
}

/* What is wrong with the connection, in words. */
static const char *trouble(const redisContext *context)
{
    bool late = context->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK);
    return late ? "no answer in time" : context->errstr;
}

#if HIREDIS_MAJOR == 0
/* hiredis before 1.0 allocates as many elements as a reply says that it has. */
static redisReplyObjectFunctions bounded;
static void *(*create_array)(const redisReadTask *task, int elements);

static void *create_bounded(const redisReadTask *task, int elements)
{
    return elements > MOST_ELEMENTS ? NULL : create_array(task, elements);
}

static void bound_elements(redisReader *reader)
{
    if (create_array == NULL) { /* the first link is opened while no other thread has one */
        bounded = *reader->fn;
        create_array = bounded.createArray;
        bounded.createArray = create_bounded;
    }
    reader->fn = &bounded;
}
#else
static void bound_elements(redisReader *reader)
{
    reader->maxelements = MOST_ELEMENTS;
}
#endif

/* An error reply. */
static void take_error(struct redis_link *link, const redisReply *reply, struct error *err)
{
    static const char *const AWAY[] = {"LOADING",     "MASTERDOWN", "TRYAGAIN",
                                       "CLUSTERDOWN", "BUSY ",      "READONLY"};
    const char *text = reply->str;
    enum error_code code = ERROR_INTERNAL;
    for (size_t i = 0; i < sizeof AWAY / sizeof *AWAY; i++)
        if (begins(text, AWAY[i]))
            code = ERROR_IO;
    if (begins(text, "MOVED ") || begins(text, "ASK ") || strstr(text, "CROSSSLOT") != NULL)
        error_set(err, ERROR_UNSUPPORTED,
                  "%s is part of a cluster, which is not supported: it said \"%.200s\"",
                  link->address.name, text);
    else if (strstr(text, "OOM command not allowed") != NULL)
        error_set(err, ERROR_NO_MEMORY, "%s is full: it said \"%.200s\"", link->address.name, text);
    else
        error_set(err, code, "%s refused: it said \"%.200s\"", link->address.name, text);
}

static int flush(struct redis_link *link, struct error *err)
{
    int done = 0;
    while (!done)
        if (redisBufferWrite(link->context, &done) != REDIS_OK)
            return lost(link, err, trouble(link->context));
    return 0;
}

redisReply *redis_link_receive(struct redis_link *link, struct error *err)
{
    enum { PROGRESS_BYTES = 64 * 1024 };
    void *reply = NULL;
    double until = clock_seconds() + link->timeout_s;
    size_t mark = 0;
    if (link->context == NULL) {
        error_set(err, ERROR_IO, "%s: not connected", link->address.name);
        return NULL;
    }
    bool flushed = false;
    for (;;) {
        if (redisGetReplyFromReader(link->context, &reply) != REDIS_OK) {
            lost(link, err, link->context->errstr);
            return NULL;
        }
        if (reply != NULL)
            break;
        if (!flushed && flush(link, err) != 0)
            return NULL;
        flushed = true;
        size_t held = link->context->reader->len;
        if (held >= mark + PROGRESS_BYTES) {
            mark = held;
            until = clock_seconds() + link->timeout_s;
        }
        bool over = held > MOST_REPLY_BYTES, late = clock_seconds() > until;
        if (over || late || redisBufferRead(link->context) != REDIS_OK) {
            lost(link, err,
                 over   ? "its reply is longer than any that is expected"
                 : late ? "no answer in time"
                        : trouble(link->context));
            return NULL;
        }
    }
    if (((redisReply *)reply)->type == REDIS_REPLY_ERROR) {
        take_error(link, reply, err);
        freeReplyObject(reply);
        return NULL;
    }
    return reply;
}

int redis_link_send(struct redis_link *link, const struct redis_command *command, struct error *err)
{
    if (link->context == NULL)
        return error_set(err, ERROR_IO, "%s: not connected", link->address.name);
    if (redisAppendCommandArgv(link->context, command->count, (const char **)command->words,
                               command->sizes) != REDIS_OK)
        return lost(link, err, "no memory for a command");
    return 0;
}

redisReply *redis_link_ask(struct redis_link *link, const struct redis_command *command,
                           struct error *err)
{
    return redis_link_send(link, command, err) != 0 ? NULL : redis_link_receive(link, err);
}

static int ask_ok(struct redis_link *link, const struct redis_command *command, struct error *err)
{
    redisReply *reply = redis_link_ask(link, command, err);
    freeReplyObject(reply);
    return reply != NULL ? 0 : -1;
}

static int greet(struct redis_link *link, struct error *err)
{
    const struct redis_address *address = &link->address;
    struct redis_command command;
    if (address->password[0] != 0) {
        redis_command_begin(&command, "AUTH");
        if (address->user[0] != 0)
            redis_command_text(&command, address->user);
        redis_command_text(&command, address->password);
        if (ask_ok(link, &command, err) != 0)
            return -1;
    }
    if (address->database != 0) {
        redis_command_begin(&command, "SELECT");
        redis_command_number(&command, address->database);
        if (ask_ok(link, &command, err) != 0)
            return -1;
    }
    redis_command_begin(&command, "PING");
    return ask_ok(link, &command, err);
}

static int connect_to(struct redis_link *link, struct error *err)
{
    const struct redis_address *address = &link->address;
    struct timeval limit = {(time_t)link->timeout_s, (suseconds_t)(fmod(link->timeout_s, 1) * 1e6)};
    link->context = address->path[0] != 0
                        ? redisConnectUnixWithTimeout(address->path, limit)
                        : redisConnectWithTimeout(address->host, address->port, limit);
    if (link->context == NULL)
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory for a connection", address->name);
    if (link->context->err != 0)
        return lost(link, err, link->context->errstr);
    if (redisSetTimeout(link->context, limit) != REDIS_OK)
        return lost(link, err, "cannot set its timeouts");
    if (address->path[0] == 0)
        redisEnableKeepAlive(link->context);
    bound_elements(link->context->reader);
    if (greet(link, err) == 0)
        return 0;
    redis_link_close(link);
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

int redis_link_open(struct redis_link *link, bool hurry, struct error *err)
{
    if (link->context != NULL)
        return 0;
    double now = clock_seconds();
    if (!hurry && now < link->retry_at)
        return error_set(err, ERROR_IO, "%s: away; it is tried again in %.1f s", link->address.name,
                         link->retry_at - now);
    if (connect_to(link, err) == 0) {
        link->pause = link->retry_at = 0;
        return 0;
    }
    link->pause = fmin(fmax(2 * link->pause, SHORTEST_PAUSE), LONGEST_PAUSE);
    link->retry_at = clock_seconds() + some_of(link->pause);
    return -1;
}
