/* SPDX-License-Identifier: Apache-2.0 */
#include "api/sessions.h"
#include "server/states/shelf_place.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_place.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"
#include "server/store/redis_sessions.h"
#include "server/store/store.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    if (redis_place_open(&shared->place, shelf->location, &shelf->tls, LEASE_SECONDS, secret,
                         &shared->accounts, err) != 0)
        return -1;
    shared->place->vocab_size = INT32_MAX;
    shared->place->replicas = shelf->replicas;
    shelf->secret = shared->place->secret;
    shelf->name = strdup(redis_link_name(&shared->place->link));
    return shelf->name != NULL ? 0 : error_set(err, ERROR_NO_MEMORY, "no memory for a name");
}

static struct redis_link *link_of(const struct shelf *shelf)
{
    return &((struct shelf_shared *)shelf->place)->place->link;
}

/* What is written over the one link is there over the other. */
int shelf_store_is(struct shelf *shelf, struct shelf *other, bool *same, struct error *err)
{
    struct redis_command command;
    char name[STORE_NAME_SIZE], key[REDIS_KEY_SIZE];
    if (!store_random_name(name))
        return error_set(err, ERROR_IO, "the system has no random numbers");
    snprintf(key, sizeof key, "regla:same:%s", name);
    redis_command_begin(&command, "SET");
    redis_command_text(&command, key);
    redis_command_text(&command, "1");
    redis_command_text(&command, "PX");
    redis_command_number(&command, 60000);
    redisReply *reply = redis_link_ask(link_of(other), &command, err);
    if (reply == NULL)
        return -1;
    freeReplyObject(reply);
    redis_command_begin(&command, "EXISTS");
    redis_command_text(&command, key);
    reply = redis_link_ask(link_of(shelf), &command, err);
    if (reply == NULL)
        return -1;
    int result = reply->type == REDIS_REPLY_INTEGER ? 0 : redis_rows_strange(reply, err);
    *same = result == 0 && reply->integer != 0;
    freeReplyObject(reply);
    return result;
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
    struct store_op *ended = redis_sessions_run(shared->place, op);
    while (ended == NULL) {
        const double wait = redis_sessions_due_in(shared->place);
        const struct timespec pause = {0, (long)(wait * 1e9)}; /* which is less than a second */
        nanosleep(&pause, NULL);
        ended = redis_sessions_run(shared->place, NULL);
    }
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
    return session_id_valid(session->meta.id, length - ID - 1);
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
    struct redis_link *link = link_of(shelf);
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

static int commit(struct shelf *shelf, struct store_op *taken, const struct shelf_session *session,
                  enum shelf_outcome *outcome, struct error *err)
{
    char meta[SESSION_META_SIZE];
    struct store_op op = {.lease = taken->lease,
                          .meta = meta,
                          .meta_length = session_meta_encode(&session->meta, meta),
                          .tokens = session->tokens,
                          .count = session->count,
                          .turns = session->turns,
                          .turns_length = session->meta.turns};
    int result = run(shelf, &op, session, STORE_WRITE, err);
    *outcome = outcome_of(&op);
    return result;
}

/* What the owner's sessions count is not known any more: a server counts them anew. */
static int forget_quota(struct shelf *shelf, const struct shelf_session *session, struct error *err)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    redis_key_owner(key, session->model, session->meta.owner, ":quota");
    redis_command_begin(&command, "DEL");
    redis_command_text(&command, key);
    redisReply *reply = redis_link_ask(link_of(shelf), &command, err);
    freeReplyObject(reply);
    return reply != NULL ? 0 : -1;
}

static int put_taken(struct shelf *shelf, struct store_op *op, const struct shelf_session *session,
                     bool replace, enum shelf_outcome *outcome, struct error *err)
{
    struct shelf_session there = *session;
    if (op->seen == STORE_SEEN_OTHER) {
        fill(&there, op);
        bool same = there.damage == NULL && shelf_session_sum(&there) == shelf_session_sum(session);
        if (same || !replace) {
            /* Whoever put it there may not have waited for replicas, or in vain. */
            const bool again = same && shelf->replicas > 0;
            const int result =
                again ? commit(shelf, op, session, outcome, err) : give(shelf, op, session, err);
            *outcome = same ? SHELF_SAME : SHELF_OTHER;
            return result;
        }
    }
    int result = commit(shelf, op, session, outcome, err);
    return result == 0 && *outcome == SHELF_DONE ? forget_quota(shelf, session, err) : result;
}

static int store_put(struct shelf *shelf, const struct shelf_session *session, bool replace,
                     enum shelf_outcome *outcome, struct error *err)
{
    struct store_op op = {0};
    struct error why = ERROR_INIT;
    int result = take(shelf, &op, session, &why);
    if (result != 0 && why.code == ERROR_INVALID) {
        *outcome = SHELF_DAMAGED;
        result = 0;
    } else if (result != 0) {
        *err = why;
    } else if (op.error.code != ERROR_NONE) {
        *outcome = outcome_of(&op);
    } else {
        result = put_taken(shelf, &op, session, replace, outcome, err);
    }
    store_rows_free(op.rows, op.num_rows);
    return result;
}

/* Out of the owner's list, by whoever has the lease: nobody else can make it anew meanwhile. */
static int forget_name(struct shelf *shelf, const struct shelf_session *session, struct error *err)
{
    struct redis_command command;
    struct error why = ERROR_INIT;
    char key[REDIS_KEY_SIZE];
    redis_key_owner(key, session->model, session->meta.owner, redis_key_names(session->meta.id));
    redis_command_begin(&command, "ZREM");
    redis_command_text(&command, key);
    redis_command_text(&command, session->meta.id);
    redisReply *reply = redis_link_ask(link_of(shelf), &command, &why);
    freeReplyObject(reply);
    if (reply != NULL || why.code == ERROR_INVALID) /* a list that is none has no names */
        return 0;
    return error_set(err, why.code, "%s", why.message);
}

static int remove_taken(struct shelf *shelf, struct store_op *taken,
                        const struct shelf_session *session, enum shelf_outcome *outcome,
                        struct error *err)
{
    struct store_op removing = {.lease = taken->lease};
    *outcome = SHELF_OTHER;
    if (taken->seen == STORE_SEEN_OTHER)
        return give(shelf, taken, session, err);
    if (forget_name(shelf, session, err) != 0 ||
        run(shelf, &removing, session, STORE_REMOVE, err) != 0)
        return -1;
    *outcome = outcome_of(&removing);
    int result = give(shelf, taken, session, err);
    return result == 0 && *outcome == SHELF_DONE ? forget_quota(shelf, session, err) : result;
}

static int store_remove_some(struct shelf *shelf, const struct shelf_session *sessions,
                             size_t count, enum shelf_outcome *outcomes, struct error *err)
{
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        struct store_op op = {.lease = {.version = sessions[i].version}};
        result = take(shelf, &op, &sessions[i], err);
        outcomes[i] = outcome_of(&op);
        if (result == 0 && op.error.code == ERROR_NONE)
            result = remove_taken(shelf, &op, &sessions[i], &outcomes[i], err);
        store_rows_free(op.rows, op.num_rows);
    }
    return result;
}

/* ---- repair ---- */

static const char REJECTED[] = "rejected:";

/* Renames a list that is none. */
static int set_list_aside(struct shelf *shelf, const char *key, struct shelf_repair *repair,
                          struct error *err)
{
    enum { BEGIN = sizeof "regla:" - 1 };
    struct redis_command command;
    char aside[REDIS_KEY_SIZE];
    snprintf(aside, sizeof aside, "regla:%s%s", REJECTED, key + BEGIN);
    redis_command_begin(&command, "RENAME");
    redis_command_text(&command, key);
    redis_command_text(&command, aside);
    redisReply *reply = redis_link_ask(link_of(shelf), &command, err);
    freeReplyObject(reply);
    repair->damaged += reply != NULL;
    return reply != NULL ? 0 : -1;
}

/* Puts a name into a list (score >= 0) or a set. *added: so many were not there. */
static int put_name(struct shelf *shelf, const char *key, int64_t score, const char *name,
                    struct shelf_repair *repair, int64_t *added, struct error *err)
{
    for (int attempt = 0;; attempt++) {
        struct redis_command command;
        struct error why = ERROR_INIT;
        redis_command_begin(&command, score >= 0 ? "ZADD" : "SADD");
        redis_command_text(&command, key);
        if (score >= 0)
            redis_command_number(&command, score);
        redis_command_text(&command, name);
        redisReply *reply = redis_link_ask(link_of(shelf), &command, &why);
        if (reply != NULL) {
            *added += reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
            freeReplyObject(reply);
            return 0;
        }
        if (why.code != ERROR_INVALID || attempt > 0)
            return error_set(err, why.code, "%s", why.message);
        if (set_list_aside(shelf, key, repair, err) != 0)
            return -1;
    }
}

/* Runs a script on the row and its parts, and what they are called when they are set aside. */
static redisReply *run_script(struct shelf *shelf, const struct shelf_session *session,
                              struct redis_script *script, struct error *err)
{
    static const char *const ENDS[] = {"", ":t", ":c"};
    enum { KEYS = 6, OWN = KEYS / 2 };
    struct redis_command command;
    char keys[KEYS][REDIS_KEY_SIZE];
    redis_scripts_begin(&command, script, KEYS);
    for (size_t i = 0; i < KEYS; i++) {
        snprintf(keys[i], REDIS_KEY_SIZE, "regla:%s{%s:%s:%s}%s", i < OWN ? "" : REJECTED,
                 session->model, session->meta.owner, session->meta.id, ENDS[i % OWN]);
        redis_command_text(&command, keys[i]);
    }
    redis_command_number(&command, session->version);
    return redis_link_ask(link_of(shelf), &command, err);
}

/* A session gets a new version, a row without one goes, what is damaged is set aside: unless a
 * server works on it, or has changed it meanwhile. */
static int mend(struct shelf *shelf, const struct shelf_session *session,
                struct shelf_repair *repair, struct error *err)
{
    redisReply *reply =
        run_script(shelf, session,
                   session->damage != NULL ? &redis_script_set_aside : &redis_script_refresh, err);
    int result = reply != NULL ? 0 : -1;
    if (reply == NULL)
        return -1;
    if (redis_rows_is(reply, 0, "done"))
        *(session->damage != NULL ? &repair->damaged : &repair->whole) += 1;
    else if (redis_rows_is(reply, 0, "gone"))
        repair->leftovers++;
    else if (redis_rows_is(reply, 0, "busy") || redis_rows_is(reply, 0, "other"))
        repair->busy++;
    else if (!redis_rows_is(reply, 0, "none"))
        result = redis_rows_strange(reply, err);
    freeReplyObject(reply);
    return result;
}

static int repair_key(struct shelf *shelf, const char *key, struct shelf_repair *repair,
                      struct error *err)
{
    struct shelf_session session;
    struct store_op op = {0};
    struct error why = ERROR_INIT;
    char list[REDIS_KEY_SIZE];
    if (!parse_key(key, strlen(key), &session))
        return 0;
    int result = run(shelf, &op, &session, STORE_LOOK, &why);
    if (result != 0 && why.code == ERROR_INVALID) {
        session.damage = why.message;
        result = 0;
    } else if (result == 0 && op.seen == STORE_SEEN_OTHER) {
        fill(&session, &op);
        redis_key_owner(list, session.model, session.meta.owner, redis_key_names(session.meta.id));
        if (session.damage == NULL)
            result = put_name(shelf, list, (int64_t)session.meta.used, session.meta.id, repair,
                              &repair->names, &why);
    }
    struct error failed = ERROR_INIT;
    if (result != 0)
        *err = why;
    else if ((result = mend(shelf, &session, repair, &failed)) != 0)
        *err = failed;
    store_rows_free(op.rows, op.num_rows);
    return result;
}

/* Takes those names [count] of a list out that have no row. words: {name, score, ...}. A name that
 * was put there in this second, or again meanwhile, stays: its session may have been made since. */
static int mend_names(struct shelf *shelf, const char *key, struct shelf_session *session,
                      const redisReply *words, int64_t now, struct shelf_repair *repair,
                      struct error *err)
{
    struct redis_command command;
    char row[REDIS_KEY_SIZE];
    int result = 0;
    for (size_t i = 0; result == 0 && i + 1 < words->elements; i += 2) {
        const redisReply *name = words->element[i], *score = words->element[i + 1];
        if (name->len >= SESSION_ID_SIZE || strtod(score->str, NULL) >= (double)now)
            continue;
        redis_key_session(row, session->model, session->meta.owner, name->str, "");
        redis_command_begin(&command, "EXISTS");
        redis_command_text(&command, row);
        redisReply *there = redis_link_ask(link_of(shelf), &command, err);
        bool lacking = there != NULL && there->type == REDIS_REPLY_INTEGER && there->integer == 0;
        result = there != NULL ? 0 : -1;
        freeReplyObject(there);
        if (!lacking)
            continue;
        redis_scripts_begin(&command, &redis_script_forget, 1);
        redis_command_text(&command, key);
        redis_command_text(&command, name->str);
        redis_command_text(&command, score->str);
        redisReply *gone = redis_link_ask(link_of(shelf), &command, err);
        result = gone != NULL ? 0 : -1;
        repair->names += gone != NULL && redis_rows_is(gone, 0, "gone");
        freeReplyObject(gone);
    }
    return result;
}

/* An owner's list, that the owner is known, and that its quota is counted anew. */
static int mend_list(struct shelf *shelf, const char *key, struct shelf_repair *repair,
                     struct error *err)
{
    enum { SECOND_MS = 1000 };
    struct redis_command command;
    struct shelf_session session = {0};
    struct error why = ERROR_INIT;
    char owners[REDIS_KEY_SIZE], own[REDIS_KEY_SIZE];
    int64_t now, added = 0;
    if (sscanf(key, "regla:{%32[0-9a-f]:%32[0-9a-f]}:", session.model, session.meta.owner) != 2)
        return 0;
    const char *set = strrchr(key, ':');
    redis_key_owner(own, session.model, session.meta.owner, set);
    if (strcmp(key, own) != 0)
        return 0;
    redis_scripts_begin(&command, &redis_script_names, 1);
    redis_command_text(&command, key);
    redisReply *reply = redis_link_ask(link_of(shelf), &command, &why);
    int result = 0;
    if (why.code == ERROR_INVALID)
        result = set_list_aside(shelf, key, repair, err);
    else if (reply == NULL)
        result = error_set(err, why.code, "%s", why.message);
    else if (redis_rows_number(reply, 0, &now) != 0 || reply->elements != 2 ||
             !redis_rows_are_strings(reply->element[1]))
        result = redis_rows_strange(reply, err);
    else
        result = mend_names(shelf, key, &session, reply->element[1], now / SECOND_MS, repair, err);
    freeReplyObject(reply);
    redis_key_owners(owners, session.model);
    if (result == 0)
        result = put_name(shelf, owners, -1, session.meta.owner, repair, &added, err);
    return result == 0 ? forget_quota(shelf, &session, err) : -1;
}

static int store_repair(struct shelf *shelf, struct shelf_repair *repair, struct error *err)
{
    static const char *const PATTERNS[] = {"regla:{*}", "regla:{*}" REDIS_SESSIONS,
                                           "regla:{*}" REDIS_RESPONSES};
    enum { PASSES = sizeof PATTERNS / sizeof *PATTERNS };
    int result = 0;
    for (int pass = 0; pass < PASSES && result == 0; pass++) {
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
