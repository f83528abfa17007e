/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sessions_remote.h"

#include "api/sessions.h"
#include "cli/client.h"
#include "cli/sessions_print.h"
#include "cli/sessions_server.h"
#include "engine/state_file.h"
#include "server/store/store_backends.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- asking ---- */

enum { PLACE_SIZE = 512 };

/* The place as it was given, for people: without a password, and never a socket of ours. */
static const char *place_of(const struct sessions_call *call, char text[PLACE_SIZE])
{
    if (call->location != NULL)
        store_location_name(call->location, text, PLACE_SIZE);
    else
        snprintf(text, PLACE_SIZE, "%s", call->url);
    return text;
}

/* What the server says is wrong. */
static int refused(const struct sessions_call *call, const struct client_reply *reply,
                   struct error *err)
{
    json_t *json = json_loadb(reply->body, reply->length, 0, NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    char place[PLACE_SIZE];
    /* A list of a place has the sessions of all keys and models; a server sees those of one. */
    error_set(err, ERROR_INVALID, "%s: %d%s%s%s", place_of(call, place), reply->status,
              message ? ": " : "", message ? message : "",
              call->location && reply->status == 404 ? " of this key and model" : "");
    json_decref(json);
    return -1;
}

/* Asks, and expects the status. The caller clears the reply. */
static int ask(const struct sessions_call *call, const char *method, const char *rest, int status,
               const void *body, size_t length, struct client_reply *reply, struct error *err)
{
    *reply = (struct client_reply){0};
    char path[200];
    const char *key = call->keys.count > 0 ? call->keys.items[0] : NULL;
    snprintf(path, sizeof path, "/v1/sessions%s%.128s%s", call->words[0] ? "/" : "",
             call->words[0] ? call->words[0] : "", rest);
    const struct client_request request = {.url = call->url,
                                           .api_key = key,
                                           .method = method,
                                           .path = path,
                                           .body = body,
                                           .body_length = length};
    if (client_ask(&request, reply, err) != 0)
        return -1;
    return reply->status == status ? 0 : refused(call, reply, err);
}

/* ---- list, show, delete ---- */

/* Nothing in it moves the cursor of a terminal. */
static int print_json(const struct client_reply *reply, struct error *err)
{
    json_t *json = json_loadb(reply->body, reply->length, 0, NULL);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    int result = text != NULL ? 0 : error_set(err, ERROR_INVALID, "the reply: expected JSON");
    if (result == 0)
        printf("%s\n", text);
    free(text);
    json_decref(json);
    return result;
}

/* The name that the field has; "?": it has none that could be one. */
static const char *name_in(const json_t *session, const char *field)
{
    const char *name = json_string_value(json_object_get(session, field));
    return name != NULL && session_id_valid(name, strlen(name)) ? name : "?";
}

static void print_line(const json_t *session)
{
    char used[SESSIONS_PRINT_TIME];
    printf("%-32s %10lld  %-19s  %s\n", name_in(session, "id"),
           (long long)json_integer_value(json_object_get(session, "position")),
           sessions_print_time(json_number_value(json_object_get(session, "used")), used),
           name_in(session, "tier"));
}

static int print_list(const struct client_reply *reply, struct error *err)
{
    json_t *json = json_loadb(reply->body, reply->length, 0, NULL);
    const json_t *data = json_object_get(json, "data");
    if (!json_is_array(data)) {
        json_decref(json);
        return error_set(err, ERROR_INVALID, "expected a list of sessions");
    }
    printf("%-32s %10s  %-19s  %s\n", "id", "tokens", "used (UTC)", "tier");
    for (size_t i = 0; i < json_array_size(data); i++)
        print_line(json_array_get(data, i));
    printf("%zu sessions\n", json_array_size(data));
    json_decref(json);
    return 0;
}

int sessions_remote_list(const struct sessions_call *call, struct error *err)
{
    struct client_reply reply;
    int result = ask(call, "GET", "", 200, NULL, 0, &reply, err);
    if (result == 0 && call->options->json)
        result = print_json(&reply, err);
    else if (result == 0)
        result = print_list(&reply, err);
    client_reply_clear(&reply);
    return result;
}

int sessions_remote_show(const struct sessions_call *call, struct error *err)
{
    struct client_reply reply;
    int result = ask(call, "GET", "", 200, NULL, 0, &reply, err);
    if (result == 0)
        result = print_json(&reply, err);
    client_reply_clear(&reply);
    return result;
}

int sessions_remote_delete(const struct sessions_call *call, struct error *err)
{
    struct client_reply reply;
    int result = ask(call, "DELETE", "", 204, NULL, 0, &reply, err);
    if (result == 0)
        printf("%s was removed from %s\n", call->words[0], call->url);
    client_reply_clear(&reply);
    return result;
}

/* ---- files ---- */

static int cannot(const char *path, const char *what, struct error *err)
{
    return error_set(err, ERROR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* A new file, whole or not at all, also where a signal ends this. */
static int write_file(const char *path, const char *bytes, size_t size, struct error *err)
{
    char part[PATH_MAX];
    if ((size_t)snprintf(part, sizeof part, "%s.XXXXXX", path) >= sizeof part)
        return error_set(err, ERROR_INVALID, "%s: the path is too long", path);
    int fd = mkostemp(part, O_CLOEXEC);
    if (fd < 0)
        return cannot(path, "make", err);
    size_t at = 0;
    ssize_t put = 0;
    while (at < size && (put = write(fd, bytes + at, size - at)) > 0)
        at += (size_t)put;
    int result = at == size && fsync(fd) == 0 ? 0 : cannot(path, "write", err);
    close(fd);
    if (result == 0 && link(part, path) != 0)
        result = cannot(path, "make", err);
    unlink(part);
    return result;
}

static int read_file(const char *path, char **bytes, size_t *size, struct error *err)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cannot(path, "open", err);
    int result = fstat(fd, &status) == 0 && S_ISREG(status.st_mode)
                     ? 0
                     : error_set(err, ERROR_INVALID, "%s: expected a file", path);
    *size = result == 0 ? (size_t)status.st_size : 0;
    *bytes = result == 0 ? malloc(*size + 1) : NULL;
    if (result == 0 && *bytes == NULL)
        result = error_set(err, ERROR_NO_MEMORY, "%s: no memory for %zu bytes", path, *size);
    ssize_t got = 0;
    for (size_t at = 0; result == 0 && at < *size; at += (size_t)got)
        if ((got = read(fd, *bytes + at, *size - at)) <= 0)
            result = cannot(path, "read", err);
    close(fd);
    return result;
}

/* ---- export, import ---- */

static int export_from(const struct sessions_call *call, struct error *err)
{
    struct client_reply reply;
    struct state_file file;
    char place[PLACE_SIZE];
    int result = ask(call, "GET", "/state", 200, NULL, 0, &reply, err);
    if (result == 0 && state_file_parse(&file, reply.body, reply.length, err) != 0)
        result = error_prefix(err, "%s", place_of(call, place));
    if (result == 0)
        result = write_file(call->words[1], reply.body, reply.length, err);
    if (result == 0)
        printf("%s has %zu bytes of the session %s: its tokens%s\n", call->words[1], reply.length,
               call->words[0], file.position > 0 ? " and its state" : "");
    if (result == 0 && file.position == 0)
        fprintf(stderr,
                "regla sessions: %s has no state: there is none that this server would compute "
                "the same; whoever imports it computes it from the tokens\n",
                call->words[1]);
    client_reply_clear(&reply);
    return result;
}

static int import_into(const struct sessions_call *call, struct error *err)
{
    struct client_reply reply = {0};
    char *bytes = NULL;
    size_t size = 0;
    int result = read_file(call->words[1], &bytes, &size, err);
    if (result == 0)
        result = ask(call, "PUT", "/state", 201, bytes, size, &reply, err);
    if (result == 0)
        result = print_json(&reply, err);
    client_reply_clear(&reply);
    free(bytes);
    return result;
}

/* By the server at the URL, or one of our own. */
static int with_server(const struct sessions_call *call,
                       int (*run)(const struct sessions_call *call, struct error *err),
                       struct error *err)
{
    struct sessions_call own = *call;
    struct sessions_server server;
    struct error late = ERROR_INIT;
    if (call->url != NULL)
        return run(call, err);
    if (call->options->directory == NULL)
        return error_set(
            err, ERROR_INVALID,
            "expected --model PATH: a state is read and written by its model (or --url "
            "of a server)");
    int result = sessions_server_start(&server, call, err);
    own.url = server.url;
    if (result == 0)
        result = run(&own, err);
    if (sessions_server_end(&server, &late) != 0 && result == 0) {
        *err = late;
        result = -1;
    }
    return result;
}

int sessions_remote_export(const struct sessions_call *call, struct error *err)
{
    return with_server(call, export_from, err);
}

int sessions_remote_import(const struct sessions_call *call, struct error *err)
{
    return with_server(call, import_into, err);
}
