/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_upkeep.h"

#include "api/sessions.h"
#include "server/store/redis_keys.h"
#include "server/store/redis_place.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"
#include "server/store/session_op.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of what is taken here: a change takes much less. */
static const double LEASE_SECONDS = 10;

enum { MODEL_SIZE = 2 * FINGERPRINT_BYTES + 1, ID_SIZE = STORE_ID_SIZE };

/* ---- opening ---- */

static int open_place(struct store_place **out, const struct store_options *options,
                      const unsigned char *secret, struct store_accounts *accounts,
                      struct error *err)
{
    if (redis_place_open(out, options->location, &options->tls, LEASE_SECONDS, secret, accounts,
                         err) != 0)
        return -1;
    (*out)->vocab_size = INT32_MAX;
    (*out)->replicas = options->replicas;
    return 0;
}

static void set_model(struct store_place *place, const char *model)
{
    snprintf(place->model, sizeof place->model, "%s", model);
}

/* What is written over the one link is there over the other. */
static int is_same(struct store_place *place, struct store_place *other, bool *same,
                   struct error *err)
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
    redisReply *reply = redis_link_ask(&other->link, &command, err);
    if (reply == NULL)
        return -1;
    freeReplyObject(reply);
    redis_command_begin(&command, "EXISTS");
    redis_command_text(&command, key);
    reply = redis_link_ask(&place->link, &command, err);
    if (reply == NULL)
        return -1;
    int result = reply->type == REDIS_REPLY_INTEGER ? 0 : redis_rows_strange(reply, err);
    *same = result == 0 && reply->integer != 0;
    freeReplyObject(reply);
    return result;
}

/* ---- keys ---- */

/* The parts of "regla:{MODEL:OWNER:ID}". False: it is no row of ours. */
static bool parse_key(const char *key, size_t length, char model[MODEL_SIZE],
                      char owner[STORE_OWNER_SIZE], char id[ID_SIZE])
{
    static const char BEGIN[] = "regla:{";
    enum { HEX = MODEL_SIZE - 1, HEAD = sizeof BEGIN - 1, ID = HEAD + 2 * HEX + 2 };
    _Static_assert((int)STORE_OWNER_SIZE == (int)MODEL_SIZE, "both are 32 digits");
    static const char DIGITS[] = "0123456789abcdef";
    if (length <= ID || length - ID - 1 >= ID_SIZE || memcmp(key, BEGIN, HEAD) != 0 ||
        strspn(key + HEAD, DIGITS) != HEX || key[HEAD + HEX] != ':' ||
        strspn(key + HEAD + HEX + 1, DIGITS) != HEX || key[ID - 1] != ':' || key[length - 1] != '}')
        return false;
    snprintf(model, MODEL_SIZE, "%.*s", HEX, key + HEAD);
    snprintf(owner, STORE_OWNER_SIZE, "%.*s", HEX, key + HEAD + HEX + 1);
    snprintf(id, ID_SIZE, "%.*s", (int)(length - ID - 1), key + ID);
    return session_id_valid(id, length - ID - 1);
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
static json_t *scan(struct store_place *place, const char *pattern, struct error *err)
{
    struct redis_link *link = &place->link;
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

static int each_key(struct store_place *place, store_each_function *each, void *context,
                    struct error *err)
{
    json_t *keys = scan(place, "regla:{*}", err), *value;
    char model[MODEL_SIZE], owner[STORE_OWNER_SIZE], id[ID_SIZE];
    const char *key;
    int result = keys != NULL ? 0 : -1;
    json_object_foreach(keys, key,
                        value) if (result == 0 && parse_key(key, strlen(key), model, owner, id))
        result = each(context, model, owner, id, err);
    json_decref(keys);
    return result;
}

/* ---- beside the sessions ---- */

static int forget_quota(struct store_place *place, const char *owner, struct error *err)
{
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    redis_key_owner(key, place->model, owner, ":quota");
    redis_command_begin(&command, "DEL");
    redis_command_text(&command, key);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    freeReplyObject(reply);
    return reply != NULL ? 0 : -1;
}

static int forget_name(struct store_place *place, const char *owner, const char *id,
                       struct error *err)
{
    struct redis_command command;
    struct error why = ERROR_INIT;
    char key[REDIS_KEY_SIZE];
    redis_key_owner(key, place->model, owner, redis_key_names(id));
    redis_command_begin(&command, "ZREM");
    redis_command_text(&command, key);
    redis_command_text(&command, id);
    redisReply *reply = redis_link_ask(&place->link, &command, &why);
    freeReplyObject(reply);
    if (reply != NULL || why.code == ERROR_INVALID) /* a list that is none has no names */
        return 0;
    return error_set(err, why.code, "%s", why.message);
}

/* ---- repair ---- */

static const char REJECTED[] = "rejected:";

/* Renames a list that is none. */
static int set_list_aside(struct store_place *place, const char *key, struct store_repair *repair,
                          struct error *err)
{
    enum { BEGIN = sizeof "regla:" - 1 };
    struct redis_command command;
    char aside[REDIS_KEY_SIZE];
    snprintf(aside, sizeof aside, "regla:%s%s", REJECTED, key + BEGIN);
    redis_command_begin(&command, "RENAME");
    redis_command_text(&command, key);
    redis_command_text(&command, aside);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    freeReplyObject(reply);
    repair->damaged += reply != NULL;
    return reply != NULL ? 0 : -1;
}

/* Puts a name into a list (score >= 0) or a set. *added: so many were not there. */
static int put_name(struct store_place *place, const char *key, int64_t score, const char *name,
                    struct store_repair *repair, int64_t *added, struct error *err)
{
    for (int attempt = 0;; attempt++) {
        struct redis_command command;
        struct error why = ERROR_INIT;
        redis_command_begin(&command, score >= 0 ? "ZADD" : "SADD");
        redis_command_text(&command, key);
        if (score >= 0)
            redis_command_number(&command, score);
        redis_command_text(&command, name);
        redisReply *reply = redis_link_ask(&place->link, &command, &why);
        if (reply != NULL) {
            *added += reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
            freeReplyObject(reply);
            return 0;
        }
        if (why.code != ERROR_INVALID || attempt > 0)
            return error_set(err, why.code, "%s", why.message);
        if (set_list_aside(place, key, repair, err) != 0)
            return -1;
    }
}

static int mend_name(struct store_place *place, const char *owner, const char *id, int64_t used,
                     struct store_repair *repair, struct error *err)
{
    char list[REDIS_KEY_SIZE];
    redis_key_owner(list, place->model, owner, redis_key_names(id));
    return put_name(place, list, used, id, repair, &repair->names, err);
}

/* Runs a script on the row and its parts, and what they are called when they are set aside. */
static redisReply *run_script(struct store_place *place, const char *owner, const char *id,
                              int64_t version, struct redis_script *script, struct error *err)
{
    static const char *const ENDS[] = {"", ":t", ":c"};
    enum { KEYS = 6, OWN = KEYS / 2 };
    struct redis_command command;
    char keys[KEYS][REDIS_KEY_SIZE];
    redis_scripts_begin(&command, script, KEYS);
    for (size_t i = 0; i < KEYS; i++) {
        snprintf(keys[i], REDIS_KEY_SIZE, "regla:%s{%s:%s:%s}%s", i < OWN ? "" : REJECTED,
                 place->model, owner, id, ENDS[i % OWN]);
        redis_command_text(&command, keys[i]);
    }
    redis_command_number(&command, version);
    return redis_link_ask(&place->link, &command, err);
}

static int mend(struct store_place *place, const char *owner, const char *id, int64_t version,
                bool damaged, struct store_repair *repair, struct error *err)
{
    redisReply *reply = run_script(place, owner, id, version,
                                   damaged ? &redis_script_set_aside : &redis_script_refresh, err);
    int result = reply != NULL ? 0 : -1;
    if (reply == NULL)
        return -1;
    if (redis_rows_is(reply, 0, "done"))
        *(damaged ? &repair->damaged : &repair->whole) += 1;
    else if (redis_rows_is(reply, 0, "gone"))
        repair->leftovers++;
    else if (redis_rows_is(reply, 0, "busy") || redis_rows_is(reply, 0, "other"))
        repair->busy++;
    else if (!redis_rows_is(reply, 0, "none"))
        result = redis_rows_strange(reply, err);
    freeReplyObject(reply);
    return result;
}

/* Takes those names [count] of a list out that have no row. words: {name, score, ...}. A name that
 * was put there in this second, or again meanwhile, stays: its session may have been made since. */
static int mend_names(struct store_place *place, const char *key, const char *owner,
                      const redisReply *words, int64_t now, struct store_repair *repair,
                      struct error *err)
{
    struct redis_command command;
    char row[REDIS_KEY_SIZE];
    int result = 0;
    for (size_t i = 0; result == 0 && i + 1 < words->elements; i += 2) {
        const redisReply *name = words->element[i], *score = words->element[i + 1];
        if (name->len >= ID_SIZE || strtod(score->str, NULL) >= (double)now)
            continue;
        redis_key_session(row, place->model, owner, name->str, "");
        redis_command_begin(&command, "EXISTS");
        redis_command_text(&command, row);
        redisReply *there = redis_link_ask(&place->link, &command, err);
        bool lacking = there != NULL && there->type == REDIS_REPLY_INTEGER && there->integer == 0;
        result = there != NULL ? 0 : -1;
        freeReplyObject(there);
        if (!lacking)
            continue;
        redis_scripts_begin(&command, &redis_script_forget, 1);
        redis_command_text(&command, key);
        redis_command_text(&command, name->str);
        redis_command_text(&command, score->str);
        redisReply *gone = redis_link_ask(&place->link, &command, err);
        result = gone != NULL ? 0 : -1;
        repair->names += gone != NULL && redis_rows_is(gone, 0, "gone");
        freeReplyObject(gone);
    }
    return result;
}

/* An owner's list, that the owner is known, and that its quota is counted anew. */
static int mend_list(struct store_place *place, const char *key, struct store_repair *repair,
                     struct error *err)
{
    enum { SECOND_MS = 1000 };
    struct redis_command command;
    struct error why = ERROR_INIT;
    char owners[REDIS_KEY_SIZE], own[REDIS_KEY_SIZE], owner[STORE_OWNER_SIZE];
    int64_t now, added = 0;
    if (sscanf(key, "regla:{%32[0-9a-f]:%32[0-9a-f]}:", place->model, owner) != 2)
        return 0;
    const char *set = strrchr(key, ':');
    redis_key_owner(own, place->model, owner, set);
    if (strcmp(key, own) != 0)
        return 0;
    redis_scripts_begin(&command, &redis_script_names, 1);
    redis_command_text(&command, key);
    redisReply *reply = redis_link_ask(&place->link, &command, &why);
    int result = 0;
    if (why.code == ERROR_INVALID)
        result = set_list_aside(place, key, repair, err);
    else if (reply == NULL)
        result = error_set(err, why.code, "%s", why.message);
    else if (redis_rows_number(reply, 0, &now) != 0 || reply->elements != 2 ||
             !redis_rows_are_strings(reply->element[1]))
        result = redis_rows_strange(reply, err);
    else
        result = mend_names(place, key, owner, reply->element[1], now / SECOND_MS, repair, err);
    freeReplyObject(reply);
    redis_key_owners(owners, place->model);
    if (result == 0)
        result = put_name(place, owners, -1, owner, repair, &added, err);
    return result == 0 ? forget_quota(place, owner, err) : -1;
}

static int mend_lists(struct store_place *place, struct store_repair *repair, struct error *err)
{
    static const char *const PATTERNS[] = {"regla:{*}" REDIS_SESSIONS, "regla:{*}" REDIS_RESPONSES};
    int result = 0;
    for (size_t i = 0; i < sizeof PATTERNS / sizeof *PATTERNS && result == 0; i++) {
        json_t *keys = scan(place, PATTERNS[i], err), *value;
        const char *key;
        result = keys != NULL ? 0 : -1;
        json_object_foreach(keys, key, value) if (result == 0) result =
            mend_list(place, key, repair, err);
        json_decref(keys);
    }
    return result;
}

const struct store_upkeep redis_upkeep = {.open = open_place,
                                          .same = is_same,
                                          .model = set_model,
                                          .each = each_key,
                                          .forget_name = forget_name,
                                          .forget_quota = forget_quota,
                                          .mend_name = mend_name,
                                          .mend = mend,
                                          .mend_lists = mend_lists};
