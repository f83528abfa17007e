/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_redis.h"

#include "engine/engine.h"
#include "engine/model/model.h"
#include "lib/base/clock.h"
#include "server/log.h"
#include "server/store/redis_leases.h"
#include "server/store/redis_owners.h"
#include "server/store/redis_refusals.h"
#include "server/store/redis_replies.h"
#include "server/store/redis_sessions.h"
#include "server/store/redis_states.h"
#include "server/store/redis_upkeep.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

/* Others fill it, too: it has a limit of its own. Sums with it do not overflow. */
static const int64_t NO_LIMIT = INT64_MAX / 2;

/* Whether the start waits: the store answered, and says that it is not ready yet. */
static bool waits(const struct store_options *options, const struct error *err, bool waited)
{
    const struct redis_refusal *refusal = redis_refusals_behind(err);
    return options->waits != NULL &&
           ((refusal != NULL && refusal->passes) || (waited && err->code == ERROR_IO));
}

static int open_patiently(struct store_place **out, const struct store_options *options,
                          struct store_accounts *accounts, struct error *err)
{
    const struct timespec pause = {0, 200 * 1000000};
    const char *said = NULL;
    for (;;) {
        struct error why = ERROR_INIT;
        if (redis_place_open(out, options->location, &options->tls, options->lease_s, NULL,
                             accounts, &why) == 0)
            return 0;
        if (!waits(options, &why, said != NULL))
            return error_set(err, why.code, "%s", why.message);
        const char *words = redis_refusals_words(&why);
        if (words != said)
            log_message(LOG_LEVEL_WARN, "the store is %s: %s; the start waits for it", words,
                        why.message);
        said = words;
        options->waits(options->waits_context, words);
        nanosleep(&pause, NULL);
    }
}

static int redis_open(struct store_place **out, struct engine *engine,
                      const struct store_options *options, struct store_accounts *accounts,
                      struct error *err)
{
    if (open_patiently(out, options, accounts, err) != 0)
        return -1;
    struct store_place *place = *out;
    place->engine = engine;
    place->ttl_s = options->ttl_s;
    place->response_ttl_s = options->response_ttl_s;
    place->replicas = options->replicas;
    place->quota_bytes = options->quota_bytes;
    place->vocab_size = engine_model(engine)->vocab_size;
    /* What the store holds, all servers together, it tells whoever asks it. */
    accounts->report.disk_free = accounts->report.budget_bytes = NO_LIMIT;
    for (size_t i = 0; i < FINGERPRINT_BYTES; i++)
        snprintf(place->model + 2 * i, 3, "%02x", engine_fingerprint(engine)[i]);
    log_message(LOG_LEVEL_INFO, "store      %s, leases of %.4g s", redis_link_name(&place->link),
                place->lease_s);
    return 0;
}

/* ---- sessions and replies ---- */

static void redis_take(struct store_place *place, struct store_take *take)
{
    store_batch_add(&place->sessions, &take->look.session.op);
}

static void redis_look(struct store_place *place, struct store_look *look)
{
    store_batch_add(&place->sessions, &look->session.op);
}

static void redis_give(struct store_place *place, struct store_give *give)
{
    store_batch_add(&place->sessions, &give->session.op);
}

static void redis_list(struct store_place *place, struct store_list *list)
{
    store_batch_add(&place->sessions, &list->session.op);
}

static void redis_reserve(struct store_place *place, struct store_reserve *reserve)
{
    store_batch_add(&place->sessions, &reserve->session.op);
}

static void redis_commit(struct store_place *place, struct store_commit *commit)
{
    store_batch_add(&place->sessions, &commit->session.op);
}

static void redis_delete(struct store_place *place, struct store_delete *deletion)
{
    store_batch_add(&place->sessions, &deletion->session.op);
}

static void redis_claim(struct store_place *place, struct store_claim *claim)
{
    store_batch_add(&place->replies, &claim->request.op);
}

static void redis_keep(struct store_place *place, struct store_keep *keep)
{
    store_batch_add(&place->replies, &keep->request.op);
}

static void redis_drop(struct store_place *place, struct store_drop *drop)
{
    store_batch_add(&place->replies, &drop->request.op);
}

/* Sessions and replies apart; afterwards in one list again. */
static struct store_op *redis_end(struct store_place *place)
{
    struct store_op *replies = redis_replies_run(place, store_batch_take(&place->replies));
    struct store_op **last = &replies;
    while (*last != NULL)
        last = &(*last)->next;
    *last = redis_sessions_run(place, store_batch_take(&place->sessions));
    return replies;
}

static double redis_due_in(const struct store_place *place)
{
    return fmin(redis_kept_due_in(&place->kept_replies), redis_kept_due_in(&place->kept_sessions));
}

/* Whether it is back, or away, though nobody asks for anything; and sessions that have lived their
 * time. */
static void redis_tidy(struct store_place *place)
{
    struct error err = ERROR_INIT;
    if (place->away && redis_link_open(&place->link, false, &err) == 0)
        redis_place_tell(place, NULL); /* if it is */
    else if (!place->away && clock_seconds() > place->probe_at)
        redis_place_tell(place, redis_link_check(&place->link, &err) != 0 ? &err : NULL);
    if (!place->away)
        redis_owners_sweep(place);
}

static const unsigned char *redis_secret(const struct store_place *place)
{
    return place->secret;
}

static void redis_name(const char *location, char *name, size_t size)
{
    struct redis_address address;
    struct error wrong = ERROR_INIT;
    const bool sound = redis_address_parse(&address, location, &wrong) == 0;
    snprintf(name, size, "%s", sound ? address.name : "the store");
}

static const struct store_sessions sessions = {.take = redis_take,
                                               .look = redis_look,
                                               .give = redis_give,
                                               .list = redis_list,
                                               .reserve = redis_reserve,
                                               .claim = redis_claim,
                                               .renew = redis_leases_renew,
                                               .commit = redis_commit,
                                               .remove = redis_delete,
                                               .keep = redis_keep,
                                               .drop = redis_drop,
                                               .end = redis_end,
                                               .due_in = redis_due_in,
                                               .tidy = redis_tidy};

static const struct store_blobs blobs = {.put = redis_states_put,
                                         .get = redis_states_get,
                                         .find = redis_states_find,
                                         .remove = redis_states_remove,
                                         .touch = redis_states_touch};

const struct store_backend store_redis = {.takes = redis_location,
                                          .has_tls = redis_location_tls,
                                          .name = redis_name,
                                          .open = redis_open,
                                          .secret = redis_secret,
                                          .close = redis_place_close,
                                          .sessions = &sessions,
                                          .blobs = &blobs,
                                          .upkeep = &redis_upkeep};
