/* SPDX-License-Identifier: Apache-2.0 */
/* What a store keeps: sessions, checkpoints and replies; what all operations on them have, what a
 * scan finds, what a report says. Shared by the queue (store.h) and the backends
 * (store_backend.h). */
#ifndef SERVER_STORE_STORE_OP_H
#define SERVER_STORE_STORE_OP_H

#include "engine/state_save.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A session has tokens and META, but no state. A checkpoint has tokens and a state, and is a state
 * file (engine/state_file.h). A reply is what a request with an Idempotency-Key got. Sessions and
 * replies are in a database: what is asked of them at about the same time shares a commit. */
enum store_kind { STORE_SESSION, STORE_CHECKPOINT, STORE_REPLY, NUM_STORE_KINDS };
/* What a change writes to the database's log besides what it adds: its row, its last part, and
 * pages that point to them. And what is left of the disk for deletions. */
enum { STORE_LOG_BYTES = 5 * 4096, STORE_RESERVE_BYTES = 64 * 1024 };
enum { STORE_NAME_SIZE = 33, STORE_OWNER_SIZE = 33, STORE_ID_SIZE = 129, STORE_BODY_BYTES = 16 };

struct store_reply;

/* A session or a checkpoint that was there when the store opened. Header, META and tokens have been
 * checked; a state is checked when it is read. All pointers are borrowed for the call. */
struct store_found {
    enum store_kind kind;
    const char *name;
    const char *meta; /* [meta_length] */
    size_t meta_length;
    const int32_t *tokens; /* [count] */
    int64_t count, position;
    const char *turns;    /* session: [turns_length] at least, of its chat (chat_turns.h) */
    int64_t turns_length; /* with zeros at the end: META says how many they are */
    bool logits;
    int64_t bytes;       /* of the file; of a session 0 */
    int64_t modified_ns; /* since 1970 */
};

/* Files in PEM, for a store that is reached by TLS. NULL: the system's CAs; no certificate of ours.
 */
struct store_tls {
    const char *ca, *certificate, *key;
};

struct store_options {
    const char *location;        /* a directory, or what another backend takes (store_backend.h) */
    struct store_tls tls;        /* to a store that servers share */
    double lease_s;              /* of a session, where servers share the store */
    int replicas;                /* store_place.replicas */
    int64_t quota_bytes;         /* the same: of an owner's sessions; 0: any */
    double ttl_s;                /* the same: unused for so long, it is deleted; 0: never */
    double response_ttl_s;       /* of a kept response */
    int64_t budget_bytes;        /* --disk-state */
    bool keeps_files;            /* of a directory: whatever checkpoints it has stay there */
    int64_t database_bytes;      /* of memory, that SQLite should do with; 0: any */
    void (*wake)(void *context); /* from the store's thread: call store_poll */
    void *wake_context;
    /* The store is not what it is to be yet, and the opening waits: what it is, in words that stay.
     * NULL: it does not wait. */
    void (*waits)(void *context, const char *words);
    void *waits_context;
    void (*found)(void *context, const struct store_found *file);
    void (*reply)(void *context, const struct store_reply *reply); /* NULL: none is wanted */
    void *found_context;
};

/* Why a store that servers share did not do it, where that is no failure. */
enum store_refusal {
    STORE_ACCEPTED,
    STORE_BUSY,      /* another server has the lease, or is at work on the request */
    STORE_CONFLICT,  /* another server has changed it, or it is an older copy */
    STORE_AWAY,      /* the store cannot be reached: a write may have been made */
    STORE_KEY_DONE,  /* the request with this Idempotency-Key has made its turn */
    STORE_KEY_OTHER, /* the same, and its body was another */
    STORE_QUOTA,     /* the owner's sessions would take more than they may */
    STORE_GONE       /* a checkpoint: the store has none of that name, not yet or no longer */
};

/* What an operation is; each has a struct of its own, in session_op.h or blob_op.h. */
enum store_what {
    STORE_NOTHING, /* none was begun */
    STORE_TAKE,
    STORE_LOOK,
    STORE_COMMIT,
    STORE_DELETE,
    STORE_USE,
    STORE_GIVE,
    STORE_LIST,
    STORE_RESERVE,
    STORE_CLAIM,
    STORE_KEEP,
    STORE_DROP,
    STORE_PUT,
    STORE_GET,
    STORE_FIND,
    STORE_REMOVE,
    STORE_TOUCH
};

/* What all operations have: the first member of each. The caller owns it, and gets it back when
 * `done` is called. */
struct store_op {
    void (*done)(struct store_op *op); /* engine thread; may free op */
    struct error error;                /* how it ended: code ERROR_NONE when it went well */
    enum store_refusal refusal;        /* with an error */
    int64_t busy_ms; /* STORE_BUSY: what is left of the other's lease; 0: not known */
    int64_t bytes;   /* what it adds or, a removal, frees, as far as known; the store's else */
    /* The store's. */
    enum store_kind kind;
    enum store_what what;
    struct store_op *next;
    double begun; /* clock_seconds() */
    double until; /* the same: how long it is sent again while its end is not known */
};

/* How operations ended. */
enum store_end {
    STORE_END_DONE,
    STORE_END_BUSY,
    STORE_END_CONFLICT,
    STORE_END_AWAY,
    STORE_END_FAILED,
    NUM_STORE_ENDS
};

/* What is counted of a kind of what is kept: since the start, but for those that wait. */
struct store_counts {
    int64_t ended[NUM_STORE_ENDS], waiting;
    double seconds; /* from when they were begun until they ended */
};

/* Checkpoints of prompts that servers share, since the start. */
struct store_prefixes {
    int64_t found, missing; /* prompts that were asked for */
    int64_t written, read, bytes_written, bytes_read;
};

struct store_report {
    /* Of all files, what was set aside and other models' too. The database counts as long as it
     * will be when its pages have left its log. */
    int64_t bytes, budget_bytes;
    int64_t pending; /* what operations under way will add, less what they will free */
    int64_t sessions, checkpoint_files; /* of this model, that are whole */
    int64_t failures;                   /* operations that failed, since the start */
    bool failing;      /* the disk, or SQLite, refused the last commit of sessions */
    bool full;         /* the last commit found no room, on the disk or in the budget */
    int64_t disk_free; /* where the files lie, as of the last write; INT64_MAX: not known */
    struct store_counts counts[NUM_STORE_KINDS]; /* by enum store_kind */
    int64_t states_written, states_read,
        states_gone; /* gone: dropped or damaged when it was wanted */
    struct store_prefixes prefixes;
    /* Where servers share the store. */
    bool away;
    const char *why;             /* away: what it is instead, in words; static */
    int64_t returns;             /* how often it was back */
    int64_t leases, leases_lost; /* held now; lost since the start */
    int64_t older_copies;        /* sessions that were found older than this server had seen them */
};

#endif
