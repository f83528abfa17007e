/* SPDX-License-Identifier: Apache-2.0 */
/* The replies in the database: each is a row, and parts with its bytes. */
#ifndef SERVER_STORE_REPLY_ROWS_H
#define SERVER_STORE_REPLY_ROWS_H

#include "server/store/store_database.h"
#include "server/store/store_op.h"

/* All but the load: within a transaction. */

/* session: the name of that whose turn the request was; "": unknown, or as it was. */
int reply_rows_put(struct store_database *database, const struct store_reply *reply,
                   const char *session, struct error *err);
int reply_rows_drop(struct store_database *database, const char *name, size_t name_length,
                    struct error *err);
/* Drops those that nobody may repeat any more. */
int reply_rows_expire(struct store_database *database, int64_t now_ns, struct error *err);
/* Drops what the replies of a session's turns say: of the session nothing is to be left. */
int reply_rows_empty(struct store_database *database, const char *session, struct error *err);

/* Calls `each` for every whole one, those that expire first before the others. */
int reply_rows_load(struct store_database *database,
                    void (*each)(void *context, const struct store_reply *reply), void *context,
                    struct error *err);

int64_t reply_rows_bytes(const struct store_reply *reply);

#endif
