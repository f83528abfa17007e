/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session_leases.h"

#include "server/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void session_leases_explain(const char *id, const struct store_op *op, struct api_error *err)
{
    enum { SECOND_MS = 1000 };
    switch (op->refusal) {
    case STORE_BUSY:
        api_error_set(err, API_SESSION_BUSY, NULL,
                      "the session \"%s\" is busy with a request to another server", id);
        err->retry_after_s = (int)((op->busy_ms + SECOND_MS - 1) / SECOND_MS);
        break;
    case STORE_CONFLICT:
        api_error_set(err, API_SESSION_CONFLICT, NULL, "the session \"%s\": %s", id,
                      op->error.message);
        break;
    case STORE_GONE:  /* of checkpoints */
    case STORE_QUOTA: /* session_quota.h */
    case STORE_AWAY:
        api_error_set(err, API_STORE_UNAVAILABLE, NULL,
                      op->what == STORE_COMMIT || op->what == STORE_DELETE
                          ? "the session \"%s\" may or may not have this change, read its position "
                            "before you repeat it: %s"
                          : "the session \"%s\" cannot be reached: %s",
                      id, op->error.message);
        break;
    case STORE_KEY_DONE:
        api_error_set(err, API_KEY_LOST, "Idempotency-Key",
                      "the request with this Idempotency-Key has been carried out, and another "
                      "server has its reply");
        break;
    case STORE_KEY_OTHER:
        api_error_set(err, API_KEY_MISMATCH, "Idempotency-Key",
                      "this Idempotency-Key was sent with another body");
        break;
    case STORE_ACCEPTED:
        api_error_set(err, API_STORE_FAILED, NULL, "the session \"%s\" is as it was: %s", id,
                      op->error.message);
        break;
    }
}

/* ---- questions ---- */

void session_question_leave(struct session_question *question)
{
    struct session_question **link = &question->sessions->questions;
    while (*link != question)
        link = &(*link)->next;
    *link = question->next;
    question->sessions->writing--;
}

void session_question_tell(struct session_question *question, const struct api_error *err)
{
    session_done *done = question->done;
    question->done = NULL;
    if (done)
        done(question->context, err);
}

void session_question_free(struct session_question *question)
{
    if (question->op.what == STORE_LIST)
        store_rows_free(question->list.rows, question->list.num_rows);
    if (question->op.what == STORE_TAKE || question->op.what == STORE_LOOK)
        store_rows_free(question->take.look.row, 1);
    free(question->key_name);
    free(question);
}

struct session_question *session_question_create(struct sessions *sessions, const char *owner,
                                                 const char *id,
                                                 void (*answered)(struct store_op *op))
{
    struct session_question *question = calloc(1, sizeof *question);
    if (!question)
        return NULL;
    question->sessions = sessions;
    snprintf(question->owner, sizeof question->owner, "%s", owner);
    snprintf(question->id, sizeof question->id, "%s", id);
    question->about = (struct store_session_op){
        .op.done = answered, .owner = question->owner, .id = question->id};
    question->next = sessions->questions;
    sessions->questions = question;
    sessions->writing++;
    return question;
}

static void on_given(struct store_op *op)
{
    struct session_question *question = (struct session_question *)op;
    session_question_leave(question);
    session_question_tell(question, NULL);
    session_question_free(question);
}

/* counted: what it is to count from now on, less than was promised; NULL: nothing was, or what the
 * store has of it is not known. */
static bool send_back(struct sessions *sessions, const char *owner, const char *id,
                      const struct store_lease *lease, const struct session *counted,
                      session_done *done, void *context)
{
    struct session_question *question = session_question_create(sessions, owner, id, on_given);
    if (!question)
        return false;
    question->about.lease = *lease;
    question->give.lasts = !done && !counted; /* a count would come too late */
    question->give.counted = counted != NULL;
    if (counted && !counted->fresh) {
        question->give.count = counted->count;
        question->give.turns_length = counted->turns_length;
    }
    question->done = done;
    question->context = context;
    store_give(sessions->options.store, &question->give);
    return true;
}

void session_leases_send_back(struct sessions *sessions, const char *owner, const char *id,
                              const struct store_lease *lease)
{
    send_back(sessions, owner, id, lease, NULL, NULL, NULL);
}

bool session_leases_give_then(struct session *session, session_done *done, void *context)
{
    const struct session_meta *meta = &session->meta;
    bool later =
        session->lease.holder[0] &&
        send_back(session->sessions, meta->owner, meta->id, &session->lease,
                  session->promised > 0 && !session->doubtful ? session : NULL, done, context);
    session->lease.holder[0] = 0;
    return later;
}

void session_leases_give(struct session *session)
{
    session_leases_give_then(session, NULL, NULL);
}

void session_leases_doubt(struct session *session)
{
    session->doubtful = true;
}

void session_leases_give_up(struct sessions *sessions, const struct api_error *err)
{
    struct session_question *question = sessions->questions;
    while (question) { /* who is told may ask anew, at the head of the list */
        struct session_question *next = question->next;
        session_question_tell(question, err);
        question = next;
    }
}
