/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_owners.h"

#include "lib/base/clock.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_quota.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void begin_script(struct redis_command *command, struct redis_script *script,
                         const char *key)
{
    redis_scripts_begin(command, script, 1);
    redis_command_text(command, key);
}

/* ---- names ---- */

/* Its owner may not be known. */
static bool is_made(const struct store_session_op *op)
{
    return op->lease.version == 0;
}

void redis_owners_send_name(struct store_place *place, const struct store_session_op *op)
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
    redis_key_owner(key, place->model, op->owner, redis_key_names(op->id));
    begin_script(&command, &redis_script_name, key);
    redis_command_text(&command, op->id);
    redis_link_send(&place->link, &command);
}

/* That a set does not take a name is no reason not to commit. */
void redis_owners_receive_name(struct store_place *place, const struct store_session_op *op)
{
    for (int made = is_made(op); made >= 0; made--) {
        struct error failed = ERROR_INIT;
        freeReplyObject(redis_link_receive(&place->link, &failed));
        if (failed.code == ERROR_INVALID)
            redis_place_tell_damage(place, op->owner, made ? "the set of owners" : "the list",
                                    &failed);
    }
}

/* ---- lists ---- */

/* Names without a session live for so long: it may be about to be made. */
static const double DAY_SECONDS = 24 * 3600;

enum { NAMES_AT_ONCE = 256 };

/* The owner's names: name, score, name, score, … */
struct names {
    struct store_place *place;
    const char *owner;
    int64_t ttl_ms; /* of all of them */
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

/* {now in ms, {name, score, …}}, which is borrowed. */
static int take_names(struct names *names, const redisReply *reply, struct error *err)
{
    int64_t now;
    if (redis_rows_number(reply, 0, &now) != 0 || reply->elements != 2 ||
        !redis_rows_are_strings(reply->element[1]) || reply->element[1]->elements % 2 != 0)
        return redis_rows_strange(reply, err);
    names->now = (double)now * 1e-3;
    names->words = reply->element[1];
    names->count = names->words->elements / 2;
    return 0;
}

/* The reply about the session. One that is damaged is told in the log, and has none; other errors
 * are set. */
static redisReply *receive(const struct names *names, size_t at, struct error *err)
{
    struct error failed = ERROR_INIT;
    redisReply *reply = redis_link_receive(&names->place->link, &failed);
    if (failed.code == ERROR_INVALID)
        redis_place_tell_damage(names->place, names->owner, name_at(names, at), &failed);
    else if (failed.code != ERROR_NONE)
        error_set(err, failed.code, "%s", failed.message);
    return reply;
}

/* Sends for the sessions from `at` on. */
static void send_names(const struct names *names, size_t at, size_t count)
{
    struct store_place *place = names->place;
    for (size_t i = at; i < at + count; i++) {
        char key[REDIS_KEY_SIZE];
        struct redis_command command;
        redis_key_session(key, place->model, names->owner, name_at(names, i), "");
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
static void send_forget(const struct names *names, size_t at)
{
    struct redis_command command;
    begin_script(&command, &redis_script_forget, names->key);
    redis_command_text(&command, name_at(names, at));
    redis_command_text(&command, score_at(names, at));
    redis_link_send(&names->place->link, &command);
}

/* Of the sessions whose names are in such a set. */
static int64_t ttl_ms_of(const struct store_place *place, const char *set)
{
    bool responses = strcmp(set, REDIS_RESPONSES) == 0;
    return (int64_t)ceil((responses ? place->response_ttl_s : place->ttl_s) * 1e3);
}

/* It has lived its time, and nobody has swept it yet. */
static bool is_over(const struct names *names, const redisReply *reply)
{
    int64_t used, ttl = names->ttl_ms;
    return ttl > 0 && redis_rows_number(reply, 2, &used) == 0 &&
           names->now - (double)used * 1e-3 >= (double)ttl * 1e-3 && reply->elements > 3 &&
           reply->element[3]->type == REDIS_REPLY_NIL;
}

/* Takes those names out that have had no session for long. Whoever lists next tries again. */
static void forget_old(const struct names *names, size_t at, size_t count, const bool lacking[])
{
    struct error ignored = ERROR_INIT;
    size_t sent = 0;
    for (size_t i = 0; i < count; i++)
        if (lacking[i] && strtod(score_at(names, at + i), NULL) < names->now - DAY_SECONDS) {
            send_forget(names, at + i);
            sent++;
        }
    for (; sent > 0; sent--)
        freeReplyObject(redis_link_receive(&names->place->link, &ignored));
}

/* Adds the sessions from `at` on. What has none is left out: it was deleted, or is being made. */
static void list_some(const struct names *names, struct store_list *list, size_t at, size_t count)
{
    struct error *err = &list->session.op.error;
    bool lacking[NAMES_AT_ONCE] = {0};
    send_names(names, at, count);
    for (size_t i = 0; i < count; i++) {
        redisReply *reply = receive(names, at + i, err);
        int found = reply != NULL && !is_over(names, reply)
                        ? redis_rows_card(&list->rows[list->num_rows], reply)
                        : 0;
        if (found > 0)
            list->num_rows++;
        if (found < 0)
            error_set(err, ERROR_NO_MEMORY, "no memory for the list of sessions");
        lacking[i] = reply != NULL && found == 0 && reply->type == REDIS_REPLY_ARRAY &&
                     reply->elements > 0 && reply->element[0]->type == REDIS_REPLY_NIL;
        freeReplyObject(reply);
    }
    if (err->code == ERROR_NONE)
        forget_old(names, at, count, lacking);
}

void redis_owners_list(struct store_place *place, struct store_list *list)
{
    const char *owner = list->session.owner;
    struct error *err = &list->session.op.error;
    struct names names = {
        .place = place, .owner = owner, .ttl_ms = ttl_ms_of(place, REDIS_SESSIONS)};
    struct redis_command command;
    redis_key_owner(names.key, place->model, owner, REDIS_SESSIONS);
    begin_script(&command, &redis_script_names, names.key);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    if (reply != NULL && take_names(&names, reply, err) == 0 &&
        (list->rows = calloc(names.count + 1, sizeof *list->rows)) == NULL)
        error_set(err, ERROR_NO_MEMORY, "no memory for the list of sessions");
    for (size_t at = 0; at < names.count && err->code == ERROR_NONE; at += NAMES_AT_ONCE)
        list_some(&names, list, at,
                  names.count - at < NAMES_AT_ONCE ? names.count - at : NAMES_AT_ONCE);
    freeReplyObject(reply);
}

/* ---- times to live ---- */

enum { DUE_AT_ONCE = 100, OWNERS_AT_ONCE = 64 };

/* What a sweep has found of a session, where it is not its last use in ms. */
enum { SWEEP_NOTHING = -2, SWEEP_GONE = -1 };

/* How long a sweep may keep requests waiting: the rest follows after them. */
static const double SWEEP_SECONDS = 0.1;

int64_t redis_owners_ttl_ms(const struct store_place *place, const char *id)
{
    return ttl_ms_of(place, redis_key_names(id));
}

static void send_score(const struct names *names, size_t at, int64_t used_ms)
{
    struct redis_command command;
    redis_command_begin(&command, "ZADD");
    redis_command_text(&command, names->key);
    redis_command_text(&command, "XX");
    redis_command_text(&command, "GT");
    redis_command_number(&command, used_ms / 1000);
    redis_command_text(&command, name_at(names, at));
    redis_link_send(&names->place->link, &command);
}

static void send_expire(const struct names *names, size_t at)
{
    static const char *const SUFFIXES[] = {"", ":t", ":c"};
    enum { KEYS = sizeof SUFFIXES / sizeof *SUFFIXES };
    struct store_place *place = names->place;
    struct redis_command command;
    char keys[KEYS][REDIS_KEY_SIZE];
    redis_scripts_begin(&command, &redis_script_expire, KEYS);
    for (size_t i = 0; i < KEYS; i++) {
        redis_key_session(keys[i], place->model, names->owner, name_at(names, at), SUFFIXES[i]);
        redis_command_text(&command, keys[i]);
    }
    redis_command_number(&command, names->ttl_ms);
    redis_link_send(&place->link, &command);
}

/* One that is damaged is looked at again when it would have lived its time from now. */
static int64_t take_expired(const struct names *names, size_t at, struct error *err)
{
    struct error failed = ERROR_INIT;
    int64_t used = SWEEP_NOTHING;
    redisReply *reply = receive(names, at, &failed);
    if (failed.code != ERROR_NONE)
        error_set(err, failed.code, "%s", failed.message);
    else if (reply == NULL)
        used = (int64_t)(names->now * 1e3);
    else if (redis_rows_is(reply, 0, "gone") || redis_rows_is(reply, 0, "none"))
        used = SWEEP_GONE;
    else if (!redis_rows_is(reply, 0, "used") || redis_rows_number(reply, 1, &used) != 0)
        used = SWEEP_NOTHING;
    freeReplyObject(reply);
    return used;
}

/* What was found is what the set then says. Returns how many replies will come. */
static size_t send_found(const struct names *names, size_t at, int64_t used)
{
    if (used == SWEEP_NOTHING)
        return 0;
    if (used != SWEEP_GONE) {
        send_score(names, at, used);
        return 1;
    }
    send_forget(names, at);
    return 1 + (size_t)redis_quota_send_forget(names->place, names->owner, name_at(names, at));
}

/* Removes those that have lived their time; the set then says what is true of them. */
static void expire(const struct names *names, struct error *err)
{
    struct redis_link *link = &names->place->link;
    struct error ignored = ERROR_INIT; /* it is looked at again */
    int64_t used[DUE_AT_ONCE];
    size_t count = names->count < DUE_AT_ONCE ? names->count : DUE_AT_ONCE, sent = 0;
    for (size_t i = 0; i < count; i++)
        send_expire(names, i);
    for (size_t i = 0; i < count; i++)
        used[i] = take_expired(names, i, err);
    for (size_t i = 0; i < count; i++)
        sent += send_found(names, i, used[i]);
    for (; sent > 0; sent--)
        freeReplyObject(redis_link_receive(link, &ignored));
}

static void send_due(struct store_place *place, const char *owner, const char *set)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    redis_key_owner(key, place->model, owner, set);
    begin_script(&command, &redis_script_due, key);
    redis_command_number(&command, ttl_ms_of(place, set));
    redis_command_number(&command, DUE_AT_ONCE);
    redis_link_send(&place->link, &command);
}

/* ---- room ---- */

/* Removes it if it was not used since the set has noted that. */
static bool drop_if_noted(struct names *names, size_t at, struct error *err)
{
    const double second_ms = 1e3;
    struct error ignored = ERROR_INIT;
    double noted = strtod(score_at(names, at), NULL);
    names->ttl_ms = (int64_t)fmax(1, (names->now - noted - 1) * second_ms);
    send_expire(names, at);
    int64_t used = take_expired(names, at, err);
    for (size_t sent = send_found(names, at, used); sent > 0; sent--)
        freeReplyObject(redis_link_receive(&names->place->link, &ignored));
    return used == SWEEP_GONE;
}

bool redis_owners_drop_response(struct store_place *place, const char *owner, struct error *err)
{
    struct names names = {.place = place, .owner = owner};
    struct redis_command command;
    bool dropped = false;
    redis_key_owner(names.key, place->model, owner, REDIS_RESPONSES);
    begin_script(&command, &redis_script_due, names.key);
    redis_command_number(&command, 0);
    redis_command_number(&command, DUE_AT_ONCE);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    if (reply != NULL && take_names(&names, reply, err) == 0)
        for (size_t at = 0; at < names.count && !dropped && err->code == ERROR_NONE; at++)
            dropped = drop_if_noted(&names, at, err);
    freeReplyObject(reply);
    return dropped;
}

/* ---- the sweep ---- */

/* Of so many owners, one of their sets. *more: one of them may have more than were looked at. */
static void sweep_some(struct store_place *place, redisReply *const owners[], size_t count,
                       const char *set, bool *more, struct error *err)
{
    redisReply *due[OWNERS_AT_ONCE] = {0};
    for (size_t i = 0; i < count; i++)
        send_due(place, owners[i]->str, set);
    for (size_t i = 0; i < count; i++) {
        struct error failed = ERROR_INIT;
        due[i] = redis_link_receive(&place->link, &failed);
        if (failed.code == ERROR_INVALID)
            redis_place_tell_damage(place, owners[i]->str, "the list", &failed);
        else if (failed.code != ERROR_NONE)
            error_set(err, failed.code, "%s", failed.message);
    }
    for (size_t i = 0; i < count; i++) {
        struct names names = {
            .place = place, .owner = owners[i]->str, .ttl_ms = ttl_ms_of(place, set)};
        redis_key_owner(names.key, place->model, names.owner, set);
        if (due[i] != NULL && take_names(&names, due[i], err) == 0)
            expire(&names, err);
        *more |= names.count >= DUE_AT_ONCE;
        freeReplyObject(due[i]);
    }
}

/* From where the last sweep had to stop. *more: it is to go on soon. */
static void sweep_all(struct store_place *place, bool *more, struct error *err)
{
    const double until = clock_seconds() + SWEEP_SECONDS;
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    redis_key_owners(key, place->model);
    redis_command_begin(&command, "SMEMBERS");
    redis_command_text(&command, key);
    redisReply *owners = redis_link_ask(&place->link, &command, err);
    if (owners == NULL)
        return;
    size_t count = redis_rows_are_strings(owners) ? owners->elements : 0;
    size_t at = place->sweep_from < count ? place->sweep_from : 0;
    while (at < count && clock_seconds() < until) {
        size_t some = count - at < OWNERS_AT_ONCE ? count - at : OWNERS_AT_ONCE;
        if (place->ttl_s > 0)
            sweep_some(place, owners->element + at, some, REDIS_SESSIONS, more, err);
        if (place->response_ttl_s > 0)
            sweep_some(place, owners->element + at, some, REDIS_RESPONSES, more, err);
        at += some;
    }
    place->sweep_from = at < count ? at : 0;
    *more |= at < count;
    freeReplyObject(owners);
}

/* 0: nothing ends. */
static double least_ttl(const struct store_place *place)
{
    if (place->ttl_s <= 0 || place->response_ttl_s <= 0)
        return fmax(place->ttl_s, place->response_ttl_s);
    return fmin(place->ttl_s, place->response_ttl_s);
}

void redis_owners_sweep(struct store_place *place)
{
    const double least = 1, most = 60, parts = 8;
    struct error err = ERROR_INIT;
    double now = clock_seconds();
    bool more = false;
    double ttl_s = least_ttl(place);
    if (ttl_s <= 0 || now < place->sweep_at)
        return;
    place->sweep_at = now + fmax(least, fmin(most, ttl_s / parts));
    if (redis_link_open(&place->link, false, &err) == 0)
        sweep_all(place, &more, &err);
    if (more)
        place->sweep_at = now + least;
    if (err.code == ERROR_INVALID)
        redis_place_tell_damage(place, "all", "the set of owners", &err);
    else if (err.code == ERROR_IO)
        redis_place_tell(place, &err);
}
