/* SPDX-License-Identifier: Apache-2.0 */
/* A place that keeps the files of a store, as a table of functions that the queue calls. There are
 * the directory (store_directory.h), and Redis or Valkey (store_redis.h), which servers share.
 *
 * To add a backend, write its .c with a `struct store_place` of its own and a table, its .h, and
 * add a line to the list in store_backends.c.
 *
 * Functions that can fail return 0, or -1 with one sentence in *err. The store calls `open` and
 * `scan` from the thread that opens it, and all operations from its own thread, one at a time.
 * A backend counts what it does in the accounts
 * (store_accounts.h), and need not know what is in a file (store_codec.h). */
#ifndef SERVER_STORE_STORE_BACKEND_H
#define SERVER_STORE_STORE_BACKEND_H

#include "lib/base/siphash.h"
#include "server/store/store_accounts.h"
#include "server/store/store_op.h"

struct engine;
struct store_place; /* an open one; each backend defines its own */

struct store_backend {
    bool (*takes)(const char *location);   /* NULL: those that no other takes, which are paths */
    bool (*has_tls)(const char *location); /* NULL: none has */
    /* The location for people, without a password. NULL: as it is. */
    void (*name)(const char *location, char *name, size_t size);
    /* Other servers use it at the same time: run_rows runs enum store_what to its end. */
    bool shared;

    /* Opens options->location for the engine's model, and makes what is missing. On an error it
     * leaves nothing behind. engine and accounts are borrowed until `close`. */
    int (*open)(struct store_place **out, struct engine *engine,
                const struct store_options *options, struct store_accounts *accounts,
                struct error *err);
    /* NULL: what is there is found by its name alone. Counts what is there. Calls options->reply for each reply, and options->found for each whole
     * session of this model, then for each whole file of a checkpoint, the one that was modified
     * first before the others. No operation runs meanwhile. */
    int (*scan)(struct store_place *, const struct store_options *options, struct error *err);

    /* Checkpoints. Writes the file whole or not at all, in the place of an older one of its name.
     * Without room: ERROR_NO_MEMORY. */
    int (*write)(struct store_place *, struct store_op *, struct error *);
    /* Fills the operation's buffers. The file has to be what the operation says that it is. */
    int (*read)(struct store_place *, struct store_op *, struct error *);
    int (*remove)(struct store_place *, struct store_op *, struct error *);
    int (*touch)(struct store_place *, struct store_op *, struct error *);

    /* Which of op->names is there: sets op->which. NULL where servers do not share the place. */
    int (*find)(struct store_place *, struct store_op *, struct error *);

    /* Runs the operations on sessions and replies, by `next`: writes, removals and touches (by
     * `what`, enum store_what), in as few commits as may be. Sets the error of each; one without is
     * on the disk. Without any: tries whether the disk takes commits. Returns those that have
     * ended; the place keeps others, which end with a later call. */
    struct store_op *(*run_rows)(struct store_place *, struct store_op *first);
    /* When the next call is due for what is kept: in so many seconds; INFINITY: nothing is. NULL:
     * nothing ever is. */
    double (*due_in)(const struct store_place *);
    /* After that, once its callers know; before the first; and every few seconds: what may wait. */
    void (*tidy_rows)(struct store_place *);

    /* [SIPHASH_BYTES], the same each time that the place is opened: see store_owner_tag. */
    const unsigned char *(*secret)(const struct store_place *);
    void (*close)(struct store_place *);
};

#endif
