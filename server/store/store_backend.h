/* SPDX-License-Identifier: Apache-2.0 */
/* What a place that keeps sessions and checkpoints can do: two tables of functions, `sessions` and
 * `blobs`, which the queue (store.h) calls. There are the directory (store_directory.h), and Redis
 * or Valkey (store_redis.h), which servers share.
 *
 * To add a place, write its .c with a `struct store_place` of its own and its tables, its .h, and
 * add a line to the list in store_backends.c.
 *
 * A function that can fail sets the error of its operation, or returns -1 with one sentence in
 * *err. The store calls `open` and `scan` from the thread that opens it, `renew` from a thread that
 * does nothing else, and the rest from its own thread, one at a time. A place counts in the
 * accounts (store_accounts.h) what it holds, and need not know what is in a file (store_codec.h).
 */
#ifndef SERVER_STORE_STORE_BACKEND_H
#define SERVER_STORE_STORE_BACKEND_H

#include "lib/base/siphash.h"
#include "server/store/blob_op.h"
#include "server/store/session_op.h"
#include "server/store/store_accounts.h"
#include "server/store/store_upkeep.h"

struct engine;
struct store_place; /* an open one; each backend defines its own */

/* A lease that is held: of a session, or of a request with an Idempotency-Key. */
struct store_held {
    struct store_held *next;
    enum store_kind kind;
    char owner[STORE_OWNER_SIZE], id[STORE_ID_SIZE]; /* of the session */
    char holder[STORE_NAME_SIZE];
    bool unsure; /* the store may never have given it */
    bool lost;   /* renew sets it: another may have it */
    size_t request_length;
    char request[]; /* [request_length]: its name */
};

/* Sessions, and replies to requests with an Idempotency-Key. Each function begins its operation
 * (store_batch_add), and `end` ends all that were begun, in as few commits and round trips as may
 * be. What has ended without an error is kept for good, or gone. */
struct store_sessions {
    /* Of places that servers share; NULL in one that is this server's alone: there the lease is
     * its own for ever, and what it knows is all that there is. A lease has one holder and a fence
     * that is higher than all before, and ends by itself after store_options.lease_s unless it is
     * renewed; nobody else can commit or delete meanwhile. A refusal says why not. */
    void (*take)(struct store_place *, struct store_take *);
    void (*look)(struct store_place *, struct store_look *);
    void (*give)(struct store_place *, struct store_give *);
    void (*list)(struct store_place *, struct store_list *);
    void (*reserve)(struct store_place *, struct store_reserve *);
    void (*claim)(struct store_place *, struct store_claim *);
    /* Of all [first, by `next`]. Returns how many could not be renewed, with the error of one. */
    int64_t (*renew)(struct store_place *, struct store_held *first, struct error *);

    /* Of all. A change is made as a whole, or not at all. */
    void (*commit)(struct store_place *, struct store_commit *);
    void (*remove)(struct store_place *, struct store_delete *);
    void (*use)(struct store_place *, struct store_use *); /* NULL where others have a clock */
    void (*keep)(struct store_place *, struct store_keep *);
    void (*drop)(struct store_place *, struct store_drop *);

    /* Ends all that were begun. Without any: tries whether the disk takes commits. Returns those
     * that have ended, by `next`; the place keeps others, which end with a later call. */
    struct store_op *(*end)(struct store_place *);
    /* When the next call is due for what is kept: in so many seconds; INFINITY: nothing is. NULL:
     * nothing ever is. */
    double (*due_in)(const struct store_place *);
    /* After that, once its callers know; before the first; and every few seconds: what may wait.
     * NULL: nothing does. */
    void (*tidy)(struct store_place *);
};

/* State files of checkpoints, by name. Each function returns 0, or -1 with op.error set. */
struct store_blobs {
    /* Without room: ERROR_NO_MEMORY. */
    int (*put)(struct store_place *, struct store_put *);
    int (*get)(struct store_place *, struct store_get *);
    int (*find)(struct store_place *, struct store_find *); /* NULL: there are no prefixes */
    int (*remove)(struct store_place *, struct store_remove *);
    int (*touch)(struct store_place *, struct store_touch *);
};

struct store_backend {
    bool (*takes)(const char *location);   /* NULL: those that no other takes, which are paths */
    bool (*has_tls)(const char *location); /* NULL: none has */
    /* The location for people, without a password. NULL: as it is. */
    void (*name)(const char *location, char *name, size_t size);

    /* Opens options->location for the engine's model, and makes what is missing. On an error it
     * leaves nothing behind. engine and accounts are borrowed until `close`. */
    int (*open)(struct store_place **out, struct engine *engine,
                const struct store_options *options, struct store_accounts *accounts,
                struct error *err);
    /* NULL: what is there is found by its name alone. Counts what is there. Calls options->reply
     * for each reply, and options->found for each whole session of this model, then for each whole
     * file of a checkpoint, the one that was modified first before the others. No operation runs
     * meanwhile. */
    int (*scan)(struct store_place *, const struct store_options *options, struct error *err);
    /* [SIPHASH_BYTES], the same each time that the place is opened: see store_owner_tag. */
    const unsigned char *(*secret)(const struct store_place *);
    void (*close)(struct store_place *);

    const struct store_sessions *sessions;
    const struct store_blobs *blobs;
    const struct store_upkeep *upkeep; /* NULL: `regla sessions` does not know it by this */
};

#endif
