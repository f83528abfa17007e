/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_states.h"

#include "engine/state_file.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"
#include "server/store/store_codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char PREFIX[] = ":prefix";

enum { PIECE_BYTES = 4 << 20, MOST_PIECES = 4096 };

/* A key's pieces: so many, the last one shorter. */
static int64_t pieces_of(int64_t bytes)
{
    return (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

static void key_of(const struct store_place *place, const struct store_blob_op *blob, int64_t piece,
                   char key[REDIS_KEY_SIZE])
{
    redis_key_state(key, place->model, blob->name, blob->prefix ? PREFIX : ":state", piece);
}

static int ask(struct store_place *place, const struct redis_command *command, struct error *err)
{
    redisReply *reply = redis_link_ask(&place->link, command, err);
    freeReplyObject(reply);
    return reply != NULL ? 0 : -1;
}

static int open_link(struct store_place *place, struct error *err)
{
    int result = redis_link_open(&place->link, false, err);
    redis_place_tell(place, result != 0 ? err : NULL);
    return result;
}

/* Its bytes; 0: there is none; < 0: it could not be asked. */
static int64_t read_head(struct store_place *place, const struct store_blob_op *blob,
                         struct error *err)
{
    char key[REDIS_KEY_SIZE];
    struct redis_command command;
    int64_t bytes = 0;
    key_of(place, blob, -1, key);
    redis_command_begin(&command, "MGET");
    redis_command_text(&command, key);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    if (reply == NULL)
        return -1;
    bool missing = reply->type == REDIS_REPLY_ARRAY && reply->elements == 1 &&
                   reply->element[0]->type == REDIS_REPLY_NIL;
    if (!missing && redis_rows_number(reply, 0, &bytes) != 0)
        bytes = error_set(err, ERROR_INVALID, "its number of bytes is none");
    freeReplyObject(reply);
    return bytes;
}

/* Runs a command on the head and on all pieces, whose number the head says. */
static int for_all(struct store_place *place, const struct store_blob_op *blob, const char *name,
                   struct error *err)
{
    if (open_link(place, err) != 0)
        return -1;
    int64_t bytes = read_head(place, blob, err);
    if (bytes < 0 && err->code != ERROR_INVALID)
        return -1;
    error_clear(err);
    int64_t pieces = bytes > 0 && pieces_of(bytes) <= MOST_PIECES ? pieces_of(bytes) : 0;
    for (int64_t piece = -1; piece < pieces; piece++) {
        struct redis_command command;
        char key[REDIS_KEY_SIZE];
        key_of(place, blob, piece, key);
        redis_command_begin(&command, name);
        redis_command_text(&command, key);
        if (strcmp(name, "EXPIRE") == 0)
            redis_command_number(&command, REDIS_STATE_SECONDS);
        if (ask(place, &command, err) != 0)
            return -1;
    }
    return 0;
}

/* Says of an operation that failed that the store is away, if it is no other's fault. */
static int end(struct store_op *op, int result)
{
    if (result != 0 && op->error.code == ERROR_IO && op->refusal == STORE_ACCEPTED)
        op->refusal = STORE_AWAY;
    return result;
}

/* ---- writing ---- */

struct sink {
    struct store_place *place;
    const struct store_blob_op *blob;
    char *piece; /* [PIECE_BYTES], of which `held` are there */
    size_t held;
    int64_t pieces;
};

static int set(struct store_place *place, const char *key, const void *bytes, size_t size,
               struct error *err)
{
    struct redis_command command;
    redis_command_begin(&command, "SET");
    redis_command_text(&command, key);
    redis_command_bytes(&command, bytes, size);
    redis_command_text(&command, "EX");
    redis_command_number(&command, REDIS_STATE_SECONDS);
    return ask(place, &command, err);
}

static int put_piece(struct sink *sink, struct error *err)
{
    char key[REDIS_KEY_SIZE];
    key_of(sink->place, sink->blob, sink->pieces++, key);
    int result = set(sink->place, key, sink->piece, sink->held, err);
    sink->held = 0;
    return result;
}

static int put(void *context, const void *bytes, size_t size, struct error *err)
{
    struct sink *sink = context;
    const char *from = bytes;
    while (size > 0) {
        size_t room = PIECE_BYTES - sink->held, some = size < room ? size : room;
        memcpy(sink->piece + sink->held, from, some);
        sink->held += some;
        from += some;
        size -= some;
        if (sink->held == PIECE_BYTES && put_piece(sink, err) != 0)
            return -1;
    }
    return 0;
}

/* The head last: without it there is no state. */
static int write_pieces(struct sink *sink, const struct state_file_source *source,
                        struct error *err)
{
    struct store_place *place = sink->place;
    char key[REDIS_KEY_SIZE], bytes[24];
    if (state_file_write(place->engine, source, put, sink, err) != 0 ||
        (sink->held > 0 && put_piece(sink, err) != 0))
        return -1;
    snprintf(bytes, sizeof bytes, "%lld", (long long)state_file_bytes(place->engine, source));
    key_of(place, sink->blob, -1, key);
    return set(place, key, bytes, strlen(bytes), err);
}

/* FULL: the store drops nothing (noeviction), and what is left of it is for sessions. */
enum want { WANTED, THERE, FULL };

/* Whether a prefix of so many bytes is to be written. -1: the store does not say. */
static int ask_wanted(struct store_place *place, const struct store_blob_op *blob, int64_t bytes,
                      struct error *err)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    key_of(place, blob, -1, key);
    redis_scripts_begin(&command, &redis_script_prefix, 1);
    redis_command_text(&command, key);
    redis_command_number(&command, bytes);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    if (reply == NULL)
        return -1;
    enum want want = redis_rows_is(reply, 0, "wanted")  ? WANTED
                     : redis_rows_is(reply, 0, "there") ? THERE
                                                        : FULL;
    freeReplyObject(reply);
    return (int)want;
}

/* A prefix is written by the first that has it. */
static int write_wanted(struct store_place *place, struct store_put *put, int64_t bytes,
                        struct sink *sink, const struct state_file_source *source)
{
    struct error *err = &put->blob.op.error;
    const int want = put->blob.prefix ? ask_wanted(place, &put->blob, bytes, err) : WANTED;
    put->skipped = want != WANTED;
    return want == THERE    ? for_all(place, &put->blob, "EXPIRE", err)
           : want == FULL   ? 0
           : want == WANTED ? write_pieces(sink, source, err)
                            : -1;
}

int redis_states_put(struct store_place *place, struct store_put *put)
{
    struct error *err = &put->blob.op.error;
    const struct state_file_source source = store_codec_source(put);
    struct sink sink = {.place = place, .blob = &put->blob, .piece = malloc(PIECE_BYTES)};
    int64_t bytes = (int64_t)state_file_bytes(place->engine, &source);
    int result =
        sink.piece == NULL ? error_set(err, ERROR_NO_MEMORY, "no memory for a piece of a state")
        : pieces_of(bytes) > MOST_PIECES
            ? error_set(err, ERROR_INVALID, "a state of %lld bytes is too large", (long long)bytes)
        : open_link(place, err) != 0 ? -1
                                     : write_wanted(place, put, bytes, &sink, &source);
    free(sink.piece);
    if (result != 0)
        store_accounts_fail(place->accounts);
    return end(&put->blob.op, result);
}

/* ---- reading ---- */

static int read_piece(struct store_place *place, const struct store_blob_op *blob, int64_t piece,
                      char *out, size_t size, struct error *err)
{
    char key[REDIS_KEY_SIZE];
    struct redis_command command;
    key_of(place, blob, piece, key);
    redis_command_begin(&command, "GET");
    redis_command_text(&command, key);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    if (reply == NULL)
        return -1;
    bool whole = reply->type == REDIS_REPLY_STRING && reply->len == size;
    if (whole)
        memcpy(out, reply->str, size);
    freeReplyObject(reply);
    return whole ? 0
                 : error_set(err, ERROR_INVALID, "its piece %lld is not there whole",
                             (long long)piece);
}

/* The most that a file of these tokens can have: its META is no longer than that of any. */
static int64_t most_bytes(const struct store_place *place, const struct store_get *get)
{
    enum { MOST_META = 64 * 1024, SLACK = 4096 };
    static const float some = 0;
    const struct state_file_source source = {.position = get->position,
                                             .num_tokens = get->count,
                                             .logits = &some,
                                             .meta_bytes = MOST_META};
    return (int64_t)state_file_bytes(place->engine, &source) + SLACK;
}

static int read_whole(struct store_place *place, struct store_get *get)
{
    struct store_op *op = &get->blob.op;
    struct error *err = &op->error;
    int64_t bytes = read_head(place, &get->blob, err), most = most_bytes(place, get);
    if (bytes < 0)
        return -1;
    if (bytes == 0) {
        op->refusal = STORE_GONE;
        return error_set(err, ERROR_IO, "the store does not have it");
    }
    if (bytes > most)
        return error_set(err, ERROR_INVALID, "expected at most %lld bytes, got %lld",
                         (long long)most, (long long)bytes);
    char *whole = malloc((size_t)bytes);
    if (whole == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %lld bytes", (long long)bytes);
    int result = 0;
    for (int64_t at = 0; result == 0 && at < bytes; at += PIECE_BYTES) {
        int64_t some = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        result = read_piece(place, &get->blob, at / PIECE_BYTES, whole + at, (size_t)some, err);
    }
    if (result == 0)
        result = store_codec_take(get, place->engine, whole, (size_t)bytes, err);
    free(whole);
    op->bytes = bytes;
    return result;
}

int redis_states_get(struct store_place *place, struct store_get *get)
{
    struct error *err = &get->blob.op.error, ignored = ERROR_INIT;
    if (open_link(place, err) == 0 && read_whole(place, get) == 0)
        return 0;
    if (err->code == ERROR_INVALID && for_all(place, &get->blob, "UNLINK", &ignored) != 0)
        store_accounts_fail(place->accounts);
    return end(&get->blob.op, error_prefix(err, "state %s", get->blob.name));
}

/* ---- the rest ---- */

/* Names are spread over the nodes of a cluster, of which one may be away. */
int redis_states_find(struct store_place *place, struct store_find *find)
{
    struct error *err = &find->op.error;
    bool answered = false;
    find->which = find->num_names;
    if (open_link(place, err) != 0)
        return -1;
    for (size_t i = 0; i < find->num_names; i++) {
        struct redis_command command;
        char key[REDIS_KEY_SIZE];
        redis_key_state(key, place->model, find->names[i], PREFIX, -1);
        redis_command_begin(&command, "EXISTS");
        redis_command_text(&command, key);
        redis_link_send(&place->link, &command);
    }
    for (size_t i = 0; i < find->num_names; i++) {
        struct error failed = ERROR_INIT;
        redisReply *reply = redis_link_receive(&place->link, &failed);
        answered |= reply != NULL;
        if (reply == NULL && err->code == ERROR_NONE)
            *err = failed;
        if (reply != NULL && reply->type == REDIS_REPLY_INTEGER && reply->integer == 1 &&
            find->which == find->num_names)
            find->which = i;
        freeReplyObject(reply);
    }
    if (answered)
        error_clear(err);
    return err->code == ERROR_NONE ? 0 : -1;
}

int redis_states_remove(struct store_place *place, struct store_remove *removal)
{
    struct store_op *op = &removal->blob.op;
    if (for_all(place, &removal->blob, "UNLINK", &op->error) == 0)
        return 0;
    return end(op, store_accounts_fail(place->accounts));
}

int redis_states_touch(struct store_place *place, struct store_touch *touch)
{
    struct store_op *op = &touch->blob.op;
    return end(op, for_all(place, &touch->blob, "EXPIRE", &op->error));
}
