/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what a store holds and how its operations end. The queue and the backend write here; any
 * thread reads a consistent copy. */
#ifndef SERVER_STORE_STORE_ACCOUNTS_H
#define SERVER_STORE_STORE_ACCOUNTS_H

#include "server/store/store_op.h"

#include <pthread.h>

struct store_accounts {
    pthread_mutex_t mutex; /* guards report */
    /* Only one thread at a time runs operations. It alone changes bytes and disk_free, so it may
     * read them without the mutex. */
    struct store_report report;
};

void store_accounts_init(struct store_accounts *accounts, int64_t budget_bytes);
void store_accounts_clear(struct store_accounts *accounts);
void store_accounts_copy(struct store_accounts *accounts, struct store_report *report);

/* An operation under way will add so many bytes (< 0: free them). */
void store_accounts_pend(struct store_accounts *accounts, int64_t bytes);
/* So many bytes, and sessions or files of checkpoints, have come (< 0: gone). */
void store_accounts_add(struct store_accounts *accounts, enum store_kind kind, int64_t bytes,
                        int64_t count);
/* Changes a number of the report that nobody else changes but by this function. */
void store_accounts_count(struct store_accounts *accounts, int64_t *number, int64_t change);
/* An operation begins to wait; it has ended. */
void store_accounts_begin(struct store_accounts *accounts, struct store_op *op);
void store_accounts_end(struct store_accounts *accounts, const struct store_op *op);
/* The store has gone away, and is this instead, in words that stay; NULL: it is back. */
void store_accounts_away(struct store_accounts *accounts, const char *why);
/* An operation has failed. Returns -1. */
int store_accounts_fail(struct store_accounts *accounts);

/* STORE_OVER_BUDGET: refused, which tells nothing of the disk. */
enum store_outcome { STORE_WRITTEN, STORE_NO_ROOM, STORE_OVER_BUDGET, STORE_FAILED };
/* How the write of a checkpoint, or a commit, ended. disk_free: what is free afterwards; < 0: it
 * tells nothing about that. */
void store_accounts_wrote(struct store_accounts *accounts, enum store_kind kind,
                          enum store_outcome outcome, int64_t disk_free);

#endif
