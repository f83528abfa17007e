/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_place.h"

#include "lib/base/clock.h"
#include "server/log.h"
#include "server/store/redis_refusals.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

/* Within this time a server knows that its store is away, though nobody asks it for anything. */
static const double PROBE_SECONDS = 5;

void redis_place_tell(struct store_place *place, const struct error *err)
{
    struct error still = ERROR_INIT;
    bool away = err != NULL;
    if (!away && place->away && redis_link_check(&place->link, &still) != 0)
        return; /* another node of a cluster */
    if (away && !place->away)
        log_message(LOG_LEVEL_ERROR, "the store is away: %s; it is tried again", err->message);
    else if (!away && place->away)
        log_message(LOG_LEVEL_INFO, "%s: the store is back", redis_link_name(&place->link));
    if (away || place->away)
        store_accounts_away(place->accounts, away ? redis_refusals_words(err) : NULL);
    place->away = away;
    place->probe_at = clock_seconds() + PROBE_SECONDS;
}

void redis_place_tell_damage(struct store_place *place, const char *owner, const char *name,
                             const struct error *err)
{
    const double pause = 60;
    struct error told = *err;
    double now = clock_seconds(),
           *at = &place->damage_told[XXH3_64bits_withSeed(name, strlen(name),
                                                          XXH3_64bits(owner, strlen(owner))) %
                                     REDIS_TOLD];
    if (*at > 0 && now < *at + pause)
        return;
    *at = now;
    error_prefix(&told, "%s of owner %s", name, owner);
    log_message(LOG_LEVEL_ERROR, "damage in the store is stepped over: %s", told.message);
}

/* ---- opening ---- */

/* "name:value" of INFO's text. */
static bool info_value(const redisReply *reply, const char *name, char *value, size_t size)
{
    const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, name) : NULL;
    if (at == NULL)
        return false;
    at += strlen(name);
    size_t length = strcspn(at, "\r\n");
    snprintf(value, size, "%.*s", (int)(length < size ? length : size - 1), at);
    return true;
}

/* {"server", name, "version", version, ...} */
static bool hello_value(const redisReply *reply, const char *name, char *value, size_t size)
{
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i + 1 < reply->elements; i += 2)
        if (redis_rows_is(reply, i, name) && reply->element[i + 1]->type == REDIS_REPLY_STRING) {
            snprintf(value, size, "%s", reply->element[i + 1]->str);
            return true;
        }
    return false;
}

/* Of a user who may not ask for INFO, as one with -@dangerous, HELLO tells it. 0: it is not told.
 */
static int read_version(struct store_place *place, char *version, size_t size, struct error *err)
{
    struct error why = ERROR_INIT;
    struct redis_command command;
    redis_command_begin(&command, "INFO");
    redis_command_text(&command, "server");
    redisReply *reply = redis_link_ask(&place->link, &command, &why);
    if (reply != NULL) {
        info_value(reply, "redis_version:", version, size);
        freeReplyObject(reply);
        return 1;
    }
    if (why.code == ERROR_IO)
        return error_set(err, why.code, "%s", why.message);
    redis_command_begin(&command, "HELLO");
    reply = redis_link_ask(&place->link, &command, &why);
    const bool told = reply != NULL && hello_value(reply, "version", version, size);
    freeReplyObject(reply);
    return told;
}

static int check_version(struct store_place *place, struct error *err)
{
    char version[32] = "none";
    int major = 0, minor = 0, told = read_version(place, version, sizeof version, err);
    if (told < 0)
        return -1;
    if (told == 0) {
        log_message(LOG_LEVEL_WARN,
                    "%s does not tell its version: it must be Redis 6.2 or later, or Valkey",
                    redis_link_name(&place->link));
        return 0;
    }
    const bool known = sscanf(version, "%d.%d", &major, &minor) == 2;
    if (!known || major < 6 || (major == 6 && minor < 2))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: expected Redis 6.2 or later, or Valkey, got version %s",
                         redis_link_name(&place->link), version);
    return 0;
}

/* The value of a setting. False: the store does not tell. */
static bool read_setting(struct store_place *place, size_t node, const char *name, char *value,
                         size_t size)
{
    struct error ignored = ERROR_INIT;
    struct redis_command command;
    redis_command_begin(&command, "CONFIG");
    redis_command_text(&command, "GET");
    redis_command_text(&command, name);
    redisReply *reply = redis_link_ask_node(&place->link, node, &command, &ignored);
    bool told = reply != NULL && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                reply->element[1]->type == REDIS_REPLY_STRING;
    if (told)
        snprintf(value, size, "%s", reply->element[1]->str);
    freeReplyObject(reply);
    return told;
}

/* Sessions must stay, and must be on the disk when their clients are told. */
static int check_settings(struct store_place *place, size_t node, struct error *err)
{
    const char *name = redis_link_name(&place->link);
    char policy[32], appends[8], syncs[16];
    if (!read_setting(place, node, "maxmemory-policy", policy, sizeof policy))
        log_message(LOG_LEVEL_WARN,
                    "%s does not tell its settings (its user may not ask for CONFIG or INFO): its "
                    "maxmemory-policy must not be allkeys-*, or it may drop sessions; appendonly "
                    "yes with appendfsync always keeps turns that were acknowledged; with "
                    "--share-prefixes it gets no prefixes, since its memory is not known",
                    name);
    else if (strncmp(policy, "allkeys", 7) == 0)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s has maxmemory-policy %s, which may drop sessions: expected noeviction "
                         "or volatile-*",
                         name, policy);
    if (read_setting(place, node, "appendonly", appends, sizeof appends) &&
        read_setting(place, node, "appendfsync", syncs, sizeof syncs) &&
        (strcmp(appends, "yes") != 0 || strcmp(syncs, "always") != 0))
        log_message(LOG_LEVEL_WARN,
                    "%s has appendonly %s and appendfsync %s: turns that were acknowledged may be "
                    "gone after it is killed or loses power; appendonly yes with appendfsync "
                    "always keeps them",
                    name, appends, syncs);
    return 0;
}

static int parse_secret(struct store_place *place, const redisReply *reply, struct error *err)
{
    unsigned byte;
    bool whole = reply->type == REDIS_REPLY_STRING && reply->len == 2 * SIPHASH_BYTES;
    for (size_t i = 0; whole && i < SIPHASH_BYTES; i++) {
        whole = sscanf(reply->str + 2 * i, "%2x", &byte) == 1;
        place->secret[i] = (unsigned char)byte;
    }
    return whole ? 0
                 : error_set(err, ERROR_INVALID,
                             "%s: expected regla:secret to have %d hex digits, got something else",
                             redis_link_name(&place->link), 2 * SIPHASH_BYTES);
}

/* All servers have the one that the first of them has made. */
static int read_secret(struct store_place *place, const unsigned char *first, struct error *err)
{
    unsigned char random[SIPHASH_BYTES];
    char text[2 * SIPHASH_BYTES + 1];
    struct redis_command command;
    if (first == NULL && getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return error_set(err, ERROR_IO, "the system has no random numbers");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(text + 2 * i, 3, "%02x", (first != NULL ? first : random)[i]);
    redis_command_begin(&command, "SETNX");
    redis_command_text(&command, "regla:secret");
    redis_command_text(&command, text);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    freeReplyObject(reply);
    if (reply == NULL)
        return -1;
    redis_command_begin(&command, "GET");
    redis_command_text(&command, "regla:secret");
    reply = redis_link_ask(&place->link, &command, err);
    int result = reply == NULL ? -1 : parse_secret(place, reply, err);
    freeReplyObject(reply);
    return result;
}

void redis_place_close(struct store_place *place)
{
    redis_link_close(&place->renewals);
    redis_link_close(&place->link);
    redis_away_stop(&place->absent);
    redis_trust_close(place->trust);
    free(place);
}

static int open_place(struct store_place *place, const char *location, const struct store_tls *tls,
                      const unsigned char *secret, struct error *err)
{
    const double most = 5, least = 0.5, half = place->lease_s / 2;
    const double timeout = half > most ? most : half < least ? least : half;
    struct redis_address address;
    if (redis_address_parse(&address, location, err) != 0)
        return -1;
    if (address.tls && redis_trust_open(&place->trust, tls, err) != 0)
        return -1;
    address.trust = place->trust;
    redis_link_init(&place->link, &address, timeout);
    if (redis_link_open(&place->link, true, err) != 0 || check_version(place, err) != 0)
        return -1;
    if (place->link.cluster != NULL) {
        if (redis_away_start(&place->absent, err) != 0)
            return -1;
        place->link.away = &place->absent;
    }
    if (read_secret(place, secret, err) != 0)
        return -1;
    for (size_t node = 0; node < redis_link_nodes(&place->link); node++)
        if (check_settings(place, node, err) != 0)
            return -1;
    /* Of a cluster any node may be away later. */
    redis_link_init(&place->renewals, &address, timeout);
    place->renewals.away = place->link.away;
    return redis_link_open(&place->renewals, true, err);
}

int redis_place_open(struct store_place **out, const char *location, const struct store_tls *tls,
                     double lease_s, const unsigned char *secret, struct store_accounts *accounts,
                     struct error *err)
{
    static const struct store_tls none;
    struct store_place *place = calloc(1, sizeof *place);
    if (place == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the store");
    place->accounts = accounts;
    place->lease_s = lease_s;
    if (open_place(place, location, tls != NULL ? tls : &none, secret, err) != 0) {
        redis_place_close(place);
        return -1;
    }
    *out = place;
    return 0;
}
