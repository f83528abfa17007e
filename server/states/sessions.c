/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/sessions.h"

#include "engine/engine.h"
#include "lib/base/clock.h"
#include "server/log.h"
#include "server/states/session_changes.h"
#include "server/states/session_leases.h"
#include "server/states/session_quota.h"
#include "server/store/store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int out_of_memory(struct api_error *err)
{
    return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for the session");
}

int sessions_create(struct sessions **out, const struct sessions_options *options,
                    struct error *err)
{
    struct sessions *sessions = calloc(1, sizeof *sessions);
    if (!sessions)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for sessions");
    sessions->options = *options;
    sessions->opened = session_clock(sessions).running_s;
    *out = sessions;
    return 0;
}

static struct session *enter(struct sessions *sessions, const char *owner, const char *id,
                             const char *salt, struct api_error *err)
{
    struct session *session = session_enter(sessions, owner, id, salt);
    if (!session)
        out_of_memory(err);
    return session;
}

void sessions_free(struct sessions *sessions)
{
    if (!sessions)
        return;
    if (sessions->options.store)
        store_finish(sessions->options.store);
    while (sessions->count)
        session_leave(sessions->list[sessions->count - 1]);
    free(sessions->list);
    free(sessions);
}

static int copy_tokens(struct session *session, const int32_t *tokens, int64_t count,
                       struct api_error *err)
{
    int32_t *copy = malloc(((size_t)count + 1) * sizeof *copy);
    if (!copy)
        return out_of_memory(err);
    if (count)
        memcpy(copy, tokens, (size_t)count * sizeof *copy);
    free(session_set_tokens(session, copy, count));
    return 0;
}

static int copy_turns(struct session *session, const char *turns, int64_t length,
                      struct api_error *err)
{
    char *copy = malloc((size_t)length + 1);
    if (!copy)
        return out_of_memory(err);
    if (length)
        memcpy(copy, turns, (size_t)length);
    session_set_turns(session, copy, length);
    return 0;
}

void sessions_found(struct sessions *sessions, const struct store_found *file)
{
    struct session_meta meta;
    struct api_error err = {0};
    if (session_meta_parse(&meta, file->meta, file->meta_length) ||
        meta.turns > file->turns_length) {
        log_message(LOG_LEVEL_WARN,
                    "session %s in the store: its META is none of a session: left alone",
                    file->name);
        return;
    }
    /* A use after its last change is noted in the time that comes with it. */
    const struct session_clock now = session_clock(sessions);
    const double modified = (double)file->modified_ns * 1e-9;
    double noted = meta.used;
    if (modified > noted)
        noted = modified < now.wall_s ? modified : now.wall_s;
    struct session *session = session_lookup(sessions, meta.owner, meta.id);
    if (session && session->noted >= noted) {
        session_changes_discard(sessions, file->name);
        return;
    }
    if (session) {
        session_changes_discard(sessions, session->name);
        session_leave(session);
    }
    session = enter(sessions, meta.owner, meta.id, meta.space, &err);
    if (!session || copy_tokens(session, file->tokens, file->count, &err) ||
        copy_turns(session, file->turns, meta.turns, &err)) {
        log_message(LOG_LEVEL_ERROR, "session %s: %s", meta.id, err.message);
        if (session)
            session_leave(session);
        return;
    }
    /* Where the clock has gone back it lives no longer for that. */
    meta.used = noted < now.wall_s ? noted : now.wall_s;
    session->meta = meta;
    session->noted = noted;
    session->since = now.running_s - (now.wall_s - meta.used);
    session->found = true;
    session->fresh = false;
    session->stored = true;
    session->kept = session->most = file->count;
    session->turns_kept = session->turns_most = meta.turns;
    snprintf(session->name, sizeof session->name, "%s", file->name);
}

bool sessions_pending(const struct sessions *sessions)
{
    return sessions->writing > 0;
}

/* When it has lived its time. What a restart found may be old only by a clock that was not set yet,
 * and then everything is: that has to be still so after a while. */
static double end_of(const struct session *session, const struct session_clock *now)
{
    enum { DOUBT_SECONDS = 3600 };
    const struct sessions *sessions = session->sessions;
    double ttl = session_ttl(sessions, session->meta.id), end = session->since + ttl;
    if (!session->found)
        return end;
    double told_now = now->running_s + session->meta.used + ttl - now->wall_s;
    return fmax(fmax(end, told_now), sessions->opened + fmin(ttl, DOUBT_SECONDS));
}

/* How soon what failed is tried again. */
enum { RETRY_SECONDS = 2 };

/* Removes those that have lived their time. As sessions_poll. */
static double poll_ttl(struct sessions *sessions)
{
    const struct sessions_options *options = &sessions->options;
    double ttl = fmin(options->ttl_s > 0 ? options->ttl_s : INFINITY,
                      options->response_ttl_s > 0 ? options->response_ttl_s : INFINITY);
    if (ttl == (double)INFINITY)
        return -1;
    const struct session_clock now = session_clock(sessions);
    if (now.running_s < sessions->next_due)
        return sessions->next_due - now.running_s;
    double due = now.running_s + ttl;
    for (size_t i = sessions->count; i-- > 0;) {
        struct session *session = sessions->list[i];
        /* The store lets what others use go by its own clock. */
        if (session->busy || session_is_copy(session) ||
            session_ttl(sessions, session->meta.id) <= 0)
            continue;
        double end = end_of(session, &now);
        if (end <= now.running_s) {
            session_changes_remove(session, NULL, NULL);
            end = now.running_s + RETRY_SECONDS;
        }
        if (end < due)
            due = end;
    }
    sessions->next_due = due;
    return due - now.running_s;
}

/* Writes again what could not be written, or tries whether it could be. As sessions_poll. */
static double poll_failed(struct sessions *sessions)
{
    struct store_report report = {0};
    if (sessions->options.store)
        store_report(sessions->options.store, &report);
    if (!sessions->unsaved && !report.failing)
        return -1;
    double now = session_clock(sessions).running_s;
    if (now >= sessions->retry_at) {
        sessions->retry_at = now + RETRY_SECONDS;
        if (sessions->unsaved)
            session_changes_retry(sessions, false);
        else
            store_probe(sessions->options.store);
    }
    return sessions->retry_at - now;
}

double sessions_poll(struct sessions *sessions)
{
    double end = poll_ttl(sessions), retry = poll_failed(sessions);
    return retry < 0 || (end >= 0 && end < retry) ? end : retry;
}

void sessions_save_all(struct sessions *sessions, double deadline)
{
    const struct timespec pause = {0, 1000000};
    if (!sessions->options.store)
        return;
    session_changes_retry(sessions, true);
    while (sessions->writing && clock_seconds() < deadline && store_poll(sessions->options.store))
        nanosleep(&pause, NULL);
}

size_t sessions_unsaved(const struct sessions *sessions)
{
    return sessions->unsaved + sessions->changes;
}

void sessions_give_up(struct sessions *sessions, const struct api_error *err)
{
    session_changes_give_up(sessions, err);
}

/* Looking. */

static int not_found(const char *id, struct api_error *err)
{
    if (session_is_response(id))
        return api_error_set(err, API_RESPONSE_NOT_FOUND, NULL, "there is no response \"%s\"", id);
    return api_error_set(err, API_SESSION_NOT_FOUND, NULL, "there is no session \"%s\"", id);
}

static int busy(const char *id, struct api_error *err)
{
    return api_error_set(err, API_SESSION_BUSY, NULL,
                         "the session \"%s\" is busy with another request", id);
}

struct session *sessions_find(struct sessions *sessions, const char *owner, const char *id,
                              struct api_error *err)
{
    struct session *session = session_lookup(sessions, owner, id);
    if (session && !session->fresh)
        return session;
    not_found(id, err);
    return NULL;
}

bool sessions_makes(const struct sessions *sessions, const char *owner, const char *id)
{
    const struct session *session = session_lookup(sessions, owner, id);
    return session && session->fresh && session->busy;
}

const char *session_salt(const struct session *session)
{
    return session->meta.space;
}

const char *session_turns(const struct session *session, int64_t *length)
{
    *length = session->turns_length;
    return session->turns;
}

const int32_t *session_tokens(const struct session *session, int64_t *count)
{
    *count = session->count;
    return session->tokens;
}

void session_match(struct sessions *sessions, const struct session *session,
                   struct state_match *match)
{
    state_tree_match(sessions->options.tree, session->space, session->tokens, session->count,
                     MATCH_ANY, match);
}

void session_view(struct sessions *sessions, const struct session *session,
                  struct session_view *view)
{
    const struct engine_info *info = engine_info(sessions->options.engine);
    *view = (struct session_view){.position = session->count,
                                  .created = session->meta.created,
                                  .used = session->meta.used,
                                  .durable = sessions->options.store && session->stored &&
                                             !session->unsaved};
    memcpy(view->id, session->meta.id, sizeof view->id);
    if (!session->count)
        return;
    view->recurrent_bytes = (int64_t)info->recurrent_bytes_per_text;
    view->kv_bytes = session_state_bytes(sessions, session->count) - view->recurrent_bytes;
    view->checkpoints = state_tree_checkpoints_of(sessions->options.tree, session->space,
                                                  session->tokens, session->count, &view->tier);
}

void sessions_view_found(struct sessions *sessions, const struct session_meta *meta, int64_t count,
                         struct session_view *view)
{
    const struct session *session = session_lookup(sessions, meta->owner, meta->id);
    if (session && session->count == count) {
        session_view(sessions, session, view);
        return;
    }
    const struct engine_info *info = engine_info(sessions->options.engine);
    *view = (struct session_view){
        .position = count, .created = meta->created, .used = meta->used, .durable = true};
    memcpy(view->id, meta->id, sizeof view->id);
    if (count == 0)
        return;
    view->recurrent_bytes = (int64_t)info->recurrent_bytes_per_text;
    view->kv_bytes = session_state_bytes(sessions, count) - view->recurrent_bytes;
}

struct session_card session_card(const struct session_view *view)
{
    return (struct session_card){.id = view->id,
                                 .position = view->position,
                                 .recurrent_bytes = view->recurrent_bytes,
                                 .kv_bytes = view->kv_bytes,
                                 .tier = tier_name(view->tier),
                                 .created = (int64_t)view->created,
                                 .used = (int64_t)view->used,
                                 .checkpoints = view->checkpoints,
                                 .durable = view->durable,
                                 .shared_with = view->shared_with[0] ? view->shared_with : NULL,
                                 .shared_tokens = view->shared_tokens};
}

void sessions_each(struct sessions *sessions, const char *owner,
                   void (*each)(void *context, const struct session *session), void *context)
{
    bool found;
    for (size_t i = session_place(sessions, owner, "", &found);
         i < sessions->count && strcmp(sessions->list[i]->meta.owner, owner) == 0; i++)
        if (!sessions->list[i]->fresh && !session_is_response(sessions->list[i]->meta.id))
            each(context, sessions->list[i]);
}

size_t sessions_orphans(const struct sessions *sessions, const struct names *owners)
{
    size_t orphans = 0;
    for (size_t i = 0; i < sessions->count; i++) {
        bool known = false;
        for (size_t j = 0; j < owners->count && !known; j++)
            known = strcmp(sessions->list[i]->meta.owner, owners->items[j]) == 0;
        orphans += !known;
    }
    return orphans;
}

void sessions_count(struct sessions *sessions, int64_t counts[4])
{
    for (int tier = 0; tier < 4; tier++)
        counts[tier] = 0;
    for (size_t i = 0; i < sessions->count; i++) {
        const struct session *session = sessions->list[i];
        enum tier tier = TIER_NONE;
        state_tree_checkpoints_of(sessions->options.tree, session->space, session->tokens,
                                  session->count, &tier);
        counts[tier]++;
    }
}

/* Requests. */

static int check_free(const struct session *session, const char *id, int64_t expected,
                      struct api_error *err)
{
    int64_t position = session ? session->count : 0;
    if (session && session->busy)
        return busy(id, err);
    if (expected >= 0 && expected != position)
        return api_error_set(err, API_POSITION_MISMATCH, NULL,
                             "the session \"%s\" is at position %lld, expected_position is %lld",
                             id, (long long)position, (long long)expected);
    return 0;
}

int sessions_bind(struct sessions *sessions, const char *owner, const char *id, int64_t expected,
                  struct session **out, struct api_error *err)
{
    struct session *session = session_lookup(sessions, owner, id);
    if (check_free(session, id, expected, err) ||
        (!session && !(session = enter(sessions, owner, id, "", err))))
        return -1;
    session->busy = true;
    session_use(session);
    *out = session;
    return 0;
}

int sessions_peek(struct sessions *sessions, const char *owner, const char *id, int64_t expected,
                  const struct session **out, struct api_error *err)
{
    struct session *session = session_lookup(sessions, owner, id);
    if (check_free(session, id, expected, err))
        return -1;
    if (session)
        session_changes_use(session);
    *out = session;
    return 0;
}

bool sessions_have_quota(const struct sessions *sessions)
{
    return sessions->options.quota_bytes > 0;
}

int sessions_admit(struct sessions *sessions, struct session *session, int64_t tokens,
                   int64_t turns, struct api_error *err)
{
    if (session_quota_check(sessions, session->meta.owner, session, tokens, turns, err))
        return -1;
    session_promise(session, tokens, turns);
    return 0;
}

void sessions_settle(struct session *session, const struct session_content *content,
                     const struct store_reply *claim, session_done *done, void *context)
{
    if (content->tokens) {
        session_use(session);
        session_changes_save(session, content, claim, done, context);
        return;
    }
    free(content->turns);
    bool later = session_leases_give_then(session, done, context);
    if (session->fresh) {
        session_leave(session);
    } else {
        session_changes_use(session);
        session->busy = false;
        session_promise(session, 0, 0);
    }
    if (!later)
        done(context, NULL);
}

/* Changes outside of a completion. */

static struct session *find_free(struct sessions *sessions, const char *owner, const char *id,
                                 struct api_error *err)
{
    struct session *session = session_lookup(sessions, owner, id);
    if (session && session->busy)
        busy(id, err);
    else if (!session || session->fresh)
        not_found(id, err);
    else
        return session;
    return NULL;
}

/* One that was asked for, to be made now. */
static bool is_to_be_made(const struct session *session)
{
    return session->fresh && !session->busy;
}

/* A new session of these tokens, busy. turns: bytes of those that it will have. */
static struct session *make(struct sessions *sessions, const char *owner, const char *id,
                            const char *salt, const int32_t *tokens, int64_t count, int64_t turns,
                            struct api_error *err)
{
    struct session *session = session_lookup(sessions, owner, id);
    struct store_lease lease = {0};
    if (session && !is_to_be_made(session)) {
        api_error_set(err, API_SESSION_EXISTS, NULL, "there is a session \"%s\" already", id);
        return NULL;
    }
    if (session_quota_check(sessions, owner, session, count, turns, err))
        return NULL;
    if (session) { /* another space: made anew */
        lease = session->lease;
        session_leave(session);
    }
    session = enter(sessions, owner, id, salt, err);
    if (!session) {
        if (lease.holder[0])
            session_leases_send_back(sessions, owner, id, &lease);
        return NULL;
    }
    session->lease = lease;
    if (copy_tokens(session, tokens, count, err)) {
        session_leases_give(session);
        session_leave(session);
        return NULL;
    }
    return session;
}

/* One that is made, while its owner's quota is asked for. */
struct making {
    struct session *session;
    session_done *done;
    void *context;
};

static void on_reserved(void *context, const struct api_error *err)
{
    struct making making = *(struct making *)context;
    free(context);
    struct session *session = making.session;
    session->busy = false;
    if (!err) {
        session_changes_save(session, &(struct session_content){.count = session->count}, NULL,
                             making.done, making.context);
        return;
    }
    session_leases_give(session);
    session_forget(session);
    making.done(making.context, err);
}

static void save_made(struct session *session, session_done *done, void *context)
{
    struct making *making = malloc(sizeof *making);
    struct api_error err = {0};
    session->busy = true;
    if (making) {
        *making = (struct making){session, done, context};
        session_promise(session, session->count, 0);
        session_quota_reserve(session, on_reserved, making);
        return;
    }
    session_leases_give(session);
    session_forget(session);
    out_of_memory(&err);
    done(context, &err);
}

int sessions_remove(struct sessions *sessions, const char *owner, const char *id,
                    session_done *done, void *context, struct api_error *err)
{
    struct session *session = find_free(sessions, owner, id, err);
    if (!session)
        return -1;
    session_changes_remove(session, done, context);
    return 0;
}

int sessions_fork(struct sessions *sessions, const char *owner, const char *id, const char *target,
                  session_done *done, void *context, struct api_error *err)
{
    struct session *session = find_free(sessions, owner, id, err);
    if (!session)
        return -1;
    struct session *copy = make(sessions, owner, target, session->meta.space, session->tokens,
                                session->count, session->turns_length, err);
    if (!copy)
        return -1;
    if (copy_turns(copy, session->turns, session->turns_length, err)) {
        session_leases_give(copy);
        session_leave(copy);
        return -1;
    }
    session_changes_use(session);
    save_made(copy, done, context);
    return 0;
}

int sessions_rewind(struct sessions *sessions, const char *owner, const char *id, int64_t position,
                    session_done *done, void *context, struct api_error *err)
{
    struct session *session = find_free(sessions, owner, id, err);
    if (!session)
        return -1;
    if (position > session->count)
        return api_error_set(err, API_INVALID_VALUE, "position",
                             "position: the session \"%s\" holds %lld tokens, got %lld", id,
                             (long long)session->count, (long long)position);
    session_use(session);
    session_changes_save(session, &(struct session_content){.count = position}, NULL, done,
                         context);
    return 0;
}

int sessions_import(struct sessions *sessions, const char *owner, const char *id,
                    const int32_t *tokens, int64_t count, void *image, int64_t position,
                    session_done *done, void *context, struct api_error *err)
{
    char salt[SESSION_SPACE_SIZE];
    struct session *session = NULL;
    if (store_random_name(salt))
        session = make(sessions, owner, id, salt, tokens, count, 0, err);
    else
        out_of_memory(err);
    if (!session) {
        free(image);
        return -1;
    }
    struct error lacking = ERROR_INIT;
    /* No room for the state: it is computed again when it is needed. */
    if (image && state_tree_give_image(sessions->options.tree, session->space, tokens, position,
                                       image, &lacking))
        log_message(LOG_LEVEL_INFO, "session %s: imported without its state: %s", id,
                    lacking.message);
    save_made(session, done, context);
    return 0;
}
