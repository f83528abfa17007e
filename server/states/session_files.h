/* SPDX-License-Identifier: Apache-2.0 */
/* What a session is made of, which sessions.c shares with this file, and the files of sessions: a
 * change is on disk before it is answered; a use that changes nothing is noted behind. */
#ifndef SERVER_STATES_SESSION_FILES_H
#define SERVER_STATES_SESSION_FILES_H

#include "server/states/session_meta.h"
#include "server/states/sessions.h"

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
    bool in_file; /* perhaps not whole: it has been begun */
    bool unsaved; /* the last write failed: the file, if there is one, tells of an earlier time */
    double noted; /* meta.used as the file has it, or is about to */
    double since; /* clock.running_s of its last use */
    bool found;   /* and that was before this server: `since` is by the wall clock at its start */

    /* Of the change that is being written. */
    struct store_op op;
    char text[SESSION_META_SIZE];
    session_done *done; /* NULL: nobody waits */
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
    bool failing;      /* since a write failed, until all is written: each said in the log once */
};

struct session_clock session_clock(const struct sessions *sessions); /* now */
/* Takes it out of the table and frees it. */
void session_leave(struct session *session);

/* The same, and what is left of its own branch out of the tree. */
void session_forget(struct session *session);

/* The session is free again: calls `done` with err. */
void session_end_change(struct session *session, const struct error *err);
/* Writes the session as it is now, then ends the change. */
void session_save(struct session *session, session_done *done, void *context);
/* Removes its file, if it has one, then the session; a file that cannot be removed keeps it. */
void session_remove(struct session *session, session_done *done, void *context);
/* It is used now, which reaches the disk with its next change. */
void session_use(struct session *session);
/* The same where no change is to come: that reaches the disk by itself, if it is behind by much. */
void session_use_only(struct session *session);
/* Takes note of how a write of it ended. */
void session_set_unsaved(struct session *session, bool unsaved);
/* Writes the sessions that are unsaved: all at once, or one after the other until one fails; the
 * next time goes on behind that one. */
void session_files_retry(struct sessions *sessions, bool all);
/* Removes the file of a session that another file tells more of. */
void session_file_discard(struct sessions *sessions, const char *name);

#endif
