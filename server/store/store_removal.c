/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_removal.h"

#include "lib/base/clock.h"
#include "server/log.h"
#include "server/store/reply_rows.h"
#include "server/store/session_rows.h"

#include <time.h>

/* How often replies are looked through for those that have expired. */
static const int64_t EXPIRE_NS = 5 * (int64_t)1000000000;

int store_removal_session(struct store_database *database, const char *name, bool whole, bool *was,
                          struct error *err)
{
    int64_t of = session_rows_number(name), dropped;
    if (session_rows_drop(database, name, was, err) != 0 ||
        reply_rows_hush(database, name, err) != 0)
        return -1;
    return whole ? store_database_drop_parts(database, of, INT64_MAX, &dropped, err) : 0;
}

/* All that a row has in parts, in one go. */
static int drop_all_parts(void *context, int64_t of, struct error *err)
{
    int64_t dropped;
    return store_database_drop_parts(context, of, INT64_MAX, &dropped, err);
}

int store_removal_replies(struct store_database *database, struct error *err)
{
    return reply_rows_drop_hushed(database, drop_all_parts, database, err);
}

void store_removal_start(struct store_removal *removal)
{
    removal->sweep = true;
    removal->scrub = store_database_log_bytes(removal->database) > 0;
}

void store_removal_tell(struct store_removal *removal, const struct error *err)
{
    bool deleted = removal->scrub || removal->sweep;
    if (!removal->stuck)
        log_message(LOG_LEVEL_WARN, "%s%s", err->message,
                    deleted ? "; what was deleted may still be there" : "");
    removal->stuck = true;
}

static int empty_log(struct store_removal *removal, int wait_ms, struct error *err)
{
    int result = store_database_checkpoint(removal->database, true, wait_ms, err);
    removal->scrub = result != 0;
    return result;
}

void store_removal_scrub(struct store_removal *removal, int wait_ms)
{
    struct error err = ERROR_INIT;
    if (empty_log(removal, wait_ms, &err) != 0)
        store_removal_tell(removal, &err);
    else if (!removal->sweep)
        removal->stuck = false;
}

void store_removal_give_log(struct store_removal *removal)
{
    struct error ignored = ERROR_INIT;
    if (store_database_checkpoint(removal->database, true, DATABASE_WAIT_MS, &ignored) == 0)
        removal->scrub = false;
}

/* Removes the parts of a row that is gone, in commits that a full disk has room for: what is zeroed
 * goes to the log first, which then is emptied. */
static int drop_parts(void *context, int64_t of, struct error *err)
{
    struct store_removal *removal = context;
    enum { LEAST = 4, MOST = 1024 };
    int64_t most = store_root_free_bytes(removal->root) / (4 * DATABASE_FRAME_BYTES), dropped = 0;
    most = most > MOST ? MOST : most < LEAST ? LEAST : most;
    for (;;) {
        if (store_database_drop_parts(removal->database, of, most, &dropped, err) == 0) {
            if (dropped < most)
                return 0;
        } else if (err->code != ERROR_NO_MEMORY || most == LEAST) {
            return -1;
        } else {
            error_clear(err);
            most = most / 4 > LEAST ? most / 4 : LEAST;
        }
        if (empty_log(removal, DATABASE_WAIT_MS, err) != 0)
            return -1;
    }
}

void store_removal_drop(struct store_removal *removal, const struct store_op *first,
                        const struct store_op *end)
{
    struct error err = ERROR_INIT;
    int result = 0;
    for (const struct store_op *op = first; op != end && result == 0; op = op->next)
        if (op->what == STORE_DELETE) {
            const char *name = ((const struct store_session_op *)op)->name;
            result = drop_parts(removal, session_rows_number(name), &err);
        }
    if (result == 0)
        result = reply_rows_drop_hushed(removal->database, drop_parts, removal, &err);
    if (result == 0)
        return;
    removal->sweep = true;
    store_removal_tell(removal, &err);
}

/* The same for what nobody knows any more. */
static void sweep(struct store_removal *removal)
{
    int64_t of = 0;
    struct error err = ERROR_INIT;
    int result = reply_rows_drop_hushed(removal->database, drop_parts, removal, &err);
    while (result == 0 &&
           (result = store_database_find(removal->database, DATABASE_PARTS_OF_NONE,
                                         "look for parts of nothing", &of, &err)) == 0 &&
           of != 0) {
        removal->scrub = true;
        result = drop_parts(removal, of, &err);
    }
    removal->sweep = result != 0 && err.code != ERROR_INVALID;
    if (result != 0)
        store_removal_tell(removal, &err);
}

/* Replies that nobody may repeat any more. A failure is met again by whatever is written next. */
static void expire(struct store_removal *removal)
{
    struct error ignored = ERROR_INIT;
    struct store_database *database = removal->database;
    int64_t now = clock_nanos(CLOCK_REALTIME);
    if ((now - removal->expired_ns < EXPIRE_NS && now >= removal->expired_ns) ||
        !reply_rows_has_expired(database, now))
        return;
    removal->expired_ns = now;
    if (store_database_begin(database, &ignored) != 0)
        return;
    if (reply_rows_expire(database, now, &ignored) != 0)
        store_database_rollback(database);
    else if (store_database_commit(database, &ignored) == 0)
        removal->scrub = true;
}

bool store_removal_tidy(struct store_removal *removal)
{
    expire(removal);
    if (removal->sweep)
        sweep(removal);
    if (!removal->scrub)
        return false;
    store_removal_scrub(removal, 0);
    return true;
}
