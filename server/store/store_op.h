/* SPDX-License-Identifier: Apache-2.0 */
/* What a store keeps, and what it is asked to do: files of two kinds, operations on one file, what
 * a scan finds, what a report says. Shared by the queue (store.h) and the backends
 * (store_backend.h). */
#ifndef SERVER_STORE_STORE_OP_H
#define SERVER_STORE_STORE_OP_H

#include "engine/state_save.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A session has tokens and META, but no state. A checkpoint has tokens and a state. Both are state
 * files (engine/state_file.h). */
enum store_kind { STORE_SESSION, STORE_CHECKPOINT };
enum { STORE_NAME_SIZE = 33, STORE_OWNER_SIZE = 33 };

/* A file that was there when the store opened. Its header, META and tokens have been checked; its
 * state is checked when it is read. All pointers are borrowed for the call. */
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
    const char *location;        /* a directory, or what another backend takes (store_backend.h) */
    int64_t budget_bytes;        /* --disk-state */
    void (*wake)(void *context); /* from the store's thread: call store_poll */
    void *wake_context;
    void (*found)(void *context, const struct store_found *file);
    void *found_context;
};

/* An operation on one file. The caller owns it, and gets it back when `done` is called. */
struct store_op {
    void (*done)(struct store_op *op); /* engine thread; may free op */
    struct error error;                /* how it ended: code ERROR_NONE when it went well */
    struct store_op *next;             /* the store's */
    enum store_kind kind;
    char name[STORE_NAME_SIZE];
    bool durable; /* a write or removal survives a power cut once it is done */
    /* Write: borrowed until done. image NULL: no state (position 0). */
    const char *meta;
    size_t meta_length;
    const int32_t *tokens; /* [count] */
    int64_t count, position;
    const void *image;        /* [state_image_bytes(position)] */
    struct state_save saving; /* of the image: the store waits for it before it writes */
    const float *logits;      /* [vocab_size], or NULL */
    /* Read: buffers of the caller, of the same sizes. logits_out NULL: not wanted. */
    void *image_out;
    float *logits_out;
    int64_t bytes;       /* removal: of the file, as far as known; write: the store sets it */
    int64_t modified_ns; /* touch: since 1970; 0: now */
    int what;            /* the store's */
};

struct store_report {
    int64_t bytes, budget_bytes; /* of all files, rejected ones and other models' sessions too */
    int64_t pending;             /* what operations under way will add, less what they will free */
    int64_t session_files, checkpoint_files; /* that are whole */
    int64_t failures;                        /* operations that failed, since the start */
    bool full;                               /* the last write of a session found no room */
    int64_t disk_free; /* where the files lie, as of the last write; INT64_MAX: not known */
};

#endif
