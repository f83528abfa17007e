/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_owners.h"

#include "engine/base/clock.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_quota.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

#include <math.h>
#include <stdlib.h>

static const char NAMES[] = ":sessions";

static void begin_script(struct redis_command *command, const char *script, const char *key)
{
    redis_command_begin(command, "EVAL");
    redis_command_text(command, script);
    redis_command_number(command, 1);
    redis_command_text(command, key);
}

/* ---- names ---- */

/* Its owner may not be known. */
static bool is_made(const struct store_op *op)
{
    return op->lease.version == 0;
}

void redis_owners_send_name(struct store_place *place, const struct store_op *op)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    if (is_made(op)) {
        redis_key_owners(key, place->model);
        redis_command_begin(&command, "SADD");
        redis_command_text(&command, key);
        redis_command_text(&command, op->owner);
        redis_link_send(&place->link, &command);
    }
    redis_key_owner(key, place->model, op->owner, NAMES);
    begin_script(&command, redis_script_name, key);
    redis_command_text(&command, op->id);
    redis_link_send(&place->link, &command);
}

/* That a set does not take a name is no reason not to commit. */
void redis_owners_receive_name(struct store_place *place, const struct store_op *op)
{
    struct error ignored = ERROR_INIT;
    if (is_made(op))
        freeReplyObject(redis_link_receive(&place->link, &ignored));
    freeReplyObject(redis_link_receive(&place->link, &ignored));
}

/* ---- lists ---- */

/* Names without a session live for so long: it may be about to be made. */
static const double DAY_SECONDS = 24 * 3600;

enum { NAMES_AT_ONCE = 256 };

/* The owner's names: name, score, name, score, … */
struct names {
    struct store_place *place;
    struct store_op *op;
    char key[REDIS_KEY_SIZE];
    double now; /* seconds, by the store's clock */
    const redisReply *words;
    size_t count;
};

static const char *name_at(const struct names *names, size_t at)
{
    return names->words->element[2 * at]->str;
}

static const char *score_at(const struct names *names, size_t at)
{
    return names->words->element[2 * at + 1]->str;
}

/* Sends for the sessions from `at` on. */
static void send_names(const struct names *names, size_t at, size_t count)
{
    struct store_place *place = names->place;
    for (size_t i = at; i < at + count; i++) {
        char key[REDIS_KEY_SIZE];
        struct redis_command command;
        redis_key_session(key, place->model, names->op->owner, name_at(names, i), "");
        redis_command_begin(&command, "HMGET");
        redis_command_text(&command, key);
        redis_command_text(&command, "meta");
        redis_command_text(&command, "count");
        redis_command_text(&command, "used");
        redis_command_text(&command, "holder");
        redis_link_send(&place->link, &command);
    }
}

/* One that has been put there again since then has another score, and stays. */
static void forget_name(const struct names *names, size_t at)
{
    struct redis_command command;
    struct error ignored = ERROR_INIT; /* whoever lists next tries again */
    begin_script(&command, redis_script_forget, names->key);
    redis_command_text(&command, name_at(names, at));
    redis_command_text(&command, score_at(names, at));
    freeReplyObject(redis_link_ask(&names->place->link, &command, &ignored));
}

/* It has lived its time, and nobody has swept it yet. */
static bool is_over(const struct names *names, const redisReply *reply)
{
    int64_t used, ttl = redis_owners_ttl_ms(names->place);
    return ttl > 0 && redis_rows_number(reply, 2, &used) == 0 &&
           names->now - (double)used * 1e-3 >= (double)ttl * 1e-3 && reply->elements > 3 &&
           reply->element[3]->type == REDIS_REPLY_NIL;
}

/* Adds the sessions from `at` on. What has none is left out: it was deleted, or is being made. */
static void list_some(const struct names *names, size_t at, size_t count)
{
    struct store_op *op = names->op;
    bool lacking[NAMES_AT_ONCE] = {0};
    send_names(names, at, count);
    for (size_t i = 0; i < count; i++) {
        redisReply *reply = redis_link_receive(&names->place->link, &op->error);
        int found = reply != NULL && !is_over(names, reply)
                        ? redis_rows_card(&op->rows[op->num_rows], reply)
                        : 0;
        if (found > 0)
            op->num_rows++;
        if (found < 0)
            error_set(&op->error, ERROR_NO_MEMORY, "no memory for the list of sessions");
        lacking[i] = reply != NULL && found == 0 && reply->type == REDIS_REPLY_ARRAY &&
                     reply->elements > 0 && reply->element[0]->type == REDIS_REPLY_NIL;
        freeReplyObject(reply);
    }
    for (size_t i = 0; i < count && op->error.code == ERROR_NONE; i++)
        if (lacking[i] && strtod(score_at(names, at + i), NULL) < names->now - DAY_SECONDS)
            forget_name(names, at + i);
}

/* {now in ms, {name, score, …}} */
static int take_names(struct names *names, const redisReply *reply)
{
    struct store_op *op = names->op;
    int64_t now;
    if (redis_rows_number(reply, 0, &now) != 0 || reply->elements != 2 ||
        reply->element[1]->type != REDIS_REPLY_ARRAY || reply->element[1]->elements % 2 != 0)
        return redis_rows_strange(reply, &op->error);
    names->now = (double)now * 1e-3;
    names->words = reply->element[1];
    names->count = names->words->elements / 2;
    for (size_t i = 0; i < names->words->elements; i++)
        if (names->words->element[i]->type != REDIS_REPLY_STRING)
            return redis_rows_strange(names->words, &op->error);
    op->rows = calloc(names->count + 1, sizeof *op->rows);
    return op->rows != NULL
               ? 0
               : error_set(&op->error, ERROR_NO_MEMORY, "no memory for the list of sessions");
}

void redis_owners_list(struct store_place *place, struct store_op *op)
{
    struct names names = {.place = place, .op = op};
    struct redis_command command;
    redis_key_owner(names.key, place->model, op->owner, NAMES);
    begin_script(&command, redis_script_names, names.key);
    redisReply *reply = redis_link_ask(&place->link, &command, &op->error);
    if (reply != NULL && take_names(&names, reply) == 0)
        for (size_t at = 0; at < names.count && op->error.code == ERROR_NONE; at += NAMES_AT_ONCE)
            list_some(&names, at,
                      names.count - at < NAMES_AT_ONCE ? names.count - at : NAMES_AT_ONCE);
    freeReplyObject(reply);
}

/* ---- times to live ---- */

enum { DUE_AT_ONCE = 100 };

int64_t redis_owners_ttl_ms(const struct store_place *place)
{
    return (int64_t)ceil(place->ttl_s * 1e3);
}

static void rescore(const struct names *names, size_t at, int64_t used_ms)
{
    struct redis_command command;
    struct error ignored = ERROR_INIT; /* it is looked at again */
    redis_command_begin(&command, "ZADD");
    redis_command_text(&command, names->key);
    redis_command_text(&command, "XX");
    redis_command_text(&command, "GT");
    redis_command_number(&command, used_ms / 1000);
    redis_command_text(&command, name_at(names, at));
    freeReplyObject(redis_link_ask(&names->place->link, &command, &ignored));
}

/* Removes the session if it has lived its time; the set then says what is true of it. */
static int expire(const struct names *names, const char *owner, size_t at, struct error *err)
{
    static const char *const SUFFIXES[] = {"", ":t", ":c"};
    enum { KEYS = sizeof SUFFIXES / sizeof *SUFFIXES };
    struct store_place *place = names->place;
    struct redis_command command;
    char keys[KEYS][REDIS_KEY_SIZE];
    int64_t used;
    redis_command_begin(&command, "EVAL");
    redis_command_text(&command, redis_script_expire);
    redis_command_number(&command, KEYS);
    for (size_t i = 0; i < KEYS; i++) {
        redis_key_session(keys[i], place->model, owner, name_at(names, at), SUFFIXES[i]);
        redis_command_text(&command, keys[i]);
    }
    redis_command_number(&command, redis_owners_ttl_ms(place));
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    if (reply == NULL)
        return -1;
    bool gone = redis_rows_is(reply, 0, "gone") || redis_rows_is(reply, 0, "none");
    if (gone) {
        forget_name(names, at);
        redis_quota_forget(place, owner, name_at(names, at));
    }
    if (redis_rows_is(reply, 0, "used") && redis_rows_number(reply, 1, &used) == 0)
        rescore(names, at, used);
    freeReplyObject(reply);
    return 0;
}

/* How many may have lived their time, of one owner. */
static size_t sweep_owner(struct store_place *place, const char *owner, struct error *err)
{
    struct names names = {.place = place};
    struct redis_command command;
    redis_key_owner(names.key, place->model, owner, NAMES);
    begin_script(&command, redis_script_due, names.key);
    redis_command_number(&command, redis_owners_ttl_ms(place));
    redis_command_number(&command, DUE_AT_ONCE);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    bool sound = reply != NULL && reply->type == REDIS_REPLY_ARRAY;
    for (size_t i = 0; sound && i < reply->elements; i++)
        sound = reply->element[i]->type == REDIS_REPLY_STRING;
    names.words = reply;
    names.count = sound ? reply->elements / 2 : 0;
    for (size_t i = 0; i < names.count && expire(&names, owner, i, err) == 0; i++)
        ;
    freeReplyObject(reply);
    return names.count;
}

static size_t sweep_all(struct store_place *place, struct error *err)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    size_t most = 0;
    redis_key_owners(key, place->model);
    redis_command_begin(&command, "SMEMBERS");
    redis_command_text(&command, key);
    redisReply *owners = redis_link_ask(&place->link, &command, err);
    bool sound = owners != NULL && owners->type == REDIS_REPLY_ARRAY;
    for (size_t i = 0; sound && err->code == ERROR_NONE && i < owners->elements; i++) {
        const redisReply *owner = owners->element[i];
        size_t due = owner->type == REDIS_REPLY_STRING ? sweep_owner(place, owner->str, err) : 0;
        most = due > most ? due : most;
    }
    freeReplyObject(owners);
    return most;
}

void redis_owners_sweep(struct store_place *place)
{
    const double least = 1, most = 60, parts = 8;
    struct error err = ERROR_INIT;
    double now = clock_seconds();
    if (place->ttl_s <= 0 || now < place->sweep_at)
        return;
    place->sweep_at = now + fmax(least, fmin(most, place->ttl_s / parts));
    if (redis_link_open(&place->link, false, &err) == 0 && sweep_all(place, &err) == DUE_AT_ONCE)
        place->sweep_at = now + least; /* there are more */
    if (err.code == ERROR_IO)
        redis_place_tell(place, &err);
}
