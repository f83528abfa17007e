/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_salvage.h"

#include "server/log.h"
#include "server/store/reply_rows.h"
#include "server/store/session_rows.h"
#include "server/store/store_file.h"
#include "server/store/store_folder.h"

#include <stdlib.h>
#include <string.h>

struct salvage {
    struct store_database *to;
    int64_t sessions;
    struct error failed; /* a write, whatever is read */
};

static int salvage_session(void *context, struct session_row *row, struct error *err)
{
    struct salvage *salvage = context;
    salvage->sessions++;
    if (session_rows_put(salvage->to, row, 0, 0, &salvage->failed) == 0)
        return 0;
    *err = salvage->failed;
    return -1;
}

/* Of a session that could not be read no reply is left either, but that there was one. */
static void salvage_reply(void *context, const struct store_reply *found)
{
    struct salvage *salvage = context;
    struct store_reply reply = *found;
    bool known = true;
    if (salvage->failed.code != ERROR_NONE ||
        (reply.session[0] != '\0' &&
         session_rows_has(salvage->to, reply.session, &known, &salvage->failed) != 0))
        return;
    if (!known) {
        reply.status = 0;
        reply.error = "";
        reply.length = 0;
    }
    reply_rows_put(salvage->to, &reply, reply.session, &salvage->failed);
}

/* Copies what can be read. Where the one cannot be read any further, that is how it is; any other
 * error might leave out what is whole. */
static int take_over(struct store_database *old, struct salvage *salvage, struct error *err)
{
    struct error end[2] = {ERROR_INIT, ERROR_INIT};
    int64_t damaged = 0;
    if (store_database_begin(salvage->to, err) != 0)
        return -1;
    if (old->handle != NULL) {
        session_rows_load(old, NULL, salvage_session, salvage, &damaged, &end[0]);
        reply_rows_load(old, salvage_reply, salvage, &end[1]);
    }
    for (int i = 0; i < 2 && salvage->failed.code == ERROR_NONE; i++)
        if (end[i].code != ERROR_NONE && end[i].code != ERROR_INVALID)
            salvage->failed = end[i];
    if (salvage->failed.code == ERROR_NONE)
        return store_database_commit(salvage->to, err) != 0
                   ? -1
                   : store_database_checkpoint(salvage->to, true, DATABASE_WAIT_MS, err);
    store_database_rollback(salvage->to);
    *err = salvage->failed;
    return -1;
}

int store_salvage_run(struct store_database *database, const struct store_root *root,
                      struct store_accounts *accounts, const char *why, struct error *err)
{
    char aside[64];
    const char *directory = root->path;
    struct store_database old = *database, fresh = {0};
    struct salvage salvage = {.to = &fresh};
    struct error ignored = ERROR_INIT;
    *database = (struct store_database){0};
    int result = store_database_settle(directory, err);
    if (result == 0 && store_database_open(&fresh, directory, DATABASE_FRESH, err) != 0)
        result = -1;
    else if (result == 0)
        result = take_over(&old, &salvage, err);
    store_database_close(&fresh);
    store_database_close(&old);
    if (result != 0) {
        log_message(LOG_LEVEL_ERROR, "%s", why);
        store_database_settle(directory, &ignored);
        return -1;
    }
    if (store_database_set_aside(directory, aside, sizeof aside, err) != 0 ||
        store_database_settle(directory, err) != 0 ||
        store_database_open(database, directory, DATABASE_NAME, err) != 0)
        return -1;
    store_accounts_fail(accounts);
    log_message(LOG_LEVEL_ERROR, "%s; it is now %s/%s, and %lld sessions were taken over from it",
                why, directory, aside, (long long)salvage.sessions);
    return 0;
}

void store_salvage_account(const struct store_root *root, struct store_accounts *accounts,
                           int64_t *aside)
{
    static const char BEGIN[] = DATABASE_NAME ".";
    int64_t bytes = 0;
    char **names = store_folder_names(root->fd);
    if (names == NULL) /* what was counted before stays */
        return;
    for (size_t i = 0; names[i] != NULL; i++) {
        if (strncmp(names[i], BEGIN, sizeof BEGIN - 1) == 0) {
            int64_t size = store_file_size(root->fd, names[i]);
            bytes += size > 0 ? size : 0;
        }
        free(names[i]);
    }
    free(names);
    store_accounts_add(accounts, STORE_SESSION, bytes - *aside, 0);
    *aside = bytes;
}
