/* SPDX-License-Identifier: Apache-2.0 */
/* A store in Redis or Valkey, as its files share it. `link` is the store's thread's, `renewals`
 * that of the thread that renews leases. */
#ifndef SERVER_STORE_REDIS_PLACE_H
#define SERVER_STORE_REDIS_PLACE_H

#include "engine/model/fingerprint.h"
#include "lib/base/siphash.h"
#include "server/store/redis_kept.h"
#include "server/store/redis_link.h"
#include "server/store/session_op.h"
#include "server/store/store_accounts.h"

struct engine;

enum { REDIS_RECOUNTS = 64, REDIS_TOLD = 64 };

struct store_place {
    struct redis_link link, renewals;
    struct redis_away absent;  /* of both links, where it is a cluster */
    struct redis_trust *trust; /* of both, with TLS; else NULL */
    struct engine *engine;     /* for states; NULL: sessions alone */
    int32_t vocab_size;        /* of its model */
    struct store_accounts *accounts;
    char model[2 * FINGERPRINT_BYTES + 1]; /* in hex, as it stands in keys */
    unsigned char secret[SIPHASH_BYTES];
    double lease_s, ttl_s, response_ttl_s;
    int replicas; /* of the store's own, that are to have a change before it is acknowledged */
    int64_t quota_bytes;
    struct store_batch sessions, replies; /* that are to go out together */
    struct redis_kept kept_sessions, kept_replies;
    double recounted[REDIS_RECOUNTS]; /* clock_seconds(), by owner: redis_quota.h */
    double damage_told[REDIS_TOLD];   /* clock_seconds(), by name */
    double sweep_at;                  /* clock_seconds() */
    size_t sweep_from;                /* the owner at which the last sweep ran out of time */
    size_t recount_from;              /* the same of a name, of redis_quota.h */
    double probe_at; /* clock_seconds(): then it is asked though nobody else does */
    bool away;       /* the log says so */
};

/* Connects and checks the store. The caller sets engine, vocab_size and model. secret:
 * [SIPHASH_BYTES], what a store without one gets; NULL: a new one. tls: NULL is as all of it NULL.
 * accounts: borrowed until the place is closed. */
int redis_place_open(struct store_place **out, const char *location, const struct store_tls *tls,
                     double lease_s, const unsigned char *secret, struct store_accounts *accounts,
                     struct error *err);
void redis_place_close(struct store_place *place);

/* Says in the log that the store went away, or is back, once each. */
void redis_place_tell(struct store_place *place, const struct error *err);
/* Says in the log that something of the owner is damaged and was stepped over, once a minute each.
 * name: the session's, or a list's. */
void redis_place_tell_damage(struct store_place *place, const char *owner, const char *name,
                             const struct error *err);

#endif
