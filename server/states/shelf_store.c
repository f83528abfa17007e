/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/shelf_place.h"
#include "server/store/store.h"
#include "server/store/store_backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct shelf_shared {
    const struct store_backend *backend;
    const struct store_upkeep *upkeep; /* the backend's */
    struct store_place *place;         /* NULL: not open */
    struct store_accounts accounts;
};

/* ---- opening ---- */

static void close_place(struct shelf *shelf)
{
    struct shelf_shared *shared = shelf->place;
    if (shared->place != NULL)
        shared->backend->close(shared->place);
    store_accounts_clear(&shared->accounts);
    free(shared);
}

static int open_place(struct shelf *shelf, enum shelf_use use, const unsigned char *secret,
                      struct error *err)
{
    enum { NAME_SIZE = 512 };
    const struct store_options options = {
        .location = shelf->location, .tls = shelf->tls, .replicas = shelf->replicas};
    struct shelf_shared *shared = calloc(1, sizeof *shared);
    (void)use;
    if (shared == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a place of sessions");
    store_accounts_init(&shared->accounts, INT64_MAX);
    shelf->place = shared;
    shared->backend = store_backends_find(shelf->location);
    shared->upkeep = shared->backend->upkeep;
    shelf->name = malloc(NAME_SIZE);
    if (shelf->name == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a name");
    store_location_name(shelf->location, shelf->name, NAME_SIZE);
    if (shared->upkeep == NULL)
        return error_set(err, ERROR_UNSUPPORTED, "%s: only its servers see its sessions",
                         shelf->name);
    if (shared->upkeep->open(&shared->place, &options, secret, &shared->accounts, err) != 0)
        return -1;
    shelf->secret = shared->backend->secret(shared->place);
    return 0;
}

int shelf_store_is(struct shelf *shelf, struct shelf *other, bool *same, struct error *err)
{
    struct shelf_shared *shared = shelf->place, *others = other->place;
    *same = false;
    return shared->backend == others->backend
               ? shared->upkeep->same(shared->place, others->place, same, err)
               : 0;
}

/* ---- operations on one session ---- */

/* Runs the operation. Returns -1 where it failed; a refusal is none. */
static int run(struct shelf *shelf, struct store_session_op *about,
               const struct shelf_session *session, enum store_what what, struct error *err)
{
    struct shelf_shared *shared = shelf->place;
    struct store_op *op = &about->op, *ended;
    op->kind = STORE_SESSION;
    op->what = what;
    op->next = NULL;
    about->owner = session->meta.owner;
    about->id = session->meta.id;
    shared->upkeep->model(shared->place, session->model);
    ended = store_backend_run(shared->backend, shared->place, op);
    while (ended == NULL) {
        const double wait = shared->backend->sessions->due_in(shared->place);
        const struct timespec pause = {0, (long)(wait * 1e9)}; /* which is less than a second */
        nanosleep(&pause, NULL);
        ended = store_backend_run(shared->backend, shared->place, NULL);
    }
    if (op->error.code == ERROR_NONE || op->refusal == STORE_BUSY || op->refusal == STORE_CONFLICT)
        return 0;
    *err = op->error;
    return error_prefix(err, "session %s", session->meta.id);
}

static int look(struct shelf *shelf, struct store_look *look, const struct shelf_session *session,
                struct error *err)
{
    return run(shelf, &look->session, session, STORE_LOOK, err);
}

static enum shelf_outcome outcome_of(const struct store_op *op)
{
    return op->error.code == ERROR_NONE ? SHELF_DONE
           : op->refusal == STORE_BUSY  ? SHELF_BUSY
                                        : SHELF_OTHER;
}

static int take(struct shelf *shelf, struct store_take *take, const struct shelf_session *session,
                struct error *err)
{
    if (!store_random_name(take->look.session.lease.holder))
        return error_set(err, ERROR_IO, "the system has no random numbers");
    return run(shelf, &take->look.session, session, STORE_TAKE, err);
}

/* Gives back what take has got; keeps the row. */
static int give(struct shelf *shelf, const struct store_take *taken,
                const struct shelf_session *session, struct error *err)
{
    struct store_give giving = {.session.lease = taken->look.session.lease};
    return run(shelf, &giving.session, session, STORE_GIVE, err);
}

static int forget_quota(struct shelf *shelf, const struct shelf_session *session, struct error *err)
{
    struct shelf_shared *shared = shelf->place;
    return shared->upkeep->forget_quota(shared->place, session->meta.owner, err);
}

/* ---- reading ---- */

/* Fills in what the row says. */
static void fill(struct shelf_session *session, const struct store_look *look)
{
    const struct store_row *row = look->row;
    struct session_meta meta;
    session->version = look->session.lease.version;
    session->count = row->count;
    if (session_meta_parse(&meta, row->meta, row->meta_length) != 0 ||
        strcmp(meta.owner, session->meta.owner) != 0 || strcmp(meta.id, session->meta.id) != 0 ||
        meta.turns != row->turns_length) {
        session->damage = "its META is none of it";
        return;
    }
    session->meta = meta;
    if (session->meta.used < look->used)
        session->meta.used = look->used;
    session->tokens = row->tokens;
    session->turns = row->turns;
}

static struct shelf_session named(const char *model, const char *owner, const char *id)
{
    struct shelf_session session = {0};
    snprintf(session.model, sizeof session.model, "%s", model);
    snprintf(session.meta.owner, sizeof session.meta.owner, "%s", owner);
    snprintf(session.meta.id, sizeof session.meta.id, "%s", id);
    return session;
}

/* Reads the session, with what is wrong with it. *damage: its text. *there: false: there is none.
 */
static int read_session(struct shelf *shelf, struct store_look *reading,
                        struct shelf_session *session, struct error *damage, bool *there,
                        struct error *err)
{
    int result = look(shelf, reading, session, damage);
    *there = result != 0 || reading->seen == STORE_SEEN_OTHER;
    if (result == 0 && *there)
        fill(session, reading);
    else if (result != 0 && damage->code == ERROR_INVALID)
        session->damage = damage->message;
    else if (result != 0)
        return error_set(err, damage->code, "%s", damage->message);
    return 0;
}

struct telling {
    struct shelf *shelf;
    shelf_each_function *each;
    void *context;
};

static int tell_one(void *context, const char *model, const char *owner, const char *id,
                    struct error *err)
{
    const struct telling *telling = context;
    struct shelf_session session = named(model, owner, id);
    struct store_look reading = {0};
    struct error damage = ERROR_INIT;
    bool there;
    int result = read_session(telling->shelf, &reading, &session, &damage, &there, err);
    if (result == 0 && there)
        result = telling->each(telling->context, &session, err);
    store_rows_free(reading.row, 1);
    return result;
}

/* Tokens come with it, whether asked for or not: only so it is known to be whole. */
static int shared_each(struct shelf *shelf, bool whole, shelf_each_function *each, void *context,
                       int64_t *damaged, struct error *err)
{
    struct shelf_shared *shared = shelf->place;
    struct telling telling = {shelf, each, context};
    (void)whole;
    (void)damaged;
    return shared->upkeep->each(shared->place, tell_one, &telling, err);
}

/* ---- changes ---- */

/* Ends the lease, however it goes. */
static int commit(struct shelf *shelf, const struct store_take *taken,
                  const struct shelf_session *session, enum shelf_outcome *outcome,
                  struct error *err)
{
    char meta[SESSION_META_SIZE];
    struct store_commit commit = {.session.lease = taken->look.session.lease,
                                  .meta = meta,
                                  .meta_length = session_meta_encode(&session->meta, meta),
                                  .tokens = session->tokens,
                                  .count = session->count,
                                  .turns = session->turns,
                                  .turns_length = session->meta.turns};
    struct error ignored = ERROR_INIT;
    int result = run(shelf, &commit.session, session, STORE_COMMIT, err);
    *outcome = outcome_of(&commit.session.op);
    if (commit.session.op.error.code != ERROR_NONE)
        give(shelf, taken, session, &ignored);
    return result;
}

static int put_taken(struct shelf *shelf, const struct store_take *taken,
                     const struct shelf_session *session, bool replace, enum shelf_outcome *outcome,
                     struct error *err)
{
    struct shelf_session there = *session;
    if (taken->look.seen == STORE_SEEN_OTHER) {
        fill(&there, &taken->look);
        bool same = there.damage == NULL && shelf_session_sum(&there) == shelf_session_sum(session);
        if (same || !replace) {
            /* Whoever put it there may not have waited for replicas, or in vain. */
            const bool again = same && shelf->replicas > 0;
            const int result = again ? commit(shelf, taken, session, outcome, err)
                                     : give(shelf, taken, session, err);
            *outcome = same ? SHELF_SAME : SHELF_OTHER;
            return result;
        }
    }
    int result = commit(shelf, taken, session, outcome, err);
    return result == 0 && *outcome == SHELF_DONE ? forget_quota(shelf, session, err) : result;
}

static int shared_put(struct shelf *shelf, const struct shelf_session *session, bool replace,
                      enum shelf_outcome *outcome, struct error *err)
{
    struct store_take taking = {0};
    struct error why = ERROR_INIT;
    int result = take(shelf, &taking, session, &why);
    if (result != 0 && why.code == ERROR_INVALID) {
        *outcome = SHELF_DAMAGED;
        result = 0;
    } else if (result != 0) {
        *err = why;
    } else if (taking.look.session.op.error.code != ERROR_NONE) {
        *outcome = outcome_of(&taking.look.session.op);
    } else {
        result = put_taken(shelf, &taking, session, replace, outcome, err);
    }
    store_rows_free(taking.look.row, 1);
    return result;
}

static int remove_taken(struct shelf *shelf, const struct store_take *taken,
                        const struct shelf_session *session, enum shelf_outcome *outcome,
                        struct error *err)
{
    struct shelf_shared *shared = shelf->place;
    const struct session_meta *meta = &session->meta;
    struct store_delete removing = {.session.lease = taken->look.session.lease};
    struct store_repair mended = {0};
    struct error ignored = ERROR_INIT;
    *outcome = SHELF_OTHER;
    if (taken->look.seen == STORE_SEEN_OTHER)
        return give(shelf, taken, session, err);
    const char *owner = meta->owner, *id = meta->id;
    int result = shared->upkeep->forget_name(shared->place, owner, id, err);
    if (result == 0)
        result = run(shelf, &removing.session, session, STORE_DELETE, err);
    if (result == 0)
        *outcome = outcome_of(&removing.session.op);
    if (*outcome != SHELF_DONE)
        shared->upkeep->mend_name(shared->place, owner, id, (int64_t)meta->used, &mended, &ignored);
    if (give(shelf, taken, session, result == 0 ? err : &ignored) != 0)
        result = -1;
    return result == 0 && *outcome == SHELF_DONE ? forget_quota(shelf, session, err) : result;
}

static int shared_remove(struct shelf *shelf, const struct shelf_session *sessions, size_t count,
                         enum shelf_outcome *outcomes, struct error *err)
{
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        struct store_take taking = {.look.session.lease.version = sessions[i].version};
        const struct store_op *op = &taking.look.session.op;
        result = take(shelf, &taking, &sessions[i], err);
        outcomes[i] = outcome_of(op);
        if (result == 0 && op->error.code == ERROR_NONE)
            result = remove_taken(shelf, &taking, &sessions[i], &outcomes[i], err);
        store_rows_free(taking.look.row, 1);
    }
    return result;
}

/* ---- repair ---- */

struct repairing {
    struct shelf *shelf;
    struct store_repair *repair;
};

static int repair_one(void *context, const char *model, const char *owner, const char *id,
                      struct error *err)
{
    const struct repairing *repairing = context;
    struct shelf_shared *shared = repairing->shelf->place;
    struct store_repair *repair = repairing->repair;
    struct shelf_session session = named(model, owner, id);
    struct store_look reading = {0};
    struct error damage = ERROR_INIT;
    bool there;
    int result = read_session(repairing->shelf, &reading, &session, &damage, &there, err);
    if (result == 0 && there && session.damage == NULL)
        result = shared->upkeep->mend_name(shared->place, owner, id, (int64_t)session.meta.used,
                                           repair, err);
    if (result == 0)
        result = shared->upkeep->mend(shared->place, owner, id, session.version,
                                      session.damage != NULL, repair, err);
    store_rows_free(reading.row, 1);
    return result;
}

static int shared_repair(struct shelf *shelf, struct store_repair *repair, struct error *err)
{
    struct shelf_shared *shared = shelf->place;
    struct repairing repairing = {shelf, repair};
    return shared->upkeep->each(shared->place, repair_one, &repairing, err) != 0
               ? -1
               : shared->upkeep->mend_lists(shared->place, repair, err);
}

const struct shelf_kind shelf_store = {.open = open_place,
                                       .each = shared_each,
                                       .put = shared_put,
                                       .remove = shared_remove,
                                       .repair = shared_repair,
                                       .close = close_place};
