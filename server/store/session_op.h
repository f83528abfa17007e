/* SPDX-License-Identifier: Apache-2.0 */
/* What a store is asked of sessions and replies: an own struct for each operation. What is borrowed
 * is until `done`. */
#ifndef SERVER_STORE_SESSION_OP_H
#define SERVER_STORE_SESSION_OP_H

#include "server/store/store_op.h"

/* A reply, or (status 0) only that its request has been carried out. */
struct store_reply {
    const char *name; /* [name_length]: of its request */
    size_t name_length;
    unsigned char body[STORE_BODY_BYTES]; /* hash of the request's */
    int status;
    const char *error; /* the code of the error; "": none */
    bool stream;
    int64_t expires_ns; /* since 1970 */
    const char *data;   /* [length] */
    size_t length;
    const char *session;            /* found: name of the row of its session; "": none */
    const struct store_reply *next; /* with a session: of another of its turns; NULL: none */
};

/* A session as the store has it, malloc'd. */
struct store_row {
    char *meta; /* [meta_length] */
    size_t meta_length;
    int32_t *tokens; /* [count]; NULL in a list */
    char *turns;     /* [turns_length]; likewise */
    int64_t count, turns_length, state;
    double used; /* seconds since 1970, by the store's clock */
};

/* The right to change a session, or to answer a request, which ends by itself unless it is
 * renewed. */
struct store_lease {
    char holder[STORE_NAME_SIZE]; /* "": there is none */
    int64_t fence;                /* higher than that of every lease before */
    int64_t version;              /* of the session as this server knows it; 0: as one without */
};

/* A name that nothing else has: 32 hex digits that nobody can guess. False: the system has no
 * random numbers. */
bool store_random_name(char name[STORE_NAME_SIZE]);

void store_rows_free(struct store_row *rows, size_t count);
/* Over META, tokens and turns. */
uint64_t store_rows_sum(const char *meta, size_t meta_length, const int32_t *tokens, int64_t count,
                        const char *turns, int64_t turns_length);

/* How a change went to a store that servers share, while its replicas are waited for. */
struct store_route {
    void *connection; /* NULL: none is waited for */
    uint64_t closed;
};

/* The first member of each operation on a session. */
struct store_session_op {
    struct store_op op;         /* the first member */
    const char *owner, *id;     /* borrowed */
    char name[STORE_NAME_SIZE]; /* of its row, where the place's rows have names */
    struct store_lease lease; /* as it was taken; take sets it, but for holder and the version that
                                 is known, look the version */
    /* The store's. */
    int sends; /* so often, all but the last without a reply */
    struct store_route route;
};

/* What take and look have found. */
enum store_seen { STORE_SEEN_NONE, STORE_SEEN_SAME, STORE_SEEN_OTHER };

/* Reads the session, unless the version that is known is the store's. */
struct store_look {
    struct store_session_op session; /* the first member */
    bool uses;                       /* it is used now */
    double used;                     /* its last use, in seconds since 1970 by the store */
    enum store_seen seen;
    struct store_row *row; /* SEEN_OTHER; the caller frees it */
};

/* The same, and gets the lease. */
struct store_take {
    struct store_look look;        /* the first member */
    const struct store_reply *key; /* of the request that takes it; NULL: it has none */
};

/* Makes the session what this says, and ends the lease, whose fence is the version then. */
struct store_commit {
    struct store_session_op session; /* the first member */
    const char *meta;                /* [meta_length] */
    size_t meta_length;
    const int32_t *tokens; /* [count] */
    int64_t count, from;   /* from: so many are there as they are */
    const char *turns;     /* [turns_length], of its chat */
    int64_t turns_length, turns_from;
    int64_t state;   /* position of the deepest state that will be there; 0: none */
    int64_t used_ns; /* its last use, since 1970; 0: now */
    bool fresh;      /* it is not there yet */
    bool cuts;       /* tokens or turns that are there go */
    const struct store_reply *claims; /* its turns were these requests' */
};

/* What is missing is not an error. */
struct store_delete {
    struct store_session_op session;  /* the first member */
    const struct store_reply *claims; /* its turns were these requests' */
};

/* Sets the time of its last use, where no commit does. */
struct store_use {
    struct store_session_op session; /* the first member */
    int64_t used_ns;                 /* since 1970; 0: now */
};

/* Gives the lease back. */
struct store_give {
    struct store_session_op session; /* the first member */
    bool lasts;                      /* it is sent again while its end is not known */
    bool counted;                    /* it counts these in the quota from now on: */
    int64_t count, turns_length;
};

/* All sessions of the owner that are no responses. */
struct store_list {
    struct store_session_op session; /* the first member */
    struct store_row *rows;          /* [num_rows]; the caller frees them */
    size_t num_rows;
};

/* Takes of the owner's quota what the session may come to count. */
struct store_reserve {
    struct store_session_op session; /* the first member */
    int64_t wanted_bytes;
    int64_t held_bytes; /* STORE_QUOTA: what the owner's others count */
};

/* The first member of each operation on a reply. */
struct store_reply_op {
    struct store_op op;              /* the first member */
    const struct store_reply *reply; /* or its name and body alone; borrowed */
    char holder[STORE_NAME_SIZE];    /* of the request; "": it was not claimed */
    bool lasts; /* it is sent again while its end is not known, as long as the claim may hold */
};

/* Takes the request, which is to be answered by one server. */
struct store_claim {
    struct store_reply_op request; /* the first member */
    struct store_reply *found;     /* what was kept, malloc'd with its data; the caller frees it.
                                      NULL: none, the request is the holder's */
};

/* Whether it is the holder's, or may be: the store may carry out what it has not answered. */
bool store_claim_holds(const struct store_claim *claim);

/* Keeps its reply. */
struct store_keep {
    struct store_reply_op request; /* the first member */
};

/* It has no reply, or not any more. */
struct store_drop {
    struct store_reply_op request; /* the first member */
};

/* Operations of all kinds that have come together, by `next`. */
struct store_batch {
    struct store_op *first, **last; /* last: while there are any */
};

void store_batch_add(struct store_batch *batch, struct store_op *op);
/* Takes all of them. NULL: there is none. */
struct store_op *store_batch_take(struct store_batch *batch);

/* Bytes that the files grow by at most where it is written: the log, and then the database
 * (store_rows.c). */
int64_t store_commit_bytes(const struct store_commit *commit);
int64_t store_keep_bytes(const struct store_keep *keep);

#endif
