/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of sessions in a store that other servers share, and questions to that store. For the
 * changes of sessions, and for session_ask.h, which takes the leases. */
#ifndef SERVER_STATES_SESSION_LEASES_H
#define SERVER_STATES_SESSION_LEASES_H

#include "server/states/session.h"
#include "server/store/session_op.h"

struct session_view;

/* Who is told of all sessions of an owner: of one after the other, then of the end, with an error
 * or NULL. */
struct session_lister {
    void (*each)(void *context, const struct session_view *view);
    session_done *end;
    void *context;
};

/* A question to the store, or a lease on its way back. */
struct session_question {
    union { /* the first member: of whichever kind it is */
        struct store_op op;
        struct store_session_op about;
        struct store_take take; /* look: take.look */
        struct store_give give;
        struct store_list list;
        struct store_reserve reserve;
    };
    struct sessions *sessions;
    struct session_question *next; /* in sessions->questions */
    char owner[STORE_OWNER_SIZE], id[SESSION_ID_SIZE];
    char kept[SESSION_ID_SIZE]; /* the copy that whoever asks needs, too; "": none */
    bool beside;                /* it was asked while a request here was at work on the session */
    int64_t version;            /* that the session had here by then, by its lease */
    session_done *done;         /* NULL: nobody waits any more */
    void *context;
    struct session_lister lister;
    struct store_reply key; /* a copy, and of its name */
    char *key_name;
};

/* Among sessions->questions. NULL: no memory. */
struct session_question *session_question_create(struct sessions *sessions, const char *owner,
                                                 const char *id,
                                                 void (*answered)(struct store_op *op));
/* It has been answered: it is not among them any more. */
void session_question_leave(struct session_question *question);
/* Tells who waits, if anybody does. */
void session_question_tell(struct session_question *question, const struct api_error *err);
void session_question_free(struct session_question *question);

/* Nobody is at work on the session any more, and nothing was changed: the lease goes back. */
void session_leases_give(struct session *session);
/* The same, and calls `done` once it is back, so that whoever is told then finds the session free
 * everywhere. False: there is none to give, and `done` is not called. */
bool session_leases_give_then(struct session *session, session_done *done, void *context);
/* The same of a lease that no session has. Without memory it is held until this server ends. */
void session_leases_send_back(struct sessions *sessions, const char *owner, const char *id,
                              const struct store_lease *lease);
/* What the store has of it is not known any more: it is asked for all of it next time. */
void session_leases_doubt(struct session *session);
/* Tells everybody who waits for an answer that it ends so. */
void session_leases_give_up(struct sessions *sessions, const struct api_error *err);
/* What the client is told of an operation that the store did not do. */
void session_leases_explain(const char *id, const struct store_op *op, struct api_error *err);

#endif
