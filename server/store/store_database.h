/* SPDX-License-Identifier: Apache-2.0 */
/* The database of --state-dir, DIR/sessions.db: SQLite in WAL mode, where a commit is on the disk
 * when it returns. This file opens it and ends transactions; session_rows.h and reply_rows.h read
 * and write what is in it. One thread at a time uses it.
 *
 * Rows with what clients sent (`session`, `part`) have one size each and fill a page of their own.
 * So SQLite never moves them between pages: it zeroes what it deletes (secure_delete), but not what
 * is left of rows that it has moved. Rows of `reply` differ in size; of what was sent they have
 * only names and hashes, and the text of a reply is in parts. */
#ifndef SERVER_STORE_STORE_DATABASE_H
#define SERVER_STORE_STORE_DATABASE_H

#include "lib/base/error.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DATABASE_PAGE_BYTES = 4096,
    DATABASE_FRAME_BYTES = 24 + DATABASE_PAGE_BYTES, /* of a page in the log */
    DATABASE_WAIT_MS = 2000,   /* for whoever else has it locked: a copy, or a tool of its owner */
    DATABASE_ROW_BYTES = 3900, /* of a row of `session` */
    DATABASE_PART_BYTES = 4000 /* of the content of a row of `part` */
};

enum database_statement {
    DATABASE_BEGIN,
    DATABASE_COMMIT,
    DATABASE_ROLLBACK,
    DATABASE_PROBE,
    DATABASE_PAGES,
    DATABASE_FREE_PAGES,
    DATABASE_PUT_SESSION,
    DATABASE_TOUCH_SESSION,
    DATABASE_DROP_SESSION,
    DATABASE_LOAD_SESSIONS,
    DATABASE_FIND_SESSION,
    DATABASE_PUT_PART,
    DATABASE_DROP_PARTS,
    DATABASE_DROP_SOME_PARTS,
    DATABASE_PARTS_OF_NONE,
    DATABASE_LOAD_PARTS,
    DATABASE_PUT_REPLY,
    DATABASE_DROP_REPLY,
    DATABASE_EXPIRED_REPLIES,
    DATABASE_HUSH_REPLIES,
    DATABASE_HUSHED_REPLY,
    DATABASE_EMPTY_REPLY,
    DATABASE_CLAIM_REPLY,
    DATABASE_LOAD_REPLIES,
    NUM_DATABASE_STATEMENTS
};

struct store_database {
    sqlite3 *handle;
    sqlite3_stmt *statements[NUM_DATABASE_STATEMENTS];
    char *path, *log_path; /* of the database and of its log (WAL) */
    int64_t log_pages;     /* in the log, that are not in the database yet */
};

#define DATABASE_NAME "sessions.db"
/* While it is made of what can be read of a corrupt one. */
#define DATABASE_FRESH "sessions.db.new"

/* Opens or makes DIR/name. ERROR_INVALID: it is corrupt, or none of ours. On an error nothing is
 * left open. */
int store_database_open(struct store_database *database, const char *directory, const char *name,
                        struct error *err);
void store_database_close(struct store_database *database);
/* A DATABASE_FRESH becomes the database if there is none; if there is one, the other was never
 * finished, and goes. */
int store_database_settle(const char *directory, struct error *err);
/* How much memory all databases of the process should do with; they take more where they must. */
void store_database_limit_memory(int64_t bytes);
/* Renames a database that cannot be used, with its log, to a name that nothing has (.rejected),
 * which is written to aside [size]. */
int store_database_set_aside(const char *directory, char *aside, size_t size, struct error *err);

/* Returns -1 with the database's last error: ERROR_NO_MEMORY when it found no room (`what` it
 * could not do), ERROR_INVALID when it is corrupt. */
int store_database_cannot(const struct store_database *database, const char *what,
                          struct error *err);

/* A statement to bind values to. */
sqlite3_stmt *store_database_statement(struct store_database *database, enum database_statement);
/* Runs a statement that gives no rows, and resets it. */
int store_database_run(struct store_database *database, enum database_statement, const char *what,
                       struct error *err);

/* The number in the first row that a statement finds, whose parameters are bound; *number 0: it
 * finds none. Resets it. */
int store_database_find(struct store_database *database, enum database_statement, const char *what,
                        int64_t *number, struct error *err);

int store_database_begin(struct store_database *database, struct error *err);
/* What was done since begin is on the disk, or none of it is in the database. But where the disk
 * fails at the end, all of it may be there after a crash. */
int store_database_commit(struct store_database *database, struct error *err);
void store_database_rollback(struct store_database *database);
/* Commits a change that says nothing: whether the disk takes commits. */
int store_database_probe(struct store_database *database, struct error *err);

/* Copies the log into the database, as far as no reader is in the way. truncate: and leaves the log
 * empty, so that nothing that was deleted is in it; waits for readers so long. -1: a reader or the
 * disk was in the way. */
int store_database_checkpoint(struct store_database *database, bool truncate, int wait_ms,
                              struct error *err);

/* Removes at most so many of a row's parts; without a transaction that is a commit of its own. */
int store_database_drop_parts(struct store_database *database, int64_t of, int64_t most,
                              int64_t *dropped, struct error *err);

/* Bytes of its files once its pages have left the log, which stays as long as it is; of its log
 * alone; and of its pages that are free. */
int64_t store_database_bytes(struct store_database *database);
int64_t store_database_log_bytes(const struct store_database *database);
int64_t store_database_free_bytes(struct store_database *database);

/* Copies the database of a directory that a server may be using to the file `to`, which must not
 * be there. */
int store_database_copy(const char *directory, const char *to, struct error *err);

#endif
