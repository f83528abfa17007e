/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_replies.h"

#include "lib/base/clock.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

/* A reply of more bytes stays with the server that made it. */
static const size_t MOST_BYTES = 16 << 20;

void redis_replies_hash(const struct store_reply *reply, char hash[REDIS_HASH_SIZE])
{
    XXH128_hash_t sum = XXH3_128bits(reply->name, reply->name_length);
    snprintf(hash, REDIS_HASH_SIZE, "%016" PRIx64 "%016" PRIx64, (uint64_t)sum.high64,
             (uint64_t)sum.low64);
}

void redis_replies_body(const struct store_reply *reply, char body[2 * STORE_BODY_BYTES + 1])
{
    for (size_t i = 0; i < STORE_BODY_BYTES; i++)
        snprintf(body + 2 * i, 3, "%02x", reply->body[i]);
}

/* A name begins with its owner. */
void redis_replies_key(const struct store_place *place, const struct store_reply *reply,
                       char key[REDIS_KEY_SIZE])
{
    char hash[REDIS_HASH_SIZE];
    redis_replies_hash(reply, hash);
    redis_key_reply(key, place->model, reply->name, hash);
}

/* ---- commands ---- */

static void begin_script(struct redis_command *command, struct redis_script *script,
                         const char *key, const char *first)
{
    redis_scripts_begin(command, script, 1);
    redis_command_text(command, key);
    redis_command_text(command, first);
}

static void send_keep(struct store_place *place, const struct store_reply_op *op, const char *key)
{
    struct redis_command command;
    const struct store_reply *reply = op->reply;
    int64_t left = (reply->expires_ns - clock_nanos(CLOCK_REALTIME)) / 1000000;
    begin_script(&command, &redis_script_reply_keep, key, op->holder);
    redis_command_number(&command, left > 0 ? left : 1);
    redis_command_number(&command, reply->status);
    redis_command_text(&command, reply->error);
    redis_command_text(&command, reply->stream ? "1" : "0");
    redis_command_bytes(&command, reply->data, reply->length);
    redis_link_send(&place->link, &command);
}

static void send_op(struct store_place *place, const struct store_op *op)
{
    const struct store_reply_op *request = (const struct store_reply_op *)op;
    char key[REDIS_KEY_SIZE], body[2 * STORE_BODY_BYTES + 1];
    struct redis_command command;
    redis_replies_key(place, request->reply, key);
    if (op->what == STORE_KEEP && request->reply->length <= MOST_BYTES) {
        send_keep(place, request, key);
        return;
    }
    if (op->what == STORE_CLAIM) {
        redis_replies_body(request->reply, body);
        begin_script(&command, &redis_script_reply_take, key, body);
        redis_command_text(&command, request->holder);
        redis_command_number(&command, (int64_t)(place->lease_s * 1e3));
    } else {
        begin_script(&command, &redis_script_reply_drop, key, request->holder);
    }
    redis_link_send(&place->link, &command);
}

/* ---- replies ---- */

static int refuse(struct store_op *op, enum store_refusal refusal, const char *why)
{
    op->refusal = refusal;
    return error_set(&op->error, ERROR_INVALID, "%s", why);
}

/* {"reply", status, error, whether it is a stream, bytes, ms left} */
static void take_found(struct store_claim *claim, const redisReply *reply)
{
    enum { STATUS = 1, CODE, STREAM, DATA, LEFT, MOST_CODE = 63, MOST_STATUS = 599 };
    int64_t status = 0, left = 0;
    if (redis_rows_number(reply, STATUS, &status) != 0 || status > MOST_STATUS ||
        redis_rows_number(reply, LEFT, &left) != 0 || left > INT32_MAX ||
        reply->element[CODE]->type != REDIS_REPLY_STRING || reply->element[CODE]->len > MOST_CODE ||
        reply->element[DATA]->type != REDIS_REPLY_STRING ||
        reply->element[DATA]->len > MOST_BYTES) {
        redis_rows_strange(reply, &claim->request.op.error);
        return;
    }
    const redisReply *code = reply->element[CODE], *data = reply->element[DATA];
    claim->found = malloc(sizeof *claim->found + code->len + 1 + data->len);
    if (claim->found == NULL) {
        error_set(&claim->request.op.error, ERROR_NO_MEMORY, "no memory for a reply of the store");
        return;
    }
    char *text = (char *)(claim->found + 1);
    memcpy(text, code->str, code->len);
    text[code->len] = 0;
    memcpy(text + code->len + 1, data->str, data->len);
    *claim->found = (struct store_reply){.status = (int)status,
                                         .error = text,
                                         .stream = redis_rows_is(reply, STREAM, "1"),
                                         .expires_ns = clock_nanos(CLOCK_REALTIME) + left * 1000000,
                                         .data = text + code->len + 1,
                                         .length = data->len};
}

static void take_reply(struct store_op *op, const redisReply *reply)
{
    struct store_claim *claim = (struct store_claim *)op;
    if (op->what != STORE_CLAIM)
        return; /* "lost": its lease had ended, and the request is another server's */
    if (redis_rows_is(reply, 0, "other"))
        refuse(op, STORE_KEY_OTHER, "it was sent with another body");
    else if (redis_rows_is(reply, 0, "running"))
        refuse(op, STORE_BUSY, "another server is at work on it");
    else if (redis_rows_is(reply, 0, "reply"))
        take_found(claim, reply);
    else if (!redis_rows_is(reply, 0, "new"))
        redis_rows_strange(reply, &op->error);
}

/* Those that are not done, or not known to be. */
static void attempt(struct store_place *place, struct store_op *first, bool hurry)
{
    struct error err = ERROR_INIT;
    bool open = redis_link_open(&place->link, hurry, &err) == 0;
    for (struct store_op *op = first; open && op != NULL; op = op->next)
        if (op->error.code == ERROR_IO)
            send_op(place, op);
    for (struct store_op *op = first; op != NULL; op = op->next) {
        struct error failed = ERROR_INIT;
        redisReply *reply = NULL;
        if (op->error.code != ERROR_IO)
            continue;
        if (open)
            reply = redis_link_receive(&place->link, &failed);
        op->error = open ? failed : err;
        if (reply != NULL)
            take_reply(op, reply);
        freeReplyObject(reply);
        if (op->error.code == ERROR_IO)
            err = op->error;
    }
    redis_place_tell(place, err.code != ERROR_NONE ? &err : NULL);
}

static bool is_kept(const struct store_op *op)
{
    return op->error.code == ERROR_IO && ((const struct store_reply_op *)op)->lasts;
}

struct store_op *redis_replies_run(struct store_place *place, struct store_op *first)
{
    bool was_away = place->away;
    for (struct store_op *op = first; op != NULL; op = op->next) {
        error_set(&op->error, ERROR_IO, "not sent");
        op->until = redis_kept_until(place->lease_s);
    }
    first = redis_kept_take(&place->kept_replies, first);
    if (first == NULL)
        return NULL;
    attempt(place, first, false);
    if (place->away && !was_away) /* it may have been started anew since the last time */
        attempt(place, first, true);
    first = redis_kept_put(&place->kept_replies, first, is_kept);
    for (struct store_op *op = first; op != NULL; op = op->next)
        if (op->error.code == ERROR_IO)
            op->refusal = STORE_AWAY;
    return first;
}
