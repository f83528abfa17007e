/* SPDX-License-Identifier: Apache-2.0 */
/* The replies in the database: each is a row, and parts with its bytes. */
#ifndef SERVER_STORE_REPLY_ROWS_H
#define SERVER_STORE_REPLY_ROWS_H

#include "server/store/session_op.h"
#include "server/store/store_database.h"

/* All but the load: within a transaction. */

/* session: the name of the row of that whose turn the request was; "": none, or as it was. A reply
 * with a session that is not there is not written, but for its claim (status 0). */
int reply_rows_put(struct store_database *database, const struct store_reply *reply,
                   const char *session, struct error *err);
int reply_rows_drop(struct store_database *database, const char *name, size_t name_length,
                    struct error *err);
/* That a turn of the session was the request's. Its reply may be there already. */
int reply_rows_claim(struct store_database *database, const struct store_reply *claim,
                     const char *session, struct error *err);
bool reply_rows_has_expired(struct store_database *database, int64_t now_ns);
/* Drops those that nobody may repeat any more. */
int reply_rows_expire(struct store_database *database, int64_t now_ns, struct error *err);
/* Drops what the replies of a session's turns say, but for their parts. That there were such
 * requests stays known. */
int reply_rows_hush(struct store_database *database, const char *session, struct error *err);
/* The parts of all of them, by a function that drops those of one row. */
int reply_rows_drop_hushed(struct store_database *database,
                           int (*drop_parts)(void *context, int64_t of, struct error *err),
                           void *context, struct error *err);

/* Calls `each` for every one, those that expire first before the others. One whose bytes are not
 * whole has status 0. */
int reply_rows_load(struct store_database *database,
                    void (*each)(void *context, const struct store_reply *reply), void *context,
                    struct error *err);

int64_t reply_rows_bytes(const struct store_reply *reply);

#endif
