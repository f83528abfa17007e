/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_redis.h"

#include "engine/engine.h"
#include "engine/model/model.h"
#include "lib/base/clock.h"
#include "server/log.h"
#include "server/store/redis_owners.h"
#include "server/store/redis_prefixes.h"
#include "server/store/redis_refusals.h"
#include "server/store/redis_replies.h"
#include "server/store/redis_sessions.h"
#include "server/store/redis_states.h"

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

/* ---- states ---- */

/* Says of an operation that failed that the store is away, if it is no other's fault. */
static int end(struct store_op *op, int result)
{
    if (result != 0 && op->error.code == ERROR_IO && op->refusal == STORE_ACCEPTED)
        op->refusal = STORE_AWAY;
    return result;
}

static int redis_write(struct store_place *place, struct store_op *op, struct error *err)
{
    return end(op, redis_states_write(place, op, err));
}

static int redis_read(struct store_place *place, struct store_op *op, struct error *err)
{
    return end(op, redis_states_read(place, op, err));
}

static int redis_remove(struct store_place *place, struct store_op *op, struct error *err)
{
    return end(op, redis_states_remove(place, op, err));
}

static int redis_touch(struct store_place *place, struct store_op *op, struct error *err)
{
    return end(op, redis_states_touch(place, op, err));
}

/* ---- the rest ---- */

/* Sessions and replies apart; afterwards in one list again. */
static struct store_op *redis_run_rows(struct store_place *place, struct store_op *first)
{
    struct store_op *lists[2] = {NULL, NULL}, **last[2] = {&lists[0], &lists[1]};
    for (struct store_op *op = first, *next; op != NULL; op = next) {
        int which = op->kind == STORE_REPLY;
        next = op->next;
        op->next = NULL;
        *last[which] = op;
        last[which] = &op->next;
    }
    redis_replies_run(place, lists[1]);
    *last[1] = redis_sessions_run(place, lists[0]);
    return lists[1];
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

const struct store_backend store_redis = {.takes = redis_location,
                                          .has_tls = redis_location_tls,
                                          .name = redis_name,
                                          .shared = true,
                                          .open = redis_open,
                                          .write = redis_write,
                                          .read = redis_read,
                                          .remove = redis_remove,
                                          .touch = redis_touch,
                                          .find = redis_prefixes_find,
                                          .run_rows = redis_run_rows,
                                          .due_in = redis_sessions_due_in,
                                          .tidy_rows = redis_tidy,
                                          .secret = redis_secret,
                                          .close = redis_place_close};
