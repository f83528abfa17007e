/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/shelf_place.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_place.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_sessions.h"
#include "server/store/store.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct shelf_shared {
    struct store_place *place;
    struct store_accounts accounts;
};

/* Of what is taken here: a change takes much less. */
static const double LEASE_SECONDS = 10;

/* ---- opening ---- */

static void store_close_place(struct shelf *shelf)
{
    struct shelf_shared *shared = shelf->place;
    if (shared->place != NULL)
        redis_place_close(shared->place);
    store_accounts_clear(&shared->accounts);
    free(shared);
}

static int store_open_place(struct shelf *shelf, enum shelf_use use, const unsigned char *secret,
                            struct error *err)
{
    struct shelf_shared *shared = calloc(1, sizeof *shared);
    (void)use;
    if (shared == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a place of sessions");
    store_accounts_init(&shared->accounts, INT64_MAX);
    shelf->place = shared;
    if (redis_place_open(&shared->place, shelf->location, NULL, LEASE_SECONDS, secret,
                         &shared->accounts, err) != 0)
        return -1;
    shared->place->vocab_size = INT32_MAX;
    shelf->secret = shared->place->secret;
    shelf->name = strdup(redis_link_name(&shared->place->link));
    return shelf->name != NULL ? 0 : error_set(err, ERROR_NO_MEMORY, "no memory for a name");
}

/* ---- operations on one session ---- */

/* Runs the operation. Returns -1 where it failed; a refusal is none. */
static int run(struct shelf *shelf, struct store_op *op, const struct shelf_session *session,
               enum store_what what, struct error *err)
{
    struct shelf_shared *shared = shelf->place;
    op->kind = STORE_SESSION;
    op->what = what;
    op->owner = session->meta.owner;
    op->id = session->meta.id;
    memcpy(shared->place->model, session->model, sizeof shared->place->model);
    redis_sessions_run(shared->place, op);
    if (op->error.code == ERROR_NONE || op->refusal == STORE_BUSY || op->refusal == STORE_CONFLICT)
        return 0;
    *err = op->error;
    return error_prefix(err, "session %s", session->meta.id);
}

static enum shelf_outcome outcome_of(const struct store_op *op)
{
    return op->error.code == ERROR_NONE ? SHELF_DONE
           : op->refusal == STORE_BUSY  ? SHELF_BUSY
                                        : SHELF_OTHER;
}

static int take(struct shelf *shelf, struct store_op *op, const struct shelf_session *session,
                struct error *err)
{
    if (!store_random_name(op->lease.holder))
        return error_set(err, ERROR_IO, "the system has no random numbers");
    return run(shelf, op, session, STORE_TAKE, err);
}

/* Gives back what take has got; keeps the rows. */
static int give(struct shelf *shelf, struct store_op *op, const struct shelf_session *session,
                struct error *err)
{
    struct store_op giving = {.lease = op->lease};
    return run(shelf, &giving, session, STORE_GIVE, err);
}

/* ---- reading ---- */

/* The parts of "regla:{MODEL:OWNER:ID}". False: it is no row of ours. */
static bool parse_key(const char *key, size_t length, struct shelf_session *session)
{
    static const char BEGIN[] = "regla:{";
    enum { HEX = SHELF_MODEL_SIZE - 1, HEAD = sizeof BEGIN - 1, ID = HEAD + 2 * HEX + 2 };
    _Static_assert((int)STORE_OWNER_SIZE == (int)SHELF_MODEL_SIZE, "both are 32 digits");
    static const char DIGITS[] = "0123456789abcdef";
    if (length <= ID || length - ID - 1 >= SESSION_ID_SIZE || memcmp(key, BEGIN, HEAD) != 0 ||
        strspn(key + HEAD, DIGITS) != HEX || key[HEAD + HEX] != ':' ||
        strspn(key + HEAD + HEX + 1, DIGITS) != HEX || key[ID - 1] != ':' || key[length - 1] != '}')
        return false;
    *session = (struct shelf_session){0};
    memcpy(session->model, key + HEAD, HEX);
    memcpy(session->meta.owner, key + HEAD + HEX + 1, HEX);
    memcpy(session->meta.id, key + ID, length - ID - 1);
    return strchr(session->meta.id, '}') == NULL;
}

/* One step of SCAN: adds what it finds to the set. */
static int scan_step(struct redis_link *link, size_t node, const char *pattern, char cursor[32],
                     json_t *found, struct error *err)
{
    struct redis_command command;
    redis_command_begin(&command, "SCAN");
    redis_command_text(&command, cursor);
    redis_command_text(&command, "MATCH");
    redis_command_text(&command, pattern);
    redis_command_text(&command, "COUNT");
    redis_command_number(&command, 1000);
    redisReply *reply = redis_link_ask_node(link, node, &command, err);
    if (reply == NULL)
        return -1;
    int result = 0;
    const redisReply *keys = reply->elements == 2 ? reply->element[1] : NULL;
    if (reply->type != REDIS_REPLY_ARRAY || keys == NULL || keys->type != REDIS_REPLY_ARRAY ||
        reply->element[0]->type != REDIS_REPLY_STRING || reply->element[0]->len >= 32)
        result = redis_rows_strange(reply, err);
    for (size_t i = 0; result == 0 && i < keys->elements; i++)
        if (keys->element[i]->type == REDIS_REPLY_STRING &&
            json_object_set_new_nocheck(found, keys->element[i]->str, json_true()) != 0)
            result = error_set(err, ERROR_NO_MEMORY, "no memory for the names of sessions");
    if (result == 0)
        memcpy(cursor, reply->element[0]->str, reply->element[0]->len + 1);
    freeReplyObject(reply);
    return result;
}

/* All keys that fit the pattern, each once, of all nodes; a new object. NULL: *err says why. */
static json_t *scan(struct shelf *shelf, const char *pattern, struct error *err)
{
    struct redis_link *link = &((struct shelf_shared *)shelf->place)->place->link;
    json_t *found = json_object();
    int result = found != NULL ? redis_link_open(link, true, err)
                               : error_set(err, ERROR_NO_MEMORY, "no memory for names");
    for (size_t node = 0; result == 0 && node < redis_link_nodes(link); node++) {
        char cursor[32] = "0";
        do
            result = scan_step(link, node, pattern, cursor, found, err);
        while (result == 0 && strcmp(cursor, "0") != 0);
    }
    if (result == 0)
        return found;
    json_decref(found);
    return NULL;
}

/* Fills in what the row says. */
static void fill(struct shelf_session *session, const struct store_op *op)
{
    const struct store_row *row = op->rows;
    struct session_meta meta;
    session->version = op->lease.version;
    session->count = row->count;
    if (session_meta_parse(&meta, row->meta, row->meta_length) != 0 ||
        strcmp(meta.owner, session->meta.owner) != 0 || strcmp(meta.id, session->meta.id) != 0 ||
        meta.turns != row->turns_length) {
        session->damage = "its META is none of it";
        return;
    }
    session->meta = meta;
    if (session->meta.used < op->used)
        session->meta.used = op->used;
    session->tokens = row->tokens;
    session->turns = row->turns;
}

static int tell_key(struct shelf *shelf, const char *key, shelf_each_function *each, void *context,
                    struct error *err)
{
    struct shelf_session session;
    struct store_op op = {0};
    struct error why = ERROR_INIT;
    if (!parse_key(key, strlen(key), &session))
        return 0;
    int result = run(shelf, &op, &session, STORE_LOOK, &why);
    if (result != 0 && why.code != ERROR_INVALID) {
        *err = why;
    } else if (result != 0 || op.seen == STORE_SEEN_OTHER) {
        if (result != 0)
            session.damage = why.message;
        else
            fill(&session, &op);
        result = each(context, &session, err);
    }
    store_rows_free(op.rows, op.num_rows);
    return result;
}

/* Tokens come with it, whether asked for or not: only so it is known to be whole. */
static int store_each(struct shelf *shelf, bool whole, shelf_each_function *each, void *context,
                      int64_t *damaged, struct error *err)
{
    (void)whole;
    (void)damaged;
    json_t *keys = scan(shelf, "regla:{*}", err);
    const char *key;
    json_t *value;
    int result = keys != NULL ? 0 : -1;
    json_object_foreach(keys, key, value) if (result == 0) result =
        tell_key(shelf, key, each, context, err);
    json_decref(keys);
    return result;
}

/* ---- changes ---- */

/* Writes what is not there yet: all of it, or (from >= 0) only its row. */
static int commit(struct shelf *shelf, struct store_op *taken, const struct shelf_session *session,
                  bool row_alone, int64_t state, enum shelf_outcome *outcome, struct error *err)
{
    char meta[SESSION_META_SIZE];
    struct store_op op = {.lease = taken->lease,
                          .meta = meta,
                          .meta_length = session_meta_encode(&session->meta, meta),
                          .tokens = session->tokens,
                          .count = session->count,
                          .turns = session->turns,
                          .turns_length = session->meta.turns,
                          .from = row_alone ? session->count : 0,
                          .turns_from = row_alone ? session->meta.turns : 0,
                          .state = state};
    int result = run(shelf, &op, session, STORE_WRITE, err);
    *outcome = outcome_of(&op);
    return result;
}

static int put_taken(struct shelf *shelf, struct store_op *op, const struct shelf_session *session,
                     bool replace, enum shelf_outcome *outcome, struct error *err)
{
    struct shelf_session there = *session;
    if (op->seen == STORE_SEEN_OTHER) {
        fill(&there, op);
        bool same = there.damage == NULL && shelf_session_sum(&there) == shelf_session_sum(session);
        if (same || !replace) {
            *outcome = same ? SHELF_SAME : SHELF_OTHER;
            return give(shelf, op, session, err);
        }
    }
    return commit(shelf, op, session, false, 0, outcome, err);
}

static int store_put(struct shelf *shelf, const struct shelf_session *session, bool replace,
                     enum shelf_outcome *outcome, struct error *err)
{
    struct store_op op = {0};
    int result = take(shelf, &op, session, err);
    if (result == 0 && op.error.code != ERROR_NONE)
        *outcome = outcome_of(&op);
    else if (result == 0)
        result = put_taken(shelf, &op, session, replace, outcome, err);
    store_rows_free(op.rows, op.num_rows);
    return result;
}

/* The command with the name of the session and the owner's list. */
static int ask_list(struct shelf *shelf, const char *command_name,
                    const struct shelf_session *session, int64_t *changed, struct error *err)
{
    struct redis_link *link = &((struct shelf_shared *)shelf->place)->place->link;
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    redis_key_owner(key, session->model, session->meta.owner, ":sessions");
    redis_command_begin(&command, command_name);
    redis_command_text(&command, key);
    if (strcmp(command_name, "ZADD") == 0)
        redis_command_number(&command, (int64_t)session->meta.used);
    redis_command_text(&command, session->meta.id);
    redisReply *reply = redis_link_ask(link, &command, err);
    if (reply == NULL)
        return -1;
    *changed += reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
    freeReplyObject(reply);
    return 0;
}

static int store_remove_some(struct shelf *shelf, const struct shelf_session *sessions,
                             size_t count, enum shelf_outcome *outcomes, struct error *err)
{
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        struct store_op op = {.lease = {.version = sessions[i].version}};
        int64_t changed = 0;
        result = run(shelf, &op, &sessions[i], STORE_REMOVE, err);
        outcomes[i] = outcome_of(&op);
        if (result == 0 && outcomes[i] == SHELF_DONE)
            result = ask_list(shelf, "ZREM", &sessions[i], &changed, err);
    }
    return result;
}

/* ---- repair ---- */

/* Renames the row and what belongs to it, unless a server works on it. */
static int set_aside(struct shelf *shelf, const struct shelf_session *session, bool *busy,
                     struct error *err)
{
    static const char SCRIPT[] = "local t = redis.call('TIME')\n"
                                 "local h = redis.call('HGET', KEYS[1], 'until')\n"
                                 "if tonumber(h or 0) > t[1] * 1000 then return {'busy'} end\n"
                                 "for i = 1, 3 do\n"
                                 "  if redis.call('EXISTS', KEYS[i]) == 1 then "
                                 "redis.call('RENAME', KEYS[i], KEYS[i + 3]) end\n"
                                 "end\n"
                                 "return {'done'}\n";
    static const char *const ENDS[] = {"", ":t", ":c"};
    struct redis_link *link = &((struct shelf_shared *)shelf->place)->place->link;
    struct redis_command command;
    char keys[6][REDIS_KEY_SIZE];
    redis_command_begin(&command, "EVAL");
    redis_command_text(&command, SCRIPT);
    redis_command_number(&command, 6);
    for (size_t i = 0; i < 6; i++) {
        snprintf(keys[i], REDIS_KEY_SIZE, "regla:%s{%s:%s:%s}%s",
                 i < 3 ? "" : "rejected:", session->model, session->meta.owner, session->meta.id,
                 ENDS[i % 3]);
        redis_command_text(&command, keys[i]);
    }
    redisReply *reply = redis_link_ask(link, &command, err);
    if (reply == NULL)
        return -1;
    *busy = redis_rows_is(reply, 0, "busy");
    freeReplyObject(reply);
    return 0;
}

/* A row that can be taken: with a session, which gets a new version, or without. */
static int renew(struct shelf *shelf, struct store_op *op, struct shelf_session *session,
                 struct shelf_repair *repair, struct error *err)
{
    enum shelf_outcome outcome;
    if (op->seen != STORE_SEEN_OTHER) {
        repair->leftovers++;
        return give(shelf, op, session, err);
    }
    fill(session, op);
    if (session->damage != NULL)
        return give(shelf, op, session, err);
    repair->whole++;
    return ask_list(shelf, "ZADD", session, &repair->names, err) != 0
               ? -1
               : commit(shelf, op, session, true, op->rows->state, &outcome, err);
}

static int repair_key(struct shelf *shelf, const char *key, struct shelf_repair *repair,
                      struct error *err)
{
    struct shelf_session session;
    struct store_op op = {0};
    struct error why = ERROR_INIT;
    bool busy = false;
    if (!parse_key(key, strlen(key), &session))
        return 0;
    int result = take(shelf, &op, &session, &why);
    if (result == 0 && op.refusal == STORE_BUSY) {
        busy = true;
    } else if (result == 0) {
        result = renew(shelf, &op, &session, repair, &why);
    } else if (why.code == ERROR_INVALID) {
        session.damage = why.message;
        result = 0;
    }
    if (result == 0 && session.damage != NULL) {
        result = set_aside(shelf, &session, &busy, &why);
        repair->damaged += !busy;
    }
    repair->busy += busy;
    store_rows_free(op.rows, op.num_rows);
    if (result != 0)
        *err = why;
    return result;
}

/* Names in a list that have no row. */
static int mend_list(struct shelf *shelf, const char *key, struct shelf_repair *repair,
                     struct error *err)
{
    struct redis_link *link = &((struct shelf_shared *)shelf->place)->place->link;
    struct redis_command command;
    struct shelf_session session = {0};
    if (sscanf(key, "regla:{%32[0-9a-f]:%32[0-9a-f]}:sessions", session.model,
               session.meta.owner) != 2)
        return 0;
    redis_command_begin(&command, "ZRANGE");
    redis_command_text(&command, key);
    redis_command_text(&command, "0");
    redis_command_text(&command, "-1");
    redisReply *names = redis_link_ask(link, &command, err);
    int result = names == NULL                      ? -1
                 : names->type != REDIS_REPLY_ARRAY ? redis_rows_strange(names, err)
                                                    : 0;
    for (size_t i = 0; result == 0 && i < names->elements; i++) {
        struct store_op op = {0};
        const redisReply *name = names->element[i];
        if (name->type != REDIS_REPLY_STRING || name->len >= SESSION_ID_SIZE)
            continue;
        memcpy(session.meta.id, name->str, name->len + 1);
        struct error unread = ERROR_INIT;
        /* One that is being made has a row, and a lease: it cannot be taken. */
        result = take(shelf, &op, &session, &unread);
        if (result == 0 && op.error.code == ERROR_NONE)
            result = give(shelf, &op, &session, &unread);
        if (result == 0 && op.error.code == ERROR_NONE && op.seen == STORE_SEEN_NONE)
            result = ask_list(shelf, "ZREM", &session, &repair->names, &unread);
        store_rows_free(op.rows, op.num_rows);
        if (result != 0)
            *err = unread;
    }
    freeReplyObject(names);
    return result;
}

static int store_repair(struct shelf *shelf, struct shelf_repair *repair, struct error *err)
{
    static const char *const PATTERNS[] = {"regla:{*}", "regla:{*}:sessions"};
    int result = 0;
    for (int pass = 0; pass < 2 && result == 0; pass++) {
        json_t *keys = scan(shelf, PATTERNS[pass], err), *value;
        const char *key;
        result = keys != NULL ? 0 : -1;
        json_object_foreach(keys, key, value) if (result == 0) result =
            (pass == 0 ? repair_key : mend_list)(shelf, key, repair, err);
        json_decref(keys);
    }
    return result;
}

const struct shelf_kind shelf_store = {.open = store_open_place,
                                       .each = store_each,
                                       .put = store_put,
                                       .remove = store_remove_some,
                                       .repair = store_repair,
                                       .close = store_close_place};
