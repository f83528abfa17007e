/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_quota.h"

#include "api/sessions.h"
#include "engine/engine.h"
#include "lib/base/clock.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Names, and what was seen of each. */
enum { SOME_WORDS = 256 };

/* How long counting anew may keep requests waiting, where all are counted already. */
static const double RECOUNT_SECONDS = 0.1;

static int64_t bytes_of(const struct store_place *place, int64_t tokens, int64_t turns)
{
    return (tokens > 0 ? (int64_t)engine_state_bytes(place->engine, tokens) : 0) + turns;
}

/* A script on what the owner's sessions count; the name of one of them is its first argument. */
static void begin_script(struct redis_command *command, const struct store_place *place,
                         const char *owner, struct redis_script *script, const char *id,
                         char key[REDIS_KEY_SIZE])
{
    redis_key_owner(key, place->model, owner, ":quota");
    redis_scripts_begin(command, script, 1);
    redis_command_text(command, key);
    redis_command_text(command, id);
}

/* ---- counting anew ---- */

/* {name, what was seen of it, ...} of an owner, who is counted for the first time or not. */
struct recount {
    struct store_place *place;
    const char *owner;
    bool first;
    const redisReply *words;
};

static void send_size(const struct recount *recount, size_t at)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    redis_key_session(key, recount->place->model, recount->owner, recount->words->element[at]->str,
                      "");
    redis_scripts_begin(&command, &redis_script_size, 1);
    redis_command_text(&command, key);
    redis_link_send(&recount->place->link, &command);
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

/* The same by the reply. One that is damaged is told in the log, and counts as it did, and so does
 * one whose node is away, unless it is not known yet. */
static int64_t take_size(const struct recount *recount, size_t at, struct error *err)
{
    struct error failed = ERROR_INIT;
    redisReply *row = redis_link_receive(&recount->place->link, &failed);
    int64_t bytes = row != NULL ? counted(recount->place, row) : -1;
    if (failed.code == ERROR_INVALID)
        redis_place_tell_damage(recount->place, recount->owner, recount->words->element[at]->str,
                                &failed);
    else if (failed.code != ERROR_NONE && (recount->first || failed.code != ERROR_IO))
        error_set(err, failed.code, "%s", failed.message);
    freeReplyObject(row);
    return bytes;
}

/* Sends what it counts. False: it is as it was seen. */
static bool send_recount(const struct recount *recount, size_t at, int64_t bytes)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE], text[REDIS_NUMBER_SIZE];
    const redisReply *name = recount->words->element[at];
    const char *seen = recount->first ? "" : recount->words->element[at + 1]->str;
    snprintf(text, sizeof text, "%lld", (long long)bytes);
    if (bytes < 0 || name->len == 0 || strcmp(seen, text) == 0)
        return false;
    begin_script(&command, recount->place, recount->owner, &redis_script_recount, name->str, key);
    redis_command_text(&command, seen);
    redis_command_text(&command, text);
    redis_link_send(&recount->place->link, &command);
    return true;
}

static void recount_some(const struct recount *recount, size_t at, size_t behind, struct error *err)
{
    int64_t bytes[SOME_WORDS / 2];
    size_t sent = 0;
    for (size_t i = at; i < behind; i += 2)
        send_size(recount, i);
    for (size_t i = at; i < behind; i += 2)
        bytes[(i - at) / 2] = take_size(recount, i, err);
    for (size_t i = at; i < behind; i += 2)
        sent += send_recount(recount, i, bytes[(i - at) / 2]);
    for (; sent > 0; sent--)
        freeReplyObject(redis_link_receive(&recount->place->link, err));
}

/* From where the last one had to stop, all of them once. */
static void recount_words(const struct recount *recount, struct error *err)
{
    struct store_place *place = recount->place;
    const double until = recount->first ? INFINITY : clock_seconds() + RECOUNT_SECONDS;
    const size_t count = recount->words->elements / 2 * 2;
    size_t at = recount->first || place->recount_from >= count ? 0 : place->recount_from;
    for (size_t done = 0, some; done < count && err->code == ERROR_NONE && clock_seconds() < until;
         done += some) {
        some = count - at < SOME_WORDS ? count - at : SOME_WORDS;
        some = count - done < some ? count - done : some;
        recount_some(recount, at, at + some, err);
        at = at + some < count ? at + some : 0;
    }
    if (!recount->first)
        place->recount_from = at;
}

static void ask_total(struct store_place *place, const char *owner, struct error *err)
{
    char key[REDIS_KEY_SIZE];
    struct redis_command command;
    redis_key_owner(key, place->model, owner, ":quota");
    redis_scripts_begin(&command, &redis_script_total, 1);
    redis_command_text(&command, key);
    freeReplyObject(redis_link_ask(&place->link, &command, err));
}

/* set: the hash of those that are counted, or the names of all that there are. */
static void recount_set(struct store_place *place, const char *owner, const char *set, bool first,
                        struct error *err)
{
    char key[REDIS_KEY_SIZE];
    struct redis_command command;
    struct recount recount = {.place = place, .owner = owner, .first = first};
    redis_key_owner(key, place->model, owner, set);
    redis_command_begin(&command, first ? "ZRANGE" : "HGETALL");
    redis_command_text(&command, key);
    if (first) {
        redis_command_text(&command, "0");
        redis_command_text(&command, "-1");
        redis_command_text(&command, "WITHSCORES");
    }
    redisReply *words = redis_link_ask(&place->link, &command, err);
    recount.words = words;
    if (words != NULL && redis_rows_are_strings(words))
        recount_words(&recount, err);
    else if (words != NULL)
        redis_rows_strange(words, err);
    freeReplyObject(words);
}

/* Those that are counted; of an owner of whom nothing is, all that there are. */
static void recount_all(struct store_place *place, const char *owner, bool first, struct error *err)
{
    if (!first) {
        recount_set(place, owner, ":quota", first, err);
        return;
    }
    recount_set(place, owner, REDIS_SESSIONS, first, err);
    if (err->code == ERROR_NONE)
        recount_set(place, owner, REDIS_RESPONSES, first, err);
    if (err->code == ERROR_NONE)
        ask_total(place, owner, err);
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

/* True: it is so by now. False: "unknown", or "full". */
static bool try(struct store_place *place, struct store_reserve *reserve, bool *unknown)
{
    struct store_op *op = &reserve->session.op;
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    begin_script(&command, place, reserve->session.owner, &redis_script_reserve,
                 reserve->session.id, key);
    redis_command_number(&command, reserve->wanted_bytes);
    redis_command_number(&command, place->quota_bytes);
    redisReply *reply = redis_link_ask(&place->link, &command, &op->error);
    bool full = reply != NULL && redis_rows_is(reply, 0, "full") &&
                redis_rows_number(reply, 1, &reserve->held_bytes) == 0;
    *unknown = reply != NULL && redis_rows_is(reply, 0, "unknown");
    if (reply != NULL && !full && !*unknown && !redis_rows_is(reply, 0, "done"))
        redis_rows_strange(reply, &op->error);
    freeReplyObject(reply);
    return !full && !*unknown;
}

void redis_quota_reserve(struct store_place *place, struct store_reserve *reserve)
{
    struct store_op *op = &reserve->session.op;
    bool unknown;
    if (try(place, reserve, &unknown))
        return;
    if (unknown || may_recount(place, reserve->session.owner)) {
        recount_all(place, reserve->session.owner, unknown, &op->error);
        if (op->error.code != ERROR_NONE || try(place, reserve, &unknown))
            return;
    }
    op->refusal = STORE_QUOTA;
    error_set(&op->error, ERROR_INVALID, "the owner's sessions would take too much");
}

/* Bytes of the owner's responses, as they are counted. */
static int64_t bytes_of_responses(const redisReply *words)
{
    int64_t bytes = 0;
    for (size_t i = 0; i + 1 < words->elements; i += 2) {
        const char *name = words->element[i]->str;
        if (response_id_valid(name, strlen(name)))
            bytes += strtoll(words->element[i + 1]->str, NULL, 10);
    }
    return bytes;
}

bool redis_quota_may_fit(struct store_place *place, const struct store_reserve *reserve)
{
    struct redis_command command;
    struct error ignored = ERROR_INIT; /* the refusal stays */
    char key[REDIS_KEY_SIZE];
    redis_key_owner(key, place->model, reserve->session.owner, ":quota");
    redis_command_begin(&command, "HGETALL");
    redis_command_text(&command, key);
    redisReply *words = redis_link_ask(&place->link, &command, &ignored);
    bool known = words != NULL && redis_rows_are_strings(words);
    int64_t others = known ? reserve->held_bytes - bytes_of_responses(words) : INT64_MAX;
    freeReplyObject(words);
    return known && reserve->wanted_bytes <= place->quota_bytes - others;
}

static void send_count(struct store_place *place, const char *owner, const char *id, int64_t bytes)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    begin_script(&command, place, owner, &redis_script_count, id, key);
    redis_command_number(&command, bytes);
    redis_link_send(&place->link, &command);
}

/* What its session counts from now on. -1: as before; a write that failed may have been made. */
static int64_t counts(const struct store_place *place, const struct store_op *op)
{
    const struct store_commit *commit = (const struct store_commit *)op;
    const struct store_give *give = (const struct store_give *)op;
    if (place->quota_bytes == 0 || op->error.code != ERROR_NONE)
        return -1;
    return op->what == STORE_COMMIT   ? bytes_of(place, commit->count, commit->turns_length)
           : op->what == STORE_DELETE ? 0
           : op->what == STORE_GIVE && give->counted
               ? bytes_of(place, give->count, give->turns_length)
               : -1;
}

void redis_quota_count(struct store_place *place, const struct store_op *first)
{
    struct error ignored = ERROR_INIT; /* it is counted anew before it matters */
    for (const struct store_op *op = first; op != NULL; op = op->next) {
        const struct store_session_op *session = (const struct store_session_op *)op;
        if (counts(place, op) >= 0)
            send_count(place, session->owner, session->id, counts(place, op));
    }
    for (const struct store_op *op = first; op != NULL; op = op->next)
        if (counts(place, op) >= 0)
            freeReplyObject(redis_link_receive(&place->link, &ignored));
}

bool redis_quota_send_forget(struct store_place *place, const char *owner, const char *id)
{
    if (place->quota_bytes == 0)
        return false;
    send_count(place, owner, id, 0);
    return true;
}
