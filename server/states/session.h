/* SPDX-License-Identifier: Apache-2.0 */
/* What a session is made of, and the table of all sessions. For the changes of sessions and for
 * sessions.c; everybody else sees sessions.h. */
#ifndef SERVER_STATES_SESSION_H
#define SERVER_STATES_SESSION_H

#include "api/errors.h"
#include "server/states/session_meta.h"
#include "server/states/session_options.h"
#include "server/states/state_tree.h"
#include "server/store/session_op.h"

/* Memory of a token: it is in its session and in the tree. */
enum { SESSION_TOKEN_BYTES = 2 * sizeof(int32_t) };

/* That a request with an Idempotency-Key has made a turn, on its way to the store. */
struct session_claim {
    struct session_claim *next; /* of another of the session's turns; as reply.next */
    struct store_reply reply;
    char name[]; /* [reply.name_length] */
};

/* What a session is to hold. */
struct session_content {
    int32_t *tokens; /* [count], malloc'd; NULL: the first `count` of its own */
    int64_t count;
    char
        *turns; /* [turns_length], malloc'd; NULL: those of its own that end at `count` or before */
    int64_t turns_length;
};

struct session {
    struct sessions *sessions;
    struct session_meta meta;
    struct space *space;
    int32_t *tokens; /* [count] */
    int64_t count;
    char *turns; /* [turns_length]: of its chat (chat_turns.h) */
    int64_t turns_length;
    int64_t promised;   /* tokens that it may have after the request at work; 0: none is */
    int64_t more_turns; /* and so many more bytes of turns */
    int64_t growth; /* of the tokens, more than it had when that began; and its turns may, counted
                       as tokens */
    bool held;      /* the tree holds its tokens */
    bool busy;      /* a request or a change is at work on it */
    bool fresh;     /* being made: nobody has been told of it */
    bool leaves;    /* a response: it is being removed, to make room */
    /* In the store. */
    char name[STORE_NAME_SIZE];     /* of its row */
    bool stored;                    /* its row has been begun, and may not be whole */
    int64_t kept;                   /* so many of its tokens are there as they are */
    int64_t most;                   /* so many tokens, of it as it is or was, may be there */
    int64_t turns_kept, turns_most; /* the same of the bytes of its turns */
    double noted;                   /* meta.used as it is there, or will be soon */
    struct session_change *change;  /* that somebody waits for; the session is busy */
    /* --session-durability memory. */
    bool unsaved;      /* it is not in the store as it is */
    bool writing;      /* it is being written as it was */
    bool changed;      /* since then */
    int64_t low;       /* so many of the tokens that are being written are still its own */
    int64_t turns_low; /* and of the bytes of turns */
    struct session_claim *claims; /* of turns that are not in the store */
    /* In a store that servers share (session_leases.h). */
    struct store_lease lease; /* of the request at work */
    bool doubtful;            /* it may be another than the store has */
    int64_t state;            /* position of its deepest state there, as far as known; 0: none */

    double since; /* clock.running_s of its last use */
    bool found;   /* an earlier server used it last: `since` goes by the wall clock at our start */
};

struct sessions {
    int64_t tokens;                  /* of all of them */
    int64_t turns;                   /* bytes of all of their turns */
    int64_t growth;                  /* of all of them, together */
    int64_t left_tokens, left_turns; /* of these, of those that leave */
    struct sessions_options options;
    struct session **list; /* [count], by owner, then id */
    size_t count, capacity;
    double opened;                      /* clock.running_s of the start */
    size_t writing;                     /* operations of the store under way */
    size_t changes;                     /* of these, changes that somebody waits for, or waited */
    size_t unsaved;                     /* sessions that are */
    size_t retry_next;                  /* where in the list to look for the next of them */
    double retry_at;                    /* clock.running_s */
    struct session_change *leaving;     /* made, but for files that are still to go */
    struct session_question *questions; /* that the store has not answered (session_leases.h) */
    double next_due; /* clock.running_s when the first may have lived its time; 0: unknown */
    bool failing;    /* the last write failed: the log says so once */
};

struct session_clock session_clock(const struct sessions *sessions); /* now */

/* Whether the store has another of it, which others may change (session_ask.h). */
bool session_is_copy(const struct session *session);
/* Where in the list the session is, or would be put. */
size_t session_place(const struct sessions *sessions, const char *owner, const char *id,
                     bool *found);
/* Whether that is the name of a kept response. */
bool session_is_response(const char *id);
/* The seconds that a session of that name lives unused; 0: for ever. */
double session_ttl(const struct sessions *sessions, const char *id);
/* NULL: there is none. */
struct session *session_lookup(const struct sessions *sessions, const char *owner, const char *id);
/* Adds a fresh session without tokens to the table, which has none of that name. salt: of its
 * space. NULL: no memory. */
struct session *session_enter(struct sessions *sessions, const char *owner, const char *id,
                              const char *salt);
/* The request at work may leave it with so many tokens, and so many more bytes of turns; 0, 0: none
 * is at work. */
void session_promise(struct session *session, int64_t tokens, int64_t turns);
/* It is being removed, and no longer counts; or it is not after all. */
void session_set_leaves(struct session *session, bool leaves);
/* Takes it out of the table and frees it. */
void session_leave(struct session *session);
/* The same, and drops what is left of its own branch of the tree. */
void session_forget(struct session *session);

/* Bytes of the states of so many tokens, as quotas count them. */
int64_t session_state_bytes(const struct sessions *sessions, int64_t tokens);

/* Gives it other tokens (malloc'd, taken over), or fewer of its own. Returns those that it had, if
 * they are others: the caller frees them. */
int32_t *session_set_tokens(struct session *session, int32_t *tokens, int64_t count);
/* The same of its turns, of which nothing is returned. */
void session_set_turns(struct session *session, char *turns, int64_t length);
/* Frees the memory behind its tokens and turns, which nobody counts. */
void session_shrink(struct session *session);
/* Notes in memory that it is used now. */
void session_use(struct session *session);
void session_claims_free(struct session_claim *first);
/* Whether the store does not have it as it is. */
void session_set_unsaved(struct session *session, bool unsaved);

/* Called when a change has ended. err: why it was not made; NULL: it was. */
typedef void session_done(void *context, const struct api_error *err);

#endif
