/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_sessions.h"

#include "api/sessions.h"
#include "lib/base/clock.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_owners.h"
#include "server/store/redis_quota.h"
#include "server/store/redis_replicas.h"
#include "server/store/redis_replies.h"
#include "server/store/redis_room.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 3, SUM_SIZE = 17, FIELD_SIZE = 40, VALUE_SIZE = 64 };

/* A value of Redis has at most 512 MiB. */
static const int64_t MOST_BYTES = 256 << 20;

/* Not done, or not known to be. */
static bool is_open(const struct store_op *op)
{
    return op->error.code == ERROR_IO;
}

/* What may be sent again: the store knows it, or does not mind. */
static bool is_lasting(const struct store_op *op)
{
    return op->what == STORE_COMMIT || op->what == STORE_DELETE;
}

/* What is sent again later. */
static bool is_kept(const struct store_op *op)
{
    return is_open(op) &&
           (is_lasting(op) || (op->what == STORE_GIVE && ((const struct store_give *)op)->lasts));
}

/* Others concern an owner, and are run one after the other. */
static bool is_sent(const struct store_op *op)
{
    return is_open(op) && op->what != STORE_LIST && op->what != STORE_RESERVE;
}

/* ---- commands ---- */

/* What a command borrows while it is put together. */
struct words {
    struct redis_command command;
    char keys[KEYS][REDIS_KEY_SIZE];
    char sum[SUM_SIZE], field[FIELD_SIZE], value[VALUE_SIZE];
};

static struct redis_command *begin_script(struct words *words, const struct store_place *place,
                                          const struct store_session_op *session,
                                          struct redis_script *script)
{
    static const char *const SUFFIXES[KEYS] = {"", ":t", ":c"};
    redis_scripts_begin(&words->command, script, KEYS);
    for (size_t i = 0; i < KEYS; i++) {
        redis_key_session(words->keys[i], place->model, session->owner, session->id, SUFFIXES[i]);
        redis_command_text(&words->command, words->keys[i]);
    }
    return &words->command;
}

/* An Idempotency-Key in the row of the session whose turn its request has made: the hash of the
 * request's body, and until when that is known. */
static void name_key(struct words *words, const struct store_reply *key)
{
    char hash[REDIS_HASH_SIZE];
    redis_replies_hash(key, hash);
    snprintf(words->field, FIELD_SIZE, "k:%s", hash);
    redis_replies_body(key, words->value);
    snprintf(words->value + 2 * STORE_BODY_BYTES, VALUE_SIZE - 2 * STORE_BODY_BYTES, ":%lld",
             (long long)(key->expires_ns / 1000000));
}

/* NULL: there is none, or its response is known by its name. */
static const struct store_reply *key_of(const struct store_session_op *session,
                                        const struct store_reply *key)
{
    return response_id_valid(session->id, strlen(session->id)) ? NULL : key;
}

static void put_commit(struct words *words, const struct store_place *place,
                       const struct store_commit *commit)
{
    const struct store_session_op *session = &commit->session;
    const struct store_reply *key = key_of(session, commit->claims);
    struct redis_command *command = begin_script(words, place, session, &redis_script_commit);
    const int64_t size = (int64_t)sizeof *commit->tokens;
    redis_command_text(command, session->lease.holder);
    redis_command_number(command, session->lease.fence);
    redis_command_number(command, session->lease.version);
    redis_command_number(command, commit->from * size);
    redis_command_bytes(command, commit->tokens != NULL ? commit->tokens + commit->from : NULL,
                        (size_t)((commit->count - commit->from) * size));
    redis_command_number(command, commit->count * size);
    redis_command_number(command, commit->turns_from);
    redis_command_bytes(command, commit->turns != NULL ? commit->turns + commit->turns_from : NULL,
                        (size_t)(commit->turns_length - commit->turns_from));
    redis_command_number(command, commit->turns_length);
    redis_command_bytes(command, commit->meta, commit->meta_length);
    redis_command_number(command, commit->count);
    redis_command_number(command, commit->state);
    snprintf(words->sum, SUM_SIZE, "%016" PRIx64,
             store_rows_sum(commit->meta, commit->meta_length, commit->tokens, commit->count,
                            commit->turns, commit->turns_length));
    redis_command_text(command, words->sum);
    if (key == NULL)
        return;
    name_key(words, key);
    redis_command_text(command, words->field);
    redis_command_text(command, words->value);
    redis_command_number(command, clock_nanos(CLOCK_REALTIME) / 1000000);
}

static struct redis_command *put_look(struct words *words, const struct store_place *place,
                                      const struct store_look *look, struct redis_script *script)
{
    struct redis_command *command = begin_script(words, place, &look->session, script);
    redis_command_number(command, look->session.lease.version);
    redis_command_number(command, redis_owners_ttl_ms(place, look->session.id));
    return command;
}

static void put_take(struct words *words, const struct store_place *place,
                     const struct store_take *take)
{
    const struct store_reply *key = key_of(&take->look.session, take->key);
    struct redis_command *command = put_look(words, place, &take->look, &redis_script_take);
    redis_command_text(command, take->look.session.lease.holder);
    redis_command_number(command, (int64_t)(place->lease_s * 1e3));
    if (key != NULL)
        name_key(words, key);
    redis_command_text(command, key != NULL ? words->field : "");
}

/* What an attempt has read whose replicas did not answer. */
static void forget_row(struct store_op *op)
{
    struct store_look *look = (struct store_look *)op;
    if (op->what != STORE_TAKE && op->what != STORE_LOOK)
        return;
    store_rows_free(look->row, 1);
    look->row = NULL;
}

static void send_op(struct store_place *place, struct store_op *op)
{
    struct words words;
    struct store_session_op *session = (struct store_session_op *)op;
    forget_row(op);
    switch (op->what) {
    case STORE_COMMIT:
        redis_owners_send_name(place, session);
        put_commit(&words, place, (const struct store_commit *)op);
        break;
    case STORE_TAKE:
        put_take(&words, place, (const struct store_take *)op);
        break;
    case STORE_LOOK: {
        const struct store_look *look = (const struct store_look *)op;
        redis_command_text(put_look(&words, place, look, &redis_script_look),
                           look->uses ? "1" : "0");
        break;
    }
    case STORE_DELETE:
        redis_command_text(begin_script(&words, place, session, &redis_script_remove),
                           session->lease.holder);
        redis_command_number(&words.command, session->lease.version);
        break;
    default:
        redis_command_text(begin_script(&words, place, session, &redis_script_give),
                           session->lease.holder);
        break;
    }
    session->sends++;
    redis_link_send(&place->link, &words.command);
}

/* ---- replies ---- */

static int refuse(struct store_op *op, enum store_refusal refusal, const char *why)
{
    op->refusal = refusal;
    return error_set(&op->error, ERROR_INVALID, "%s", why);
}

static void take_busy(struct store_op *op, const redisReply *reply)
{
    int64_t ms;
    refuse(op, STORE_BUSY, "another server has it");
    if (redis_rows_number(reply, 1, &ms) == 0)
        op->busy_ms = ms;
}

/* Another has changed the session. That may have been after this operation, whose first reply was
 * lost: then nobody knows whether it was carried out. */
static void take_conflict(struct store_op *op, const char *why)
{
    refuse(op, ((struct store_session_op *)op)->sends > 1 ? STORE_AWAY : STORE_CONFLICT, why);
}

static void take_commit(struct store_op *op, const redisReply *reply)
{
    if (redis_rows_is(reply, 0, "done"))
        return;
    if (redis_rows_is(reply, 0, "lost"))
        take_conflict(op, "its lease had ended, and another request has taken it");
    else if (redis_rows_is(reply, 0, "other") || redis_rows_is(reply, 0, "short"))
        take_conflict(op, "it is no longer what the request began with");
    else
        redis_rows_strange(reply, &op->error);
}

/* What the row says of the request's Idempotency-Key, if that is still known. */
static void take_key(struct store_take *take, const redisReply *reply)
{
    struct words words;
    struct store_op *op = &take->look.session.op;
    const struct store_reply *key = key_of(&take->look.session, take->key);
    const char *value = reply->element[1]->str;
    size_t length = reply->element[1]->len;
    const char *colon = length > 0 ? memchr(value, ':', length) : NULL;
    if ((op->error.code != ERROR_NONE && op->refusal != STORE_CONFLICT) || key == NULL ||
        colon == NULL || strtoll(colon + 1, NULL, 10) < clock_nanos(CLOCK_REALTIME) / 1000000)
        return;
    name_key(&words, key);
    bool same = (size_t)(colon - value) == 2 * STORE_BODY_BYTES &&
                memcmp(value, words.value, 2 * STORE_BODY_BYTES) == 0;
    refuse(op, same ? STORE_KEY_DONE : STORE_KEY_OTHER,
           "the request with this Idempotency-Key has made its turn");
}

static void take_row(struct store_place *place, struct store_look *look, const redisReply *reply)
{
    enum { BEFORE = 3 };
    struct store_op *op = &look->session.op;
    struct store_lease *lease = &look->session.lease;
    int64_t fence, used;
    if (redis_rows_is(reply, 0, "busy")) {
        take_busy(op, reply);
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements <= BEFORE ||
        redis_rows_number(reply, 0, &fence) != 0 || reply->element[1]->type != REDIS_REPLY_STRING ||
        redis_rows_number(reply, 2, &used) != 0) {
        redis_rows_strange(reply, &op->error);
        return;
    }
    lease->fence = fence;
    look->used = (double)used * 1e-3;
    if (redis_rows_is(reply, BEFORE, "none")) {
        look->seen = STORE_SEEN_NONE;
        lease->version = 0;
    } else if (redis_rows_is(reply, BEFORE, "same")) {
        look->seen = STORE_SEEN_SAME;
    } else {
        int64_t known = lease->version;
        look->seen = STORE_SEEN_OTHER;
        if (redis_rows_take(look, reply, BEFORE, place->vocab_size) == 0 &&
            lease->version < known) {
            store_accounts_count(place->accounts, &place->accounts->report.older_copies, 1);
            refuse(op, STORE_CONFLICT,
                   "the store has an older copy of it than this server has seen: turns that were "
                   "acknowledged are gone");
        }
    }
}

static void take_reply(struct store_place *place, struct store_op *op, const redisReply *reply)
{
    switch (op->what) {
    case STORE_COMMIT:
        take_commit(op, reply);
        break;
    case STORE_TAKE:
        take_row(place, &((struct store_take *)op)->look, reply);
        if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 1)
            take_key((struct store_take *)op, reply);
        break;
    case STORE_LOOK:
        take_row(place, (struct store_look *)op, reply);
        break;
    case STORE_DELETE:
        if (redis_rows_is(reply, 0, "busy"))
            take_busy(op, reply);
        else if (redis_rows_is(reply, 0, "other"))
            take_conflict(op, "it is no longer what was to be removed");
        else if (!redis_rows_is(reply, 0, "done"))
            redis_rows_strange(reply, &op->error);
        break;
    default:
        break;
    }
}

/* ---- operations ---- */

/* Without a reply what has become of it is not known. */
static void receive(struct store_place *place, struct store_op *op)
{
    struct error failed = ERROR_INIT;
    if (op->what == STORE_COMMIT)
        redis_owners_receive_name(place, (struct store_session_op *)op);
    redisReply *reply = redis_link_receive(&place->link, &failed);
    if (reply == NULL) {
        op->error = failed;
        return;
    }
    error_clear(&op->error);
    take_reply(place, op, reply);
    freeReplyObject(reply);
    /* That a turn was made before is told only where its replicas have it. */
    if ((is_lasting(op) && op->error.code == ERROR_NONE) || op->refusal == STORE_KEY_DONE)
        redis_replicas_note(place, (struct store_session_op *)op);
}

/* Sends those that are open, and takes their replies. */
static void attempt(struct store_place *place, struct store_op *first, bool hurry)
{
    struct error err = ERROR_INIT;
    bool open = redis_link_open(&place->link, hurry, &err) == 0;
    for (struct store_op *op = first; open && op != NULL; op = op->next)
        if (is_sent(op))
            send_op(place, op);
    for (struct store_op *op = first; op != NULL; op = op->next) {
        if (!is_sent(op))
            continue;
        if (open)
            receive(place, op);
        else
            op->error = err;
    }
    redis_replicas_wait(place, first);
    for (struct store_op *op = first; op != NULL && err.code == ERROR_NONE; op = op->next)
        if (is_sent(op))
            err = op->error;
    redis_place_tell(place, err.code != ERROR_NONE ? &err : NULL);
}

/* A lease that came with an error is given back. */
static void end_take(struct store_place *place, struct store_session_op *session)
{
    struct words words;
    struct error lacking = ERROR_INIT;
    if (session->lease.fence == 0 || session->op.error.code == ERROR_NONE)
        return;
    redis_command_text(begin_script(&words, place, session, &redis_script_give),
                       session->lease.holder);
    freeReplyObject(redis_link_ask(&place->link, &words.command, &lacking));
}

static void begin(struct store_place *place, struct store_op *op)
{
    struct store_session_op *session = (struct store_session_op *)op;
    const struct store_commit *commit = (const struct store_commit *)op;
    session->sends = 0;
    op->until = redis_kept_until(place->lease_s);
    session->route = (struct store_route){0};
    if (op->what == STORE_COMMIT && (commit->count > MOST_BYTES / (int64_t)sizeof *commit->tokens ||
                                     commit->turns_length > MOST_BYTES))
        error_set(&op->error, ERROR_INVALID,
                  "a session in a shared store has at most %lld bytes of tokens, and of turns",
                  (long long)MOST_BYTES);
    else
        error_set(&op->error, ERROR_IO, "not sent");
    if (op->what == STORE_TAKE)
        session->lease.fence = 0;
}

/* What concerns an owner. */
static void ask_owner(struct store_place *place, struct store_op *op)
{
    error_clear(&op->error);
    if (redis_link_open(&place->link, false, &op->error) != 0)
        return;
    if (op->what == STORE_LIST)
        redis_owners_list(place, (struct store_list *)op);
    else
        redis_room_reserve(place, (struct store_reserve *)op);
}

static bool any_lasting(const struct store_op *first)
{
    while (first != NULL && !(is_open(first) && is_lasting(first)))
        first = first->next;
    return first != NULL;
}

/* The first attempt, and all that can be sent once. */
static void run_once(struct store_place *place, struct store_op *first)
{
    bool was_away = place->away;
    attempt(place, first, any_lasting(first));
    if (place->away && !was_away) /* it may have been started anew since the last time */
        attempt(place, first, true);
    for (struct store_op *op = first; op != NULL; op = op->next) {
        if (op->what == STORE_TAKE)
            end_take(place, (struct store_session_op *)op);
        if (is_open(op) && !is_sent(op))
            ask_owner(place, op);
        if (is_open(op) && !is_kept(op))
            op->refusal = STORE_AWAY;
    }
}

struct store_op *redis_sessions_run(struct store_place *place, struct store_op *first)
{
    for (struct store_op *op = first; op != NULL; op = op->next)
        begin(place, op);
    first = redis_kept_take(&place->kept_sessions, first);
    if (first == NULL)
        return NULL;
    run_once(place, first);
    first = redis_kept_put(&place->kept_sessions, first, is_kept);
    redis_quota_count(place, first);
    for (struct store_op *op = first; op != NULL; op = op->next) {
        if (is_open(op))
            op->refusal = STORE_AWAY;
        if (op->error.code != ERROR_NONE && op->refusal != STORE_BUSY &&
            op->refusal != STORE_KEY_DONE && op->refusal != STORE_KEY_OTHER &&
            op->refusal != STORE_QUOTA)
            store_accounts_fail(place->accounts);
    }
    return first;
}
