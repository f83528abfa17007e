/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session_files.h"

#include "server/log.h"
#include "server/store/store.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A use is noted when the file is behind by so much; with a short time to live, by this part of it.
 */
enum { MOST_BEHIND_SECONDS = 60, TTL_PARTS = 8 };

static struct session *session_of(struct store_op *op)
{
    return (struct session *)((char *)op - offsetof(struct session, op));
}

/* Changes. */

/* what: becomes of a session whose operation failed. */
static void tell_failure(struct sessions *sessions, const char *what, const struct error *err)
{
    if (err->code == ERROR_NONE) {
        if (sessions->failing && !sessions->unsaved) {
            log_message(LOG_LEVEL_INFO, "sessions are written to disk again");
            sessions->failing = false;
        }
        return;
    }
    if (!sessions->failing)
        log_message(LOG_LEVEL_ERROR, "a session cannot be %s: %s", what, err->message);
    sessions->failing = true;
}

static const char written[] = "written and goes on in memory only";
static const char removed[] = "removed and stays";

static void on_written(struct store_op *op)
{
    struct session *session = session_of(op);
    session->sessions->writing--;
    session_set_unsaved(session, op->error.code != ERROR_NONE);
    tell_failure(session->sessions, written, &op->error);
    session_end_change(session, NULL);
}

/* Begins a write of the session as it is now. text [SESSION_META_SIZE] and tokens stay until its
 * end. */
static void begin_write(struct session *session, struct store_op *op, char *text,
                        const int32_t *tokens, void (*done)(struct store_op *op))
{
    struct sessions *sessions = session->sessions;
    struct store *store = sessions->options.store;
    *op = (struct store_op){.done = done,
                            .kind = STORE_SESSION,
                            .durable = true,
                            .meta = text,
                            .meta_length = session_meta_encode(&session->meta, text),
                            .tokens = tokens,
                            .count = session->count};
    memcpy(op->name, session->file, sizeof session->file);
    session->in_file = true;
    session->noted = session->meta.used;
    sessions->writing++;
    state_tree_disk_room(sessions->options.tree,
                         store_file_bytes(store, 0, session->count, false, false, op->meta_length));
    store_write(store, op);
}

void session_files_save(struct session *session)
{
    if (session->sessions->options.store)
        begin_write(session, &session->op, session->text, session->tokens, on_written);
    else
        session_end_change(session, NULL);
}

static void finish_removal(struct session *session)
{
    void (*done)(void *, const struct error *) = session->done;
    void *context = session->context;
    session_forget(session);
    if (done)
        done(context, NULL);
}

static void on_removed(struct store_op *op)
{
    struct session *session = session_of(op);
    struct sessions *sessions = session->sessions;
    sessions->writing--;
    if (op->error.code == ERROR_NONE) {
        finish_removal(session);
        return;
    }
    /* The file may be gone all the same, or go with a power failure: it is written again. */
    session_set_unsaved(session, true);
    tell_failure(sessions, removed, &op->error);
    session_end_change(session, &op->error);
}

void session_files_remove(struct session *session)
{
    struct sessions *sessions = session->sessions;
    if (!session->in_file) {
        finish_removal(session);
        return;
    }
    session->op = (struct store_op){.done = on_removed, .kind = STORE_SESSION, .durable = true};
    memcpy(session->op.name, session->file, sizeof session->file);
    sessions->writing++;
    store_remove(sessions->options.store, &session->op);
}

/* What nobody waits for. */

/* A write of a session as it was, that need not be free meanwhile. */
struct retry {
    struct store_op op; /* the first member */
    struct sessions *sessions;
    struct session_meta meta;
    char text[SESSION_META_SIZE];
    int32_t tokens[];
};

static void on_retried(struct store_op *op)
{
    struct retry *retry = (struct retry *)op;
    struct sessions *sessions = retry->sessions;
    bool failed = op->error.code != ERROR_NONE;
    /* It may be gone, and another of its name there. */
    struct session *session = session_lookup(sessions, retry->meta.owner, retry->meta.id);
    if (failed && session && !session->fresh && strcmp(session->file, op->name) == 0)
        session_set_unsaved(session, true);
    sessions->writing--;
    tell_failure(sessions, written, &op->error);
    free(retry);
    if (!failed)
        session_files_retry(sessions, false);
}

/* Without memory it is left for later. */
static void begin_retry(struct session *session)
{
    size_t bytes = (size_t)session->count * sizeof *session->tokens;
    struct retry *retry = malloc(sizeof *retry + bytes);
    if (!retry)
        return;
    retry->sessions = session->sessions;
    retry->meta = session->meta;
    if (bytes)
        memcpy(retry->tokens, session->tokens, bytes);
    session_set_unsaved(session, false);
    begin_write(session, &retry->op, retry->text, retry->tokens, on_retried);
}

void session_files_retry(struct sessions *sessions, bool all)
{
    bool begun = false;
    size_t count = sessions->count;
    for (size_t i = 0; sessions->unsaved && (all || !begun) && i < count; i++) {
        size_t at = sessions->retry_next++ % count;
        struct session *session = sessions->list[at];
        if (!session->unsaved || session->busy)
            continue;
        begin_retry(session);
        begun = true;
    }
}

struct errand {
    struct store_op op; /* the first member */
    struct sessions *sessions;
};

static void on_errand(struct store_op *op)
{
    struct errand *errand = (struct errand *)op;
    if (op->error.code != ERROR_NONE)
        log_message(LOG_LEVEL_WARN, "the file of a session: %s", op->error.message);
    errand->sessions->writing--;
    free(errand);
}

/* Without memory it is left undone. */
static void send(struct sessions *sessions, const char *name,
                 void (*begin)(struct store *store, struct store_op *op))
{
    struct errand *errand = calloc(1, sizeof *errand);
    if (!errand)
        return;
    errand->sessions = sessions;
    errand->op.done = on_errand;
    errand->op.kind = STORE_SESSION;
    snprintf(errand->op.name, sizeof errand->op.name, "%s", name);
    sessions->writing++;
    begin(sessions->options.store, &errand->op);
}

void session_files_use(struct session *session)
{
    const struct sessions_options *options = &session->sessions->options;
    double behind = MOST_BEHIND_SECONDS;
    session_use(session);
    if (options->ttl_s > 0 && options->ttl_s < TTL_PARTS * behind)
        behind = options->ttl_s / TTL_PARTS;
    if (!session->in_file || session->meta.used - session->noted < behind)
        return;
    session->noted = session->meta.used;
    send(session->sessions, session->file, store_touch);
}

void session_files_discard(struct sessions *sessions, const char *name)
{
    send(sessions, name, store_remove);
}
