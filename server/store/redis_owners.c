/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_owners.h"

#include "server/store/redis_keys.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

#include <stdlib.h>

static const char NAMES[] = ":sessions";

static void begin_script(struct redis_command *command, const char *script, const char *key)
{
    redis_command_begin(command, "EVAL");
    redis_command_text(command, script);
    redis_command_number(command, 1);
    redis_command_text(command, key);
}

void redis_owners_name(struct redis_command *command, const struct store_place *place,
                       const struct store_op *op, char key[REDIS_KEY_SIZE])
{
    redis_key_owner(key, place->model, op->owner, NAMES);
    begin_script(command, redis_script_name, key);
    redis_command_text(command, op->id);
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

/* Sends for the sessions from `at` on. How many were sent. */
static size_t send_names(const struct names *names, size_t at, size_t count, struct error *err)
{
    struct store_place *place = names->place;
    size_t sent = 0;
    for (; sent < count; sent++) {
        char key[REDIS_KEY_SIZE];
        struct redis_command command;
        redis_key_session(key, place->model, names->op->owner, name_at(names, at + sent), "");
        redis_command_begin(&command, "HMGET");
        redis_command_text(&command, key);
        redis_command_text(&command, "meta");
        redis_command_text(&command, "count");
        if (redis_link_send(&place->link, &command, err) != 0)
            break;
    }
    return sent;
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

/* Adds the sessions from `at` on. What has none is left out: it was deleted, or is being made. */
static void list_some(const struct names *names, size_t at, size_t count)
{
    struct store_op *op = names->op;
    struct error unsent = ERROR_INIT;
    bool lacking[NAMES_AT_ONCE] = {0};
    size_t sent = send_names(names, at, count, &unsent);
    for (size_t i = 0; i < sent; i++) {
        redisReply *reply = redis_link_receive(&names->place->link, &op->error);
        int found = reply != NULL ? redis_rows_card(&op->rows[op->num_rows], reply) : 0;
        if (found > 0)
            op->num_rows++;
        if (found < 0)
            error_set(&op->error, ERROR_NO_MEMORY, "no memory for the list of sessions");
        lacking[i] = reply != NULL && found == 0 && reply->type == REDIS_REPLY_ARRAY &&
                     reply->elements > 0 && reply->element[0]->type == REDIS_REPLY_NIL;
        freeReplyObject(reply);
    }
    if (sent < count && op->error.code == ERROR_NONE)
        op->error = unsent;
    for (size_t i = 0; i < sent && op->error.code == ERROR_NONE; i++)
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
