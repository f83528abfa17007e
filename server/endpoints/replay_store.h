/* SPDX-License-Identifier: Apache-2.0 */
/* What replay.c does with the store: the operations that it begins there, and who waits for them.
 * Its struct is here. */
#ifndef SERVER_ENDPOINTS_REPLAY_STORE_H
#define SERVER_ENDPOINTS_REPLAY_STORE_H

#include "server/endpoints/replay_table.h"

#include <pthread.h>

struct replay;
struct store;

/* A reply, or a question for one, on its way to the store. */
struct replay_store_op {
    union { /* the first member */
        struct store_op op;
        struct store_reply_op request;
        struct store_claim claim;
        struct store_keep keep;
        struct store_drop drop;
    };
    struct replay *replay;
    struct replay_store_op *before, *next; /* in the list of those whose clients wait */
    replay_after *after;                   /* NULL: nobody waits (any more) */
    void *context;
    struct replay_entry *entry; /* that is asked for; NULL: none is */
    replay_asked *asked;
    void *asked_context;
    atomic_bool over; /* of two who end it: the store, and who gave up waiting for it */
    struct store_reply reply;
    struct replay_reply *held; /* its bytes; NULL: the reply is to be removed */
    char name[];               /* [reply.name_length] */
};

struct replay {
    struct store *store;  /* NULL: none */
    _Atomic int *waiting; /* clients */
    double lifetime_s;
    pthread_mutex_t lock; /* of all that follows */
    struct replay_store_op *waited;
    bool given_up;   /* the server ends: nothing more is sent again */
    int64_t lasting; /* bytes of what is sent again while nobody waits for it */
    struct replay_table table;
};

/* NULL: no memory. */
struct replay_store_op *replay_store_op_create(struct replay *replay,
                                               const struct store_reply *reply,
                                               void (*done)(struct store_op *op));
/* With the lock held: somebody waits for it. after NULL: nobody does. */
void replay_store_wait(struct replay *replay, struct replay_store_op *kept, replay_after *after,
                       void *context);
/* With the lock held: who waits for it, who from now on does not any more. */
replay_after *replay_store_leave(struct replay *replay, struct replay_store_op *kept);
/* Without the lock. after NULL: there is nobody. */
void replay_store_tell(struct replay *replay, replay_after *after, void *context);

/* As replay_claim. */
struct store_reply replay_store_claim(const struct replay *replay,
                                      const struct replay_entry *entry);
/* With the lock held: begins to write the entry's reply. Returns false where nothing is to be
 * waited for. */
bool replay_store_keep(struct replay *replay, const struct replay_entry *entry, replay_after *after,
                       void *context);
/* The same: where the request was taken in the store, others may have it. */
bool replay_store_drop(struct replay *replay, struct replay_entry *entry, replay_after *after,
                       void *context);
/* With the lock held: the store is to forget it, as memory does. */
void replay_store_forget(struct replay *replay, const struct replay_entry *entry);

#endif
