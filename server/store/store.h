/* SPDX-License-Identifier: Apache-2.0 */
/* The files of --state-dir, written, read and removed by a thread of their own.
 *
 *   DIR/lock                              held (flock) by the one server that uses the directory
 *   DIR/secret                            16 random bytes, mode 0600: see store_owner_tag
 *   DIR/<model fingerprint>/sessions/<name>.session      tokens and META, no state
 *   DIR/<model fingerprint>/checkpoints/<name>.state     tokens and a state
 *   ... *.tmp (removed at start), *.rejected (what was corrupt, torn or foreign: kept, not read)
 *
 * The budget is the directory's: what other models' sessions take is lacking here, and their
 * checkpoints go where room is lacking (store_others.h).
 *
 * Both kinds are state files (engine/state_file.h). A file comes into being whole: temporary name,
 * write, fsync (when durable), rename, fsync of the directory. All functions are for the engine
 * thread; the I/O thread only runs operations, whose `done` is called by store_poll. */
#ifndef SERVER_STORE_STORE_H
#define SERVER_STORE_STORE_H

#include "engine/state_save.h"

enum store_kind { STORE_SESSION, STORE_CHECKPOINT };
enum { STORE_NAME_SIZE = 33, STORE_OWNER_SIZE = 33 };

struct store;

/* A file that was there at the start; its header, META and tokens have been checked, its state
 * will be when it is read. Everything is borrowed for the call. */
struct store_found {
    enum store_kind kind;
    const char *name;
    const char *meta; /* [meta_length] */
    size_t meta_length;
    const int32_t *tokens; /* [count] */
    int64_t count, position;
    bool logits;
    int64_t bytes;       /* of the file */
    int64_t modified_ns; /* since 1970 */
};

struct store_options {
    const char *directory;
    int64_t budget_bytes;        /* --disk-state */
    void (*wake)(void *context); /* from the I/O thread: store_poll has something to do */
    void *wake_context;
    void (*found)(void *context, const struct store_found *file);
    void *found_context;
};

/* Creates or opens the directory, takes its lock, scans it. Errors name the path. *out is set
 * before the first file is told of, so that `found` may begin operations; and it is the caller's to
 * close, on an error too: not NULL then once `found` may have been called. */
int store_open(struct store **out, struct engine *engine, const struct store_options *options,
               struct error *err);
/* Finishes every operation that was begun, without calling `done`. NULL is allowed. */
void store_close(struct store *store);

/* Who a file belongs to, as it is written into files: a keyed hash of the API key ("": none), in
 * hex; without DIR/secret nobody can test a guessed key against it. */
void store_owner_tag(const struct store *store, const char *api_key, char tag[STORE_OWNER_SIZE]);

/* An operation, owned by the caller until `done` has been called. */
struct store_op {
    void (*done)(struct store_op *op); /* engine thread; may free op */
    struct error error;                /* of the operation: code OK when it went well */
    struct store_op *next;             /* the store's */
    enum store_kind kind;
    char name[STORE_NAME_SIZE];
    bool durable;
    /* write: borrowed until done. image NULL: no state (position 0). */
    const char *meta;
    size_t meta_length;
    const int32_t *tokens; /* [count] */
    int64_t count, position;
    const void *image;        /* [state_image_bytes(position)] */
    struct state_save saving; /* of the image: waited for before it is written */
    const float *logits;      /* [vocab_size], or NULL */
    /* read: the caller's buffers, of the same sizes; logits NULL: not wanted */
    void *image_out;
    float *logits_out;
    int64_t bytes; /* remove: what goes with the file, as far as is known; write: the store's */
    int64_t modified_ns; /* touch: since 1970; 0: now */
    int what;            /* the store's */
};

/* What a request may wait for (reads, and all of sessions) goes before the writing of checkpoints;
 * operations on one file run in the order in which they were begun. A file that is to be removed
 * may be gone already.
 *
 * Over the budget or on a full disk: `error` ERROR_NO_MEMORY, nothing of the file, and for a
 * session the report says full. While a file takes the place of an older one both count. */
void store_write(struct store *store, struct store_op *op);
/* Checks everything (tokens only when op->tokens is not NULL); a file that is not what it was is
 * set aside as *.rejected. */
void store_read(struct store *store, struct store_op *op);
void store_remove(struct store *store, struct store_op *op);
/* Sets the file's time (store_found.modified_ns). One that is not there is none to be. */
void store_touch(struct store *store, struct store_op *op);
/* Calls `done` of what has ended. Whether operations are still under way. */
bool store_poll(struct store *store);
/* Waits until all that was begun has ended and been told of. */
void store_finish(struct store *store);

struct store_report {
    int64_t bytes, budget_bytes; /* of all files, rejected ones and other models' sessions too */
    int64_t pending;             /* what is begun will add, less what it will free */
    int64_t session_files, checkpoint_files; /* that are whole */
    int64_t failures;                        /* operations that failed, since the start */
    bool full;                               /* the last write of a session found no room */
    int64_t disk_free; /* of the file system, by the last write; INT64_MAX: not known */
};
void store_report(const struct store *store, struct store_report *report);
/* Bytes that a write would take, for the caller's own decisions on what to remove. */
int64_t store_file_bytes(const struct store *store, int64_t position, int64_t count, bool state,
                         bool logits, size_t meta_length);

#endif
