/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions in the database: each is a row with its first tokens, and parts of 1,000 tokens
 * after these. The turns of a chat are in parts, too. A turn writes its row and the parts that it
 * adds to. Each row and each part has a checksum. */
#ifndef SERVER_STORE_SESSION_ROWS_H
#define SERVER_STORE_SESSION_ROWS_H

#include "server/store/session_op.h"
#include "server/store/store_database.h"

enum { SESSION_ROW_TOKENS = 860, SESSION_ROW_META = 400, SESSION_ROW_MODEL = 16 };

struct session_row {
    unsigned char model[SESSION_ROW_MODEL]; /* fingerprint */
    char name[STORE_NAME_SIZE];
    char meta[SESSION_ROW_META + 1];
    size_t meta_length;
    int64_t count, touched_ns;
    int32_t *tokens; /* [count] */
    char *turns; /* [turns_length]: of its chat; where it was loaded, with zeros to a whole part */
    int64_t turns_length;
    int64_t at; /* the row's number, where it was loaded; they come in this order */
};

/* The number of the row that a session of that name has. */
int64_t session_rows_number(const char *name);
/* *has: whether it is there. */
int session_rows_has(struct store_database *database, const char *name, bool *has,
                     struct error *err);

/* Within a transaction. `from` tokens and `turns_from` bytes of turns are there already as they
 * are.
 */
int session_rows_put(struct store_database *database, const struct session_row *row, int64_t from,
                     int64_t turns_from, struct error *err);
/* *was: whether it was there. */
int session_rows_drop(struct store_database *database, const char *name, bool *was,
                      struct error *err);
int session_rows_touch(struct store_database *database, const char *name, int64_t touched_ns,
                       struct error *err);

/* Calls `each` for every whole session of the model (NULL: of any). Rows whose checksum is wrong
 * are counted and left alone. -1: the database cannot be read any further (ERROR_INVALID: it is
 * corrupt), or `each` has failed. */
int session_rows_load(struct store_database *database, const unsigned char *model,
                      int (*each)(void *context, struct session_row *row, struct error *err),
                      void *context, int64_t *damaged, struct error *err);

/* Bytes that it adds. */
int64_t session_rows_bytes(const struct store_commit *commit);
/* Bytes that a change with so many bytes of turns writes to the database's log besides what it
 * adds, at most. */
int64_t session_rows_log_bytes(int64_t turns_length);

#endif
