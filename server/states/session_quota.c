/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session_quota.h"

#include "server/states/session_changes.h"
#include "server/states/session_leases.h"
#include "server/store/store.h"

#include <string.h>

/* What they take of memory with so many more. */
static int64_t memory_with(const struct sessions *sessions, size_t more, int64_t tokens)
{
    enum { SESSION_BYTES = 1024 };
    return (sessions->tokens - sessions->left_tokens + tokens) * SESSION_TOKEN_BYTES +
           sessions->turns - sessions->left_turns +
           (int64_t)(sessions->count + more) * SESSION_BYTES;
}

static int64_t memory_budget(const struct sessions *sessions)
{
    int64_t budget = sessions->options.texts_bytes;
    return budget == 0 ? INT64_MAX : budget;
}

bool session_quota_fit(const struct sessions *sessions, size_t more, int64_t tokens)
{
    return memory_with(sessions, more, tokens) <= memory_budget(sessions);
}

/* Turns may take less than found sessions: a quarter is for tokens of checkpoints that no session
 * holds, and for a restart that finds less memory than this start did. */
static bool may_grow(const struct sessions *sessions, size_t more, int64_t tokens)
{
    int64_t budget = memory_budget(sessions);
    return memory_with(sessions, more, sessions->growth + tokens) <= budget - budget / 4;
}

int session_quota_too_many(const struct sessions *sessions, size_t more, int64_t tokens,
                           struct error *err)
{
    double bytes = (double)memory_with(sessions, more, tokens);
    double budget = (double)memory_budget(sessions);
    /* Their part grows with the limit, and faster than that. */
    return error_set(err, ERROR_NO_MEMORY,
                     "memory: the %zu sessions of --state-dir have %lld tokens and take %.1f MiB, "
                     "expected at most %.1f MiB, their part of what is left; a limit %.1f times as "
                     "high would do",
                     sessions->count + more, (long long)(sessions->tokens + tokens),
                     bytes / (1 << 20), budget / (1 << 20), bytes / budget + 0.1);
}

/* What it counts in the quota, with what is promised to the request at work. */
static int64_t most_bytes(const struct session *session)
{
    int64_t tokens = session->promised > session->count ? session->promised : session->count;
    return session_state_bytes(session->sessions, tokens) + session->turns_length +
           session->more_turns;
}

static int refuse(const struct sessions *sessions, int64_t wanted, int64_t held,
                  struct api_error *err)
{
    return api_error_set(err, API_SESSION_QUOTA, NULL,
                         "this session can need %lld bytes and the other sessions of this API key "
                         "hold %lld, --session-quota allows %lld together",
                         (long long)wanted, (long long)held,
                         (long long)sessions->options.quota_bytes);
}

/* ---- responses make room ---- */

/* Whether it may be removed for another. Copies of what servers share go otherwise. */
static bool may_leave(const struct session *session, const struct session *other)
{
    return session != other && !session->busy && !session->fresh && !session->leaves &&
           !session_is_copy(session) && session_is_response(session->meta.id);
}

/* Removes the response that has been unused for longest: the owner's (NULL: anybody's). Returns
 * what it counted; 0: there is none. */
static int64_t drop_response(struct sessions *sessions, const char *owner,
                             const struct session *other)
{
    struct session *oldest = NULL;
    for (size_t i = 0; i < sessions->count; i++) {
        struct session *at = sessions->list[i];
        if (may_leave(at, other) && (!owner || strcmp(at->meta.owner, owner) == 0) &&
            (!oldest || at->since < oldest->since))
            oldest = at;
    }
    int64_t bytes = oldest ? most_bytes(oldest) : 0;
    if (!oldest)
        return 0;
    session_set_leaves(oldest, true);
    session_changes_remove(oldest, NULL, NULL);
    return bytes;
}

/* Makes memory, if there are responses enough. */
static bool make_memory(struct sessions *sessions,
                        bool fits(const struct sessions *sessions, size_t more, int64_t tokens),
                        size_t more, int64_t tokens, const struct session *other)
{
    int64_t bytes = 0;
    if (fits(sessions, more, tokens))
        return true;
    for (size_t i = 0; i < sessions->count; i++)
        if (may_leave(sessions->list[i], other))
            bytes +=
                sessions->list[i]->count * SESSION_TOKEN_BYTES + sessions->list[i]->turns_length;
    if (!fits(sessions, more, tokens - bytes / SESSION_TOKEN_BYTES))
        return false;
    for (size_t i = sessions->count; i > 0 && !fits(sessions, more, tokens); i--)
        drop_response(sessions, NULL, other);
    return true;
}

bool session_quota_make_fit(struct sessions *sessions, size_t more, int64_t tokens)
{
    return make_memory(sessions, session_quota_fit, more, tokens, NULL);
}

int session_quota_check(struct sessions *sessions, const char *owner, const struct session *session,
                        int64_t tokens, int64_t turns, struct api_error *err)
{
    int64_t quota = sessions->options.quota_bytes, held = 0, may_go = 0;
    int64_t wanted =
        session_state_bytes(sessions, tokens) + (session ? session->turns_length : 0) + turns;
    bool found;
    if (!make_memory(sessions, may_grow, session ? 0 : 1,
                     tokens - (session ? session->count : 0) + turns / SESSION_TOKEN_BYTES,
                     session))
        return api_error_set(err, API_SESSION_QUOTA, NULL,
                             "this session can have %lld tokens; the %lld tokens of all sessions "
                             "have taken the memory that is there for them",
                             (long long)tokens, (long long)sessions->tokens);
    if (quota == 0)
        return 0;
    for (size_t i = session_place(sessions, owner, "", &found);
         i < sessions->count && strcmp(sessions->list[i]->meta.owner, owner) == 0; i++) {
        const struct session *other = sessions->list[i];
        if (other != session && !other->leaves && !session_is_copy(other)) /* see reserve */
            held += most_bytes(other);
        if (may_leave(other, session))
            may_go += most_bytes(other);
    }
    if (wanted > quota - (held - may_go))
        return refuse(sessions, wanted, held, err);
    for (int64_t gone = 1; wanted > quota - held && gone > 0; held -= gone)
        gone = drop_response(sessions, owner, session);
    return 0;
}

/* ---- of what others change, too ---- */

static void on_answered(struct store_op *op)
{
    struct session_question *question = (struct session_question *)op;
    struct api_error err = {0};
    session_question_leave(question);
    if (op->refusal == STORE_QUOTA)
        refuse(question->sessions, question->reserve.wanted_bytes, question->reserve.held_bytes,
               &err);
    else if (op->error.code != ERROR_NONE)
        session_leases_explain(question->id, op, &err);
    session_question_tell(question, err.code != API_OK ? &err : NULL);
    session_question_free(question);
}

void session_quota_reserve(struct session *session, session_done *done, void *context)
{
    struct sessions *sessions = session->sessions;
    struct api_error err = {0};
    if (!sessions->options.store || sessions->options.quota_bytes == 0) {
        done(context, NULL);
        return;
    }
    struct session_question *question =
        session_question_create(sessions, session->meta.owner, session->meta.id, on_answered);
    if (!question) {
        api_error_set(&err, API_OUT_OF_MEMORY, NULL, "out of memory for the session");
        done(context, &err);
        return;
    }
    question->done = done;
    question->context = context;
    question->reserve.wanted_bytes = most_bytes(session);
    if (!store_reserve(sessions->options.store, &question->reserve)) {
        session_question_leave(question);
        session_question_tell(question, NULL);
        session_question_free(question);
    }
}
