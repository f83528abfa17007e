/* SPDX-License-Identifier: Apache-2.0 */
/* A request about states and sessions on its way through the threads: /v1/sessions, /v1/state.
 *
 * HTTP thread: state_task_create, state_task_start. A worker takes an imported file apart. Engine
 * thread: does what is asked, between two steps; what has to wait there (a state that is being read
 * from a file, a session that is being written to one) ends later. A worker makes the reply. */
#ifndef SERVER_ENDPOINTS_STATE_TASK_H
#define SERVER_ENDPOINTS_STATE_TASK_H

#include "server/service.h"
#include "server/states/sessions.h"
#include "server/ticket.h"

enum state_task_kind {
    STATE_TASK_LIST,   /* -> views */
    STATE_TASK_GET,    /* id -> view */
    STATE_TASK_DELETE, /* id */
    STATE_TASK_FORK,   /* id, target -> view (of target) */
    STATE_TASK_REWIND, /* id, position -> view */
    STATE_TASK_EXPORT, /* id -> tokens, image */
    STATE_TASK_IMPORT, /* id, body -> view */
    STATE_TASK_REPORT  /* -> report */
};

/* GET /v1/state */
struct state_report {
    struct state_tree_report tree;
    struct store_report store; /* if has_store */
    bool has_store;
    struct engine_memory memory;
    int64_t interval_tokens;
    int64_t sessions[4]; /* of all owners, by enum tier */
};

struct state_task {
    struct ticket ticket; /* its lock guards what follows until done */
    struct work work;
    struct service *service;
    enum state_task_kind kind;
    const char *owner; /* service_owner */
    char id[SESSION_ID_SIZE], target[SESSION_ID_SIZE];
    int64_t position;
    struct strbuf body;          /* of an import */
    int64_t reserved;            /* bytes, of the budget for bodies and replies */
    struct replay_entry *replay; /* where the reply is to be kept; NULL: nowhere */

    /* What the engine thread leaves for a worker, which makes the reply of it. */
    struct session_view view;
    struct session_view *views; /* [num_views] */
    size_t num_views, views_capacity;
    struct state_report report;
    int32_t *tokens; /* [num_tokens] */
    int64_t num_tokens, image_position;
    void *image;              /* [state_image_bytes(image_position)]; NULL: no state */
    struct state_save saving; /* of the image, when that is exported */

    struct api_error error; /* API_OK: it went well */
    int status;
    struct strbuf reply;
};

/* NULL: out of memory. The caller holds the first reference. */
struct state_task *state_task_create(struct service *service, enum state_task_kind kind, int key);
/* Hands it to its first thread, which holds a reference of its own. */
void state_task_start(struct state_task *task);

#endif
