/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions and replies of a directory: runs operations on its database, one commit for all that
 * come together, and keeps the accounts of what that takes. */
#ifndef SERVER_STORE_STORE_ROWS_H
#define SERVER_STORE_STORE_ROWS_H

#include "server/store/session_rows.h"
#include "server/store/store_accounts.h"
#include "server/store/store_removal.h"

struct store_rows {
    struct store_database database;
    const struct store_root *root;
    struct store_accounts *accounts;
    unsigned char model[SESSION_ROW_MODEL];
    int32_t vocab_size;
    int64_t bytes; /* of the database, as the accounts have it */
    int64_t aside; /* bytes of databases that were set aside, likewise */
    struct store_removal removal;
};

/* A database that is corrupt is set aside, and what can be read of it is taken over into a new one.
 * The caller closes it, on an error too. */
int store_rows_open(struct store_rows *rows, const struct store_root *root,
                    struct store_accounts *accounts, const unsigned char *model, int32_t vocab_size,
                    struct error *err);
void store_rows_close(struct store_rows *rows);

/* As store_backend's scan, for what is in the database. */
int store_rows_scan(struct store_rows *rows, const struct store_options *options,
                    struct error *err);
/* As store_sessions' end and tidy. */
void store_rows_run(struct store_rows *rows, struct store_op *first);
void store_rows_tidy(struct store_rows *rows);

/* Brings the accounts up to what the files take; sessions: that have come (< 0: gone). */
void store_rows_account(struct store_rows *rows, int64_t sessions);

#endif
