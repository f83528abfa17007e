/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session_ask.h"

#include "server/log.h"
#include "server/states/session_changes.h"
#include "server/states/session_quota.h"
#include "server/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- copies ---- */

/* Whether the store was asked for it, or its answer is for this question: what was said of the copy
 * has to hold until then. */
static bool is_in_question(const struct session *session, const struct session_question *answered)
{
    const char *owner = session->meta.owner, *id = session->meta.id;
    if (strcmp(answered->owner, owner) == 0 &&
        (strcmp(answered->id, id) == 0 || strcmp(answered->kept, id) == 0))
        return true;
    for (const struct session_question *at = session->sessions->questions; at; at = at->next)
        if (strcmp(at->owner, owner) == 0 && (strcmp(at->id, id) == 0 || strcmp(at->kept, id) == 0))
            return true;
    return false;
}

/* Copies that nobody works on or asks for go, the least recently used first, until the answer and
 * as much again would fit. */
static void make_room(const struct session_question *answered, int64_t tokens, int64_t turns)
{
    struct sessions *sessions = answered->sessions;
    const int64_t more = tokens + turns / SESSION_TOKEN_BYTES;
    while (!session_quota_fit(
        sessions, 1, sessions->tokens + sessions->turns / SESSION_TOKEN_BYTES + 2 * more)) {
        struct session *oldest = NULL;
        for (size_t i = 0; i < sessions->count; i++) {
            struct session *at = sessions->list[i];
            if (!at->busy && !at->lease.holder[0] && (!oldest || at->since < oldest->since) &&
                !is_in_question(at, answered))
                oldest = at;
        }
        if (!oldest)
            return;
        session_leave(oldest);
    }
}

/* The file of its deepest state, which is read when a text begins there. */
static void find_state(struct session *session, int64_t state)
{
    if (state > 0)
        state_tree_find_shared(session->sessions->options.tree, session->space, session->tokens,
                               state);
}

/* The copy becomes what the store has. */
static int take_row(struct session_question *question, struct api_error *err)
{
    struct sessions *sessions = question->sessions;
    struct store_row *row = question->take.look.row;
    struct session *session = session_lookup(sessions, question->owner, question->id);
    struct session_meta meta;
    if (session_meta_parse(&meta, row->meta, row->meta_length) ||
        strcmp(meta.owner, question->owner) != 0 || strcmp(meta.id, question->id) != 0 ||
        meta.turns != row->turns_length)
        return api_error_set(err, API_STORE_FAILED, NULL,
                             "the session \"%s\": the store's META is none of it", question->id);
    if (session && strcmp(session->meta.space, meta.space) != 0) {
        session_leave(session);
        session = NULL;
    }
    make_room(question, row->count, row->turns_length);
    if (!session && !(session = session_enter(sessions, meta.owner, meta.id, meta.space)))
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for the session");
    session_changes_take(session, &(struct session_content){.tokens = row->tokens,
                                                            .count = row->count,
                                                            .turns = row->turns,
                                                            .turns_length = row->turns_length});
    row->tokens = NULL;
    row->turns = NULL;
    session->meta = meta;
    session->fresh = false;
    session->stored = true;
    session->state = row->state;
    find_state(session, row->state);
    return 0;
}

/* There is none: one that was here was deleted elsewhere. With a lease, it may be made now. */
static int take_none(struct session_question *question, struct api_error *err)
{
    struct sessions *sessions = question->sessions;
    struct session *session = session_lookup(sessions, question->owner, question->id);
    if (session && session->stored) {
        session_forget(session);
        session = NULL;
    }
    if (session || !question->about.lease.holder[0])
        return 0;
    make_room(question, 0, 0);
    if (!session_enter(sessions, question->owner, question->id, ""))
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for the session");
    return 0;
}

static int take_answer(struct session_question *question, struct api_error *err)
{
    const struct store_look *look = &question->take.look;
    int result = 0;
    if (look->seen == STORE_SEEN_OTHER)
        result = take_row(question, err);
    else if (look->seen == STORE_SEEN_NONE)
        result = take_none(question, err);
    struct session *session = session_lookup(question->sessions, question->owner, question->id);
    if (result == 0 && session) {
        session->lease = look->session.lease;
        session->doubtful = false;
        session_use(session);
        if (!session->fresh)
            session->meta.used = look->used; /* by the store's clock */
    }
    return result;
}

/* Nobody has begun to work on it. */
static void settle(struct session_question *question)
{
    struct session *session = session_lookup(question->sessions, question->owner, question->id);
    if (!session || session->busy)
        return;
    session_leases_give(session);
    if (session->fresh)
        session_leave(session);
}

bool session_ask_undo(struct sessions *sessions, const char *owner, const char *id,
                      session_done *back, void *context)
{
    struct session *session = session_lookup(sessions, owner, id);
    return session && !session->busy && session_leases_give_then(session, back, context);
}

/* Whether the store has what the request at work began with: else another server has taken the
 * session, and the request will not be able to commit. */
static bool is_as_it_was(const struct session *session, const struct store_look *look)
{
    return look->seen == STORE_SEEN_SAME || (look->seen == STORE_SEEN_NONE && session->fresh);
}

static int64_t version_of(const struct session *session)
{
    return session ? session->lease.version : 0;
}

/* What the store had while a change was under way that has ended since, or before what is here now.
 */
static bool is_late(const struct session_question *question, const struct session *session)
{
    const bool ended = question->beside && !(session && session->busy);
    return question->op.what == STORE_LOOK && question->op.error.code == ERROR_NONE &&
           (ended || version_of(session) != question->version);
}

static void ask_again(struct session_question *question)
{
    session_done *done = question->done;
    question->done = NULL;
    if (done)
        session_ask(question->sessions, question->owner, question->id,
                    question->take.look.uses ? SESSION_USES : SESSION_READS,
                    question->kept[0] ? question->kept : NULL, NULL, done, question->context);
    session_question_free(question);
}

static void on_answered(struct store_op *op)
{
    struct session_question *question = (struct session_question *)op;
    struct sessions *sessions = question->sessions;
    struct session *session = session_lookup(sessions, question->owner, question->id);
    struct api_error err = {0};
    bool failed = op->error.code != ERROR_NONE, takes = op->what == STORE_TAKE;
    session_question_leave(question);
    if (is_late(question, session)) {
        ask_again(question);
        return;
    }
    if (failed) {
        session_leases_explain(question->id, op, &err);
        if (takes && op->refusal == STORE_AWAY && question->about.sends > 0)
            /* The store may still give it. */
            session_leases_send_back(sessions, question->owner, question->id,
                                     &question->about.lease);
        if (op->refusal == STORE_CONFLICT) {
            log_message(LOG_LEVEL_ERROR, "session %s: %s", question->id, op->error.message);
            if (session)
                session_leases_doubt(session); /* who asks next goes on with the store's copy */
        }
    } else if (session && session->busy) {
        /* A request here works on it: one that has not asked for the lease, if this one has. */
        failed = takes || !is_as_it_was(session, &question->take.look);
        if (failed)
            api_error_set(&err, API_SESSION_BUSY, NULL,
                          takes ? "the session \"%s\" is busy with another request"
                                : "the session \"%s\" is being changed by another server",
                          question->id);
        if (takes)
            session_leases_send_back(sessions, question->owner, question->id,
                                     &question->about.lease);
    } else if (take_answer(question, &err)) {
        failed = true;
        if (takes)
            session_leases_send_back(sessions, question->owner, question->id,
                                     &question->about.lease);
    }
    session_question_tell(question, failed ? &err : NULL);
    if (!failed && takes)
        settle(question);
    session_question_free(question);
}

/* There is nobody to ask. */
static void answer(struct session_question *question)
{
    session_question_leave(question);
    session_question_tell(question, NULL);
    session_question_free(question);
}

static bool is_asked_for(const struct sessions *sessions, const char *owner, const char *id)
{
    for (const struct session_question *at = sessions->questions; at; at = at->next)
        if (at->op.what == STORE_TAKE && at->done && strcmp(at->owner, owner) == 0 &&
            strcmp(at->id, id) == 0)
            return true;
    return false;
}

/* Who asks may be gone before the store has read it. */
static int copy_key(struct session_question *question, const struct store_reply *key,
                    struct api_error *err)
{
    if (!key)
        return 0;
    question->key_name = malloc(key->name_length + 1);
    if (!question->key_name)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for the session");
    memcpy(question->key_name, key->name, key->name_length);
    question->key = *key;
    question->key.name = question->key_name;
    question->take.key = &question->key;
    return 0;
}

/* NULL, with the error: it cannot be asked. */
static struct session_question *prepare(struct sessions *sessions, const char *owner,
                                        const char *id, bool takes, const struct store_reply *key,
                                        struct api_error *err)
{
    struct session_question *question = session_question_create(sessions, owner, id, on_answered);
    if (!question) {
        api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for the session");
        return NULL;
    }
    if (takes && !store_random_name(question->about.lease.holder))
        api_error_set(err, API_INTERNAL, NULL, "the system has no random numbers");
    else if (copy_key(question, key, err) == 0)
        return question;
    session_question_leave(question);
    session_question_free(question);
    return NULL;
}

void session_ask(struct sessions *sessions, const char *owner, const char *id,
                 enum session_need need, const char *kept, const struct store_reply *key,
                 session_done *done, void *context)
{
    bool takes = need == SESSION_CHANGES;
    struct session *session = session_lookup(sessions, owner, id);
    struct session_question *question = NULL;
    struct api_error err = {0};
    if (!sessions->options.store || (takes && session && session->busy)) {
        done(context, NULL); /* whoever is to work on it sees that it is busy */
        return;
    }
    if (takes && is_asked_for(sessions, owner, id))
        api_error_set(&err, API_SESSION_BUSY, NULL,
                      "the session \"%s\" is busy with another request", id);
    else
        question = prepare(sessions, owner, id, takes, key, &err);
    if (!question) {
        done(context, &err);
        return;
    }
    question->done = done;
    question->context = context;
    question->take.look.uses = need != SESSION_READS;
    question->beside = session && session->busy;
    question->version = version_of(session);
    if (kept)
        snprintf(question->kept, sizeof question->kept, "%s", kept);
    if (session && session->stored && !session->doubtful)
        question->about.lease.version = session->lease.version;
    if (!(takes ? store_take(sessions->options.store, &question->take)
                : store_look(sessions->options.store, &question->take.look)))
        answer(question);
}

/* ---- lists ---- */

static void tell_row(const struct session_question *question, const struct store_row *row)
{
    struct sessions *sessions = question->sessions;
    const struct session_lister *lister = &question->lister;
    struct session_meta meta;
    struct session_view view;
    if (session_meta_parse(&meta, row->meta, row->meta_length) ||
        strcmp(meta.owner, question->owner) != 0 || session_is_response(meta.id))
        return;
    sessions_view_found(sessions, &meta, row->count, &view);
    view.used = row->used;
    lister->each(lister->context, &view);
}

static void on_listed(struct store_op *op)
{
    struct session_question *question = (struct session_question *)op;
    struct api_error err = {0};
    session_question_leave(question);
    if (op->error.code != ERROR_NONE)
        api_error_set(&err, op->refusal == STORE_AWAY ? API_STORE_UNAVAILABLE : API_STORE_FAILED,
                      NULL, "the sessions cannot be listed: %s", op->error.message);
    for (size_t i = 0; question->done && err.code == API_OK && i < question->list.num_rows; i++)
        tell_row(question, &question->list.rows[i]);
    session_question_tell(question, err.code == API_OK ? NULL : &err);
    session_question_free(question);
}

bool session_ask_list(struct sessions *sessions, const char *owner,
                      const struct session_lister *lister)
{
    struct api_error err = {0};
    if (!sessions->options.store)
        return false;
    struct session_question *question = session_question_create(sessions, owner, "", on_listed);
    if (!question) {
        api_error_set(&err, API_OUT_OF_MEMORY, NULL, "out of memory for the sessions");
        lister->end(lister->context, &err);
        return true;
    }
    question->lister = *lister;
    question->done = lister->end;
    question->context = lister->context;
    if (store_list(sessions->options.store, &question->list))
        return true;
    session_question_leave(question);
    session_question_free(question);
    return false;
}
