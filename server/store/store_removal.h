/* SPDX-License-Identifier: Apache-2.0 */
/* Removes sessions and replies from the database for good: rows, then their parts, then what the
 * log has of both. What cannot be done now is tried again (store_removal_tidy), and said once. */
#ifndef SERVER_STORE_STORE_REMOVAL_H
#define SERVER_STORE_STORE_REMOVAL_H

#include "server/store/session_op.h"
#include "server/store/store_database.h"
#include "server/store/store_root.h"

struct store_removal {
    struct store_database *database; /* borrowed, as the root */
    const struct store_root *root;
    bool scrub;         /* what was removed may still be in the log */
    bool sweep;         /* parts may be there that belong to nothing */
    bool stuck;         /* one of both could not be mended: said once */
    int64_t expired_ns; /* when replies were last looked through */
};

/* The database is open: what an earlier server has not come to is to be removed. */
void store_removal_start(struct store_removal *removal);

/* Within a transaction: the row of the session, and what the replies to its turns say; whole: and
 * its parts. *was: whether it was there. */
int store_removal_session(struct store_database *database, const char *name, bool whole, bool *was,
                          struct error *err);
/* Within the same transaction, once all such sessions are gone: the parts of these replies. */
int store_removal_replies(struct store_database *database, struct error *err);
/* After it, where that was left: what the sessions that these operations remove, and the replies,
 * had in parts. */
void store_removal_drop(struct store_removal *removal, const struct store_op *first,
                        const struct store_op *end);

/* What was removed leaves the log before anybody is told. Waits for readers so long. */
void store_removal_scrub(struct store_removal *removal, int wait_ms);
/* An empty log is room for others. */
void store_removal_give_log(struct store_removal *removal);
/* Removes replies that nobody may repeat any more, and what could not be removed before. Whether it
 * has emptied the log, or tried to. */
bool store_removal_tidy(struct store_removal *removal);
/* Says what could not be done, once. */
void store_removal_tell(struct store_removal *removal, const struct error *err);

#endif
