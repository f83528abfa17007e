/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a request about sessions and their states from thread to thread. Its kind says what is done
 * in each of these steps.
 *
 *   read      HTTP thread    what the kind takes from the request
 *   prepare   worker         what takes long before the engine thread can do it
 *   perform   engine thread  what is asked, between two steps of the engine
 *   encode    worker         the reply */
#ifndef SERVER_ENDPOINTS_SESSION_TASK_H
#define SERVER_ENDPOINTS_SESSION_TASK_H

#include "server/http/http.h"
#include "server/states/session_ask.h"
#include "server/task.h"

struct replay_entry;
struct session_task;

enum session_step {
    SESSION_STEP_ENDED, /* well, or with an error */
    SESSION_STEP_LATER, /* session_task_finish will be called: a file is being written */
    SESSION_STEP_AGAIN  /* perform is called again: a file is being read */
};

struct session_task_kind {
    size_t size;              /* of its struct, which begins with a session_task */
    int status;               /* of a reply that went well */
    const char *content_type; /* of that; NULL: it is empty */
    bool names_session;       /* in its path */
    bool names_response;      /* the same of a kept response */
    bool keyed;               /* takes an Idempotency-Key */
    /* Where servers share the sessions: what it needs of that of the path. */
    enum session_need need;
    const char *(*makes)(const struct session_task *task); /* one that it makes; NULL: none */
    /* NULL: nothing is to be done. An error is in task.error then, or -1 with *err. */
    int (*read)(struct session_task *task, struct http_request *request, struct api_error *err);
    void (*prepare)(struct session_task *task);
    enum session_step (*perform)(struct session_task *task);
    void (*encode)(struct session_task *task);
    /* Replies otherwise than with what was encoded. False: it does not; NULL: never. */
    bool (*answer)(struct session_task *task, struct http_request *request);
    void (*destroy)(struct session_task *task);
};

struct session_task {
    struct task task;
    const struct session_task_kind *kind;
    const char *owner;           /* service_owner */
    char id[SESSION_ID_SIZE];    /* of the path */
    bool asked;                  /* the store for its sessions, which are here */
    bool again;                  /* it has been performed, and was to wait */
    struct replay_entry *replay; /* where the reply is to be kept; NULL: nowhere */
};

/* The whole of such a request's handler. */
void session_task_handle(struct http_request *request, const struct session_task_kind *kind);

/* Engine thread: what was to be done later has ended. */
void session_task_finish(struct session_task *task);
/* As `perform`: removes what the task names. */
enum session_step session_task_remove(struct session_task *task);

int session_task_out_of_memory(struct session_task *task);
/* Takes so much of the budget for bodies and replies, or sets the task's error. */
int session_task_reserve(struct session_task *task, size_t bytes);

#endif
