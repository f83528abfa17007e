/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_quota.h"

#include "engine/base/clock.h"
#include "engine/engine.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SOME_NAMES = 256 };

static int64_t bytes_of(const struct store_place *place, int64_t tokens, int64_t turns)
{
    return (tokens > 0 ? (int64_t)engine_state_bytes(place->engine, tokens) : 0) + turns;
}

/* A script on what the owner's sessions count; the name of one of them is its first argument. */
static void begin_script(struct redis_command *command, const struct store_place *place,
                         const char *owner, const char *script, const char *id,
                         char key[REDIS_KEY_SIZE])
{
    redis_key_owner(key, place->model, owner, ":quota");
    redis_command_begin(command, "EVAL");
    redis_command_text(command, script);
    redis_command_number(command, 1);
    redis_command_text(command, key);
    redis_command_text(command, id);
}

/* ---- counting anew ---- */

/* Sends for sessions whose names are at every second place. */
static void send_names(struct store_place *place, const char *owner, const redisReply *names,
                       size_t at, size_t behind)
{
    for (; at < behind; at += 2) {
        char key[REDIS_KEY_SIZE];
        struct redis_command command;
        redis_key_session(key, place->model, owner, names->element[at]->str, "");
        redis_command_begin(&command, "EVAL");
        redis_command_text(&command, redis_script_size);
        redis_command_number(&command, 1);
        redis_command_text(&command, key);
        redis_link_send(&place->link, &command);
    }
}

/* What a session counts by its row. -1: somebody works on it, or it makes no sense. */
static int64_t counted(const struct store_place *place, const redisReply *row)
{
    const int64_t most = (int64_t)1 << 40;
    int64_t tokens = 0, turns = 0;
    if (redis_rows_number(row, 0, &tokens) != 0 || redis_rows_number(row, 1, &turns) != 0 ||
        tokens > most || turns > most)
        return -1;
    return bytes_of(place, tokens, turns);
}

/* names: {name, what was seen of it, ...}. as_seen: that is what it counts; else it is not counted
 * yet. */
static void recount(struct store_place *place, const char *owner, const redisReply *names,
                    bool as_seen, struct error *err)
{
    int64_t bytes[SOME_NAMES / 2];
    for (size_t at = 0; at + 1 < names->elements && err->code == ERROR_NONE; at += SOME_NAMES) {
        size_t behind =
            names->elements / 2 * 2 - at < SOME_NAMES ? names->elements / 2 * 2 : at + SOME_NAMES;
        send_names(place, owner, names, at, behind);
        for (size_t i = at; i < behind; i += 2) {
            redisReply *row = redis_link_receive(&place->link, err);
            bytes[(i - at) / 2] = row != NULL ? counted(place, row) : -1;
            freeReplyObject(row);
        }
        for (size_t i = at; i < behind; i += 2) {
            struct redis_command command;
            char key[REDIS_KEY_SIZE];
            if (bytes[(i - at) / 2] < 0 || names->element[i]->len == 0)
                continue;
            begin_script(&command, place, owner, redis_script_recount, names->element[i]->str, key);
            redis_command_text(&command, as_seen ? names->element[i + 1]->str : "");
            redis_command_number(&command, bytes[(i - at) / 2]);
            freeReplyObject(redis_link_ask(&place->link, &command, err));
        }
    }
}

static bool are_strings(const redisReply *reply)
{
    bool sound = reply != NULL && reply->type == REDIS_REPLY_ARRAY;
    for (size_t i = 0; sound && i < reply->elements; i++)
        sound = reply->element[i]->type == REDIS_REPLY_STRING;
    return sound;
}

/* Those that are counted; of an owner of whom nothing is, all that there are. */
static void recount_all(struct store_place *place, const char *owner, bool unknown,
                        struct error *err)
{
    char key[REDIS_KEY_SIZE];
    struct redis_command command;
    redis_key_owner(key, place->model, owner, unknown ? ":sessions" : ":quota");
    redis_command_begin(&command, unknown ? "ZRANGE" : "HGETALL");
    redis_command_text(&command, key);
    if (unknown) {
        redis_command_text(&command, "0");
        redis_command_text(&command, "-1");
        redis_command_text(&command, "WITHSCORES");
    }
    redisReply *names = redis_link_ask(&place->link, &command, err);
    if (names != NULL && are_strings(names))
        recount(place, owner, names, !unknown, err);
    else if (names != NULL)
        redis_rows_strange(names, err);
    freeReplyObject(names);
    if (!unknown || err->code != ERROR_NONE)
        return;
    redis_key_owner(key, place->model, owner, ":quota"); /* there may be no session at all */
    redis_command_begin(&command, "HSETNX");
    redis_command_text(&command, key);
    redis_command_text(&command, "");
    redis_command_text(&command, "0");
    freeReplyObject(redis_link_ask(&place->link, &command, err));
}

/* Who is refused again and again does not make the store count again and again. */
static bool may_recount(struct store_place *place, const char *owner)
{
    double now = clock_seconds(),
           *at = &place->recounted[XXH3_64bits(owner, strlen(owner)) % REDIS_RECOUNTS];
    if (now < *at + 1)
        return false;
    *at = now;
    return true;
}

/* ---- operations ---- */

/* True: it is as the op says by now. False: "unknown", or "full". */
static bool reserve(struct store_place *place, struct store_op *op, bool *unknown)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    begin_script(&command, place, op->owner, redis_script_reserve, op->id, key);
    redis_command_number(&command, op->wanted_bytes);
    redis_command_number(&command, place->quota_bytes);
    redisReply *reply = redis_link_ask(&place->link, &command, &op->error);
    bool full = reply != NULL && redis_rows_is(reply, 0, "full") &&
                redis_rows_number(reply, 1, &op->held_bytes) == 0;
    *unknown = reply != NULL && redis_rows_is(reply, 0, "unknown");
    if (reply != NULL && !full && !*unknown && !redis_rows_is(reply, 0, "done"))
        redis_rows_strange(reply, &op->error);
    freeReplyObject(reply);
    return !full && !*unknown;
}

void redis_quota_reserve(struct store_place *place, struct store_op *op)
{
    bool unknown;
    if (reserve(place, op, &unknown))
        return;
    if (unknown || may_recount(place, op->owner)) {
        recount_all(place, op->owner, unknown, &op->error);
        if (op->error.code != ERROR_NONE || reserve(place, op, &unknown))
            return;
    }
    op->refusal = STORE_QUOTA;
    error_set(&op->error, ERROR_INVALID, "the owner's sessions would take too much");
}

static void send_count(struct store_place *place, const char *owner, const char *id, int64_t bytes)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    begin_script(&command, place, owner, redis_script_count, id, key);
    redis_command_number(&command, bytes);
    redis_link_send(&place->link, &command);
}

/* Whether it changes what its session counts: a write that failed may have been made. */
static bool changes(const struct store_place *place, const struct store_op *op)
{
    return place->quota_bytes > 0 && op->error.code == ERROR_NONE &&
           (op->what == STORE_WRITE || op->what == STORE_REMOVE ||
            (op->what == STORE_GIVE && op->counted));
}

void redis_quota_count(struct store_place *place, const struct store_op *first)
{
    struct error ignored = ERROR_INIT; /* it is counted anew before it matters */
    for (const struct store_op *op = first; op != NULL; op = op->next)
        if (changes(place, op))
            send_count(place, op->owner, op->id,
                       op->what == STORE_REMOVE ? 0 : bytes_of(place, op->count, op->turns_length));
    for (const struct store_op *op = first; op != NULL; op = op->next)
        if (changes(place, op))
            freeReplyObject(redis_link_receive(&place->link, &ignored));
}

void redis_quota_forget(struct store_place *place, const char *owner, const char *id)
{
    struct error ignored = ERROR_INIT;
    if (place->quota_bytes == 0)
        return;
    send_count(place, owner, id, 0);
    freeReplyObject(redis_link_receive(&place->link, &ignored));
}
