/* SPDX-License-Identifier: Apache-2.0 */
/* What a session is made of, and the table of all sessions. For the files of sessions and for
 * sessions.c; everybody else sees sessions.h. */
#ifndef SERVER_STATES_SESSION_H
#define SERVER_STATES_SESSION_H

#include "server/states/session_meta.h"
#include "server/states/session_options.h"
#include "server/states/state_tree.h"

struct session {
    struct sessions *sessions;
    struct session_meta meta;
    struct space *space;
    int32_t *tokens; /* [count] */
    int64_t count;
    int64_t promised; /* tokens that it may have after the request at work; 0: none is */
    bool held;        /* the tree holds its tokens */
    bool busy;        /* a request or a change is at work on it */
    bool fresh;       /* being made: nobody has been told of it */
    char file[STORE_NAME_SIZE];
    bool in_file; /* its file has been begun, and may not be whole */
    bool unsaved; /* the last write failed: the file, if there is one, tells of an earlier time */
    double noted; /* meta.used as the file has it, or will have it soon */
    double since; /* clock.running_s of its last use */
    bool found;   /* an earlier server used it last: `since` goes by the wall clock at our start */

    /* Of the change that is being written. */
    struct store_op op;
    char text[SESSION_META_SIZE];
    void (*done)(void *context, const struct error *err); /* NULL: nobody waits */
    void *context;
};

struct sessions {
    struct sessions_options options;
    struct session **list; /* [count], by owner, then id */
    size_t count, capacity;
    double opened;     /* clock.running_s of the start */
    size_t writing;    /* operations of the store under way */
    size_t unsaved;    /* sessions that are */
    size_t retry_next; /* where in the list to look for the next of them */
    double retry_at;   /* clock.running_s */
    double next_due;   /* clock.running_s when the first may have lived its time; 0: unknown */
    bool failing;      /* from a failed write until all is written: the log says each once */
};

struct session_clock session_clock(const struct sessions *sessions); /* now */

/* Where in the list the session is, or would be put. */
size_t session_place(const struct sessions *sessions, const char *owner, const char *id,
                     bool *found);
/* NULL: there is none. */
struct session *session_lookup(const struct sessions *sessions, const char *owner, const char *id);
/* Adds a fresh session without tokens to the table, which has none of that name. salt: of its
 * space. NULL: no memory. */
struct session *session_enter(struct sessions *sessions, const char *owner, const char *id,
                              const char *salt);
/* Takes it out of the table and frees it. */
void session_leave(struct session *session);
/* The same, and drops what is left of its own branch of the tree. */
void session_forget(struct session *session);

/* Gives it other tokens (malloc'd, taken over), or fewer of its own. */
void session_set_tokens(struct session *session, int32_t *tokens, int64_t count);
/* Notes in memory that it is used now. */
void session_use(struct session *session);
/* Notes how a write of it ended. */
void session_set_unsaved(struct session *session, bool unsaved);

/* A change begins: the session is busy until it ends. done NULL: nobody waits. */
void session_begin_change(struct session *session,
                          void (*done)(void *context, const struct error *err), void *context);
/* The session is free again: calls `done` with err. */
void session_end_change(struct session *session, const struct error *err);

#endif
