/* SPDX-License-Identifier: Apache-2.0 */
/* The table of replay.c: requests with an Idempotency-Key by their names, and the replies of those
 * that have been answered, by last use and bounded in bytes. Its holder has a lock. */
#ifndef SERVER_ENDPOINTS_REPLAY_TABLE_H
#define SERVER_ENDPOINTS_REPLAY_TABLE_H

#include "server/endpoints/replay_reply.h"
#include "server/store/session_op.h"

#include <xxhash.h>

enum { REPLAY_TABLE_BUCKETS = 4096 };

struct replay_entry {
    struct replay_entry *next;          /* in its bucket */
    struct replay_entry *older, *newer; /* of those that have been answered, by last use */
    XXH128_hash_t body;
    struct replay_reply *reply;   /* NULL: still at work */
    double expires;               /* clock_seconds() */
    char holder[STORE_NAME_SIZE]; /* in a store that servers share; "": it does not know of it */
    bool worked; /* what it asks for has been done, whatever becomes of the reply */
    size_t bucket;
    size_t name_length;
    char name[]; /* [name_length] owner, path and key, a NUL after each */
};

struct replay_table {
    uint64_t seed; /* of the buckets */
    int64_t max_bytes, bytes;
    struct replay_entry *buckets[REPLAY_TABLE_BUCKETS];
    struct replay_entry *oldest, *newest;
};

int replay_table_init(struct replay_table *table, int64_t max_bytes, struct error *err);
/* Frees all entries. */
void replay_table_clear(struct replay_table *table);

/* The entry has its name: finds its bucket. */
void replay_table_place(const struct replay_table *table, struct replay_entry *entry);
/* The entry of the same name. NULL: there is none. */
struct replay_entry *replay_table_find(struct replay_table *table, const struct replay_entry *like);
void replay_table_add(struct replay_table *table, struct replay_entry *entry);
/* And frees it. */
void replay_table_remove(struct replay_table *table, struct replay_entry *entry);
/* Removes those whose time is over, from the least recently used on. */
void replay_table_expire(struct replay_table *table, double now);

/* A copy of a reply for this entry. NULL: no memory, or it is larger than all may be. */
struct replay_reply *replay_table_copy(const struct replay_table *table,
                                       const struct replay_entry *entry, struct replay_reply what,
                                       const char *data);
/* The entry has its reply, for so long; it takes the reference. */
void replay_table_answer(struct replay_table *table, struct replay_entry *entry,
                         struct replay_reply *reply, double lifetime_s);
/* Its reply is used now; it is held for the caller. */
struct replay_reply *replay_table_use(struct replay_table *table, struct replay_entry *entry);
/* The request of a lost reply is at work again. */
void replay_table_reopen(struct replay_table *table, struct replay_entry *entry);

#endif
