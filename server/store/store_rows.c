/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_rows.h"

#include "lib/base/clock.h"
#include "server/log.h"
#include "server/store/reply_rows.h"
#include "server/store/store_salvage.h"

#include <string.h>
#include <time.h>

/* The log is copied into the database when it is so long: as much is written twice, and read by the
 * next start. */
static const int64_t MOST_LOG_BYTES = 4 << 20;
/* But at most at this part of the room that there is, if that is more than so much. */
enum { LOG_PART = 8, LEAST_LOG_BYTES = 64 << 10 };
/* A database up to this size is checked as a whole at the start; a larger one as far as it is read.
 */
static const int64_t MOST_CHECKED_BYTES = 64 << 20;

/* ---- opening ---- */

/* Whether its pages fit together, which reading alone does not show. */
static int check_pages(struct store_rows *rows, struct error *err)
{
    sqlite3_stmt *check = NULL;
    struct store_database *database = &rows->database;
    if (store_database_bytes(database) > MOST_CHECKED_BYTES)
        return 0;
    int code = sqlite3_prepare_v2(database->handle, "PRAGMA quick_check(1)", -1, &check, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_step(check);
    const char *text =
        code == SQLITE_ROW ? (const char *)sqlite3_column_text(check, 0) : "no answer";
    int result = 0;
    if (code != SQLITE_ROW)
        result = store_database_cannot(database, "check", err);
    else if (text == NULL || strcmp(text, "ok") != 0)
        result = error_set(err, ERROR_INVALID, "%s: it is corrupt: %s", database->path,
                           text != NULL ? text : "");
    sqlite3_finalize(check);
    return result;
}

int store_rows_open(struct store_rows *rows, const struct store_root *root,
                    struct store_accounts *accounts, const unsigned char *model, int32_t vocab_size,
                    struct error *err)
{
    struct error why = ERROR_INIT;
    *rows = (struct store_rows){.root = root,
                                .accounts = accounts,
                                .vocab_size = vocab_size,
                                .removal = {.database = &rows->database, .root = root}};
    memcpy(rows->model, model, sizeof rows->model);
    if (store_database_settle(root->path, err) != 0)
        return -1;
    if (store_database_open(&rows->database, root->path, DATABASE_NAME, &why) != 0 ||
        check_pages(rows, &why) != 0) {
        if (why.code != ERROR_INVALID) {
            *err = why;
            return -1;
        }
        if (store_salvage_run(&rows->database, rows->root, rows->accounts, why.message, err) != 0)
            return -1;
    }
    store_removal_start(&rows->removal);
    store_salvage_account(rows->root, rows->accounts, &rows->aside);
    store_rows_account(rows, 0);
    return 0;
}

void store_rows_close(struct store_rows *rows)
{
    struct error ignored = ERROR_INIT;
    if (rows->database.handle != NULL)
        store_database_checkpoint(&rows->database, true, DATABASE_WAIT_MS, &ignored);
    store_database_close(&rows->database);
}

/* The bytes of a commit are known to some pages only, and deletions ask for no room: what they are
 * over the budget by, the log gives back before anybody is told. */
static int64_t bytes_within(struct store_rows *rows)
{
    const struct store_report *report = &rows->accounts->report;
    const int64_t bytes = store_database_bytes(&rows->database);
    if (report->budget_bytes <= 0 || report->bytes - rows->bytes + bytes <= report->budget_bytes ||
        store_database_log_bytes(&rows->database) == 0)
        return bytes;
    store_removal_give_log(&rows->removal);
    return store_database_bytes(&rows->database);
}

void store_rows_account(struct store_rows *rows, int64_t sessions)
{
    int64_t bytes = bytes_within(rows);
    store_accounts_add(rows->accounts, STORE_SESSION, bytes - rows->bytes, sessions);
    rows->bytes = bytes;
}

/* ---- the scan ---- */

struct scan {
    struct store_rows *rows;
    const struct store_options *options;
    int64_t sessions, damaged;
    int64_t told; /* the row of the last that was told */
};

static int tell_session(void *context, struct session_row *row, struct error *err)
{
    struct scan *scan = context;
    (void)err;
    if (row->at <= scan->told) /* the database is read anew */
        return 0;
    scan->told = row->at;
    for (int64_t i = 0; i < row->count; i++)
        if (row->tokens[i] < 0 || row->tokens[i] >= scan->rows->vocab_size) {
            scan->damaged++;
            log_message(LOG_LEVEL_ERROR, "%s: session %s: its token ids are not the model's",
                        scan->rows->database.path, row->name);
            return 0;
        }
    scan->sessions++;
    const struct store_found found = {.kind = STORE_SESSION,
                                      .name = row->name,
                                      .meta = row->meta,
                                      .meta_length = row->meta_length,
                                      .tokens = row->tokens,
                                      .turns = row->turns,
                                      .turns_length = row->turns_length,
                                      .count = row->count,
                                      .modified_ns = row->touched_ns};
    if (scan->options->found != NULL)
        scan->options->found(scan->options->found_context, &found);
    return 0;
}

static int read_all(struct store_rows *rows, struct scan *scan, struct error *err)
{
    const struct store_options *options = scan->options;
    return session_rows_load(&rows->database, rows->model, tell_session, scan, &scan->damaged,
                             err) != 0 ||
                   (options->reply != NULL && reply_rows_load(&rows->database, options->reply,
                                                              options->found_context, err) != 0)
               ? -1
               : 0;
}

int store_rows_scan(struct store_rows *rows, const struct store_options *options, struct error *err)
{
    struct scan scan = {.rows = rows, .options = options, .told = -1};
    struct error why = ERROR_INIT;
    if (read_all(rows, &scan, &why) != 0) {
        if (why.code != ERROR_INVALID) {
            *err = why;
            return -1;
        }
        /* A large one is not checked before it is read. */
        if (store_salvage_run(&rows->database, rows->root, rows->accounts, why.message, err) != 0 ||
            read_all(rows, &scan, err) != 0)
            return -1;
        store_salvage_account(rows->root, rows->accounts, &rows->aside);
    }
    for (int64_t i = 0; i < scan.damaged; i++)
        store_accounts_fail(rows->accounts);
    store_rows_account(rows, scan.sessions);
    return 0;
}

/* ---- operations ---- */

/* What a group of operations has done so far. */
struct group {
    int64_t sessions; /* that have come, less those that are gone */
    int64_t bytes;    /* that its writes add */
    int64_t logged;   /* that they write to the log first */
    int64_t free;     /* that the database has for them before it grows */
    bool removes;     /* something that clients sent */
    bool drops;       /* a whole session */
    bool sparing;     /* what it drops goes later, in commits of its own */
    bool over_budget; /* it failed, and no disk is to blame */
};

/* That a commit adds to the database. */
static int64_t commit_bytes(const struct store_commit *commit)
{
    int64_t bytes = session_rows_bytes(commit);
    for (const struct store_reply *claim = commit->claims; claim != NULL; claim = claim->next)
        bytes += reply_rows_bytes(claim);
    return bytes;
}

static int64_t op_bytes(const struct store_op *op)
{
    return op->what == STORE_COMMIT ? commit_bytes((const struct store_commit *)op)
           : op->what == STORE_KEEP
               ? reply_rows_bytes(((const struct store_keep *)op)->request.reply)
               : 0;
}

/* That it writes to the log, first. */
static int64_t op_log_bytes(const struct store_op *op)
{
    const bool turns = op->what == STORE_COMMIT;
    return op_bytes(op) +
           session_rows_log_bytes(turns ? ((const struct store_commit *)op)->turns_length : 0);
}

/* That so many bytes of pages take in the log. */
static int64_t log_bytes(int64_t logged)
{
    return (logged + DATABASE_PAGE_BYTES - 1) / DATABASE_PAGE_BYTES * DATABASE_FRAME_BYTES;
}

int64_t store_commit_bytes(const struct store_commit *commit)
{
    const int64_t bytes = commit_bytes(commit);
    return bytes + log_bytes(bytes + session_rows_log_bytes(commit->turns_length));
}

int64_t store_keep_bytes(const struct store_keep *keep)
{
    const int64_t bytes = reply_rows_bytes(keep->request.reply);
    return bytes + log_bytes(bytes + session_rows_log_bytes(0));
}

/* The last of the disk is left to the log, and to deletions: without it nobody could make room.
 * logged: bytes that are to be written to the log. */
static int check_disk(const struct store_rows *rows, int64_t logged, struct error *err)
{
    int64_t pages = rows->database.log_pages;
    int64_t disk = store_root_free_bytes(rows->root) - pages * DATABASE_PAGE_BYTES;
    if (disk >= logged + STORE_RESERVE_BYTES)
        return 0;
    return error_set(err, ERROR_NO_MEMORY, "%s: no room on the disk", rows->database.path);
}

/* Bytes that the files grow by: the log by what it has no pages left for, the database by what its
 * free pages do not hold. */
static int64_t growth(const struct store_rows *rows, int64_t logged, int64_t bytes)
{
    const struct store_database *database = &rows->database;
    int64_t left = store_database_log_bytes(database) - database->log_pages * DATABASE_FRAME_BYTES;
    int64_t log = log_bytes(logged);
    left = left > 0 ? left : 0;
    return (log > left ? log - left : 0) + (bytes > 0 ? bytes : 0);
}

static int check_room(const struct store_rows *rows, struct group *group, struct error *err)
{
    const struct store_report *report = &rows->accounts->report;
    if (check_disk(rows, group->logged, err) != 0)
        return -1;
    const int64_t more = growth(rows, group->logged, group->bytes - group->free);
    if (group->bytes == 0 || more <= report->budget_bytes - report->bytes)
        return 0;
    group->over_budget = true;
    return error_set(err, ERROR_NO_MEMORY,
                     "%s: it would grow by %lld bytes, of the %lld of --disk-state are %lld taken",
                     rows->database.path, (long long)more, (long long)report->budget_bytes,
                     (long long)report->bytes);
}

/* That the session's turns were these requests'. */
static int claim_all(struct store_rows *rows, const char *name, const struct store_reply *claims,
                     struct error *err)
{
    for (const struct store_reply *claim = claims; claim != NULL; claim = claim->next)
        if (reply_rows_claim(&rows->database, claim, name, err) != 0)
            return -1;
    return 0;
}

/* since 1970; 0: now */
static int64_t used_ns(int64_t given)
{
    return given != 0 ? given : clock_nanos(CLOCK_REALTIME);
}

static int write_session(struct store_rows *rows, const struct store_commit *commit,
                         struct error *err)
{
    struct session_row row = {.meta_length = commit->meta_length,
                              .count = commit->count,
                              .touched_ns = used_ns(commit->used_ns),
                              .tokens = (int32_t *)commit->tokens, /* which are only read */
                              .turns = (char *)commit->turns,
                              .turns_length = commit->turns_length};
    const char *name = commit->session.name;
    memcpy(row.model, rows->model, sizeof row.model);
    memcpy(row.name, name, sizeof row.name);
    if (commit->meta_length <= SESSION_ROW_META)
        memcpy(row.meta, commit->meta, commit->meta_length);
    if (session_rows_put(&rows->database, &row, commit->from, commit->turns_from, err) != 0)
        return -1;
    return claim_all(rows, name, commit->claims, err);
}

static int remove_session(struct store_rows *rows, const struct store_delete *deletion,
                          struct group *group, struct error *err)
{
    bool was = false;
    const char *name = deletion->session.name;
    group->removes = true;
    group->drops |= group->sparing;
    /* First, since what these say goes with the session. */
    if (claim_all(rows, name, deletion->claims, err) != 0 ||
        store_removal_session(&rows->database, name, !group->sparing, &was, err) != 0)
        return -1;
    group->sessions -= was;
    return group->sparing ? 0 : store_removal_replies(&rows->database, err);
}

static int commit_session(struct store_rows *rows, const struct store_commit *commit,
                          struct group *group, struct error *err)
{
    if (check_room(rows, group, err) != 0)
        return -1;
    group->sessions += commit->fresh;
    group->removes |= commit->cuts;
    return write_session(rows, commit, err);
}

static int run_one(struct store_rows *rows, const struct store_op *op, struct group *group,
                   struct error *err)
{
    struct store_database *database = &rows->database;
    const struct store_reply *reply = ((const struct store_reply_op *)op)->reply;
    const struct store_use *use = (const struct store_use *)op;
    group->bytes += op_bytes(op);
    group->logged += op_log_bytes(op);
    switch (op->what) {
    case STORE_COMMIT:
        return commit_session(rows, (const struct store_commit *)op, group, err);
    case STORE_DELETE:
        return remove_session(rows, (const struct store_delete *)op, group, err);
    case STORE_USE:
        return session_rows_touch(database, use->session.name, used_ns(use->used_ns), err);
    case STORE_KEEP:
        return check_room(rows, group, err) != 0 ? -1 : reply_rows_put(database, reply, "", err);
    default:
        return reply_rows_drop(database, reply->name, reply->name_length, err);
    }
}

/* Runs the operations from `first` up to `end` in one commit. */
static int run_group(struct store_rows *rows, struct store_op *first, const struct store_op *end,
                     struct group *group, struct error *err)
{
    struct store_database *database = &rows->database;
    if (store_database_begin(database, err) != 0)
        return -1;
    int result = 0;
    group->free = store_database_free_bytes(database);
    for (const struct store_op *op = first; op != end && result == 0; op = op->next)
        result = run_one(rows, op, group, err);
    if (result == 0)
        return store_database_commit(database, err);
    store_database_rollback(database);
    return -1;
}

/* ---- running ---- */

/* Counts how a commit ended. */
static void count(struct store_rows *rows, enum error_code code, bool over_budget)
{
    store_accounts_wrote(rows->accounts, STORE_SESSION,
                         over_budget               ? STORE_OVER_BUDGET
                         : code == ERROR_NONE      ? STORE_WRITTEN
                         : code == ERROR_NO_MEMORY ? STORE_NO_ROOM
                                                   : STORE_FAILED,
                         store_root_free_bytes(rows->root));
}

/* Runs and counts them; the errors are set. */
static int finish_group(struct store_rows *rows, struct store_op *first, const struct store_op *end,
                        bool sparing, struct error *err)
{
    struct group group = {.sparing = sparing};
    int result = run_group(rows, first, end, &group, err);
    if (result == 0 && group.drops)
        store_removal_drop(&rows->removal, first, end);
    if (result == 0 && group.removes)
        store_removal_scrub(&rows->removal, DATABASE_WAIT_MS);
    for (struct store_op *op = first; op != end; op = op->next)
        op->error = *err;
    store_rows_account(rows, result == 0 ? group.sessions : 0);
    count(rows, err->code, group.over_budget);
    return result;
}

static void probe(struct store_rows *rows)
{
    struct error err = ERROR_INIT;
    /* a commit without room for what a turn writes is none */
    if (check_disk(rows, DATABASE_PAGE_BYTES + STORE_LOG_BYTES, &err) == 0)
        store_database_probe(&rows->database, &err);
    count(rows, err.code, false);
}

/* The scan has failed: what it has begun ends. */
static void refuse_all(struct store_op *first)
{
    for (struct store_op *op = first; op != NULL; op = op->next)
        error_set(&op->error, ERROR_IO, "the database is not open");
}

/* Where the operations up to `end` have no room, the log gives its pages to the database: it is as
 * long as it once was, and empty. */
static void shorten_log(struct store_rows *rows, const struct store_op *first,
                        const struct store_op *end)
{
    const struct store_report *report = &rows->accounts->report;
    int64_t bytes = 0, logged = 0;
    for (const struct store_op *op = first; op != end; op = op->next) {
        bytes += op_bytes(op);
        logged += op_log_bytes(op);
    }
    if (bytes <= 0 || store_database_log_bytes(&rows->database) == 0 ||
        growth(rows, logged, bytes) <= report->budget_bytes - report->bytes)
        return;
    store_removal_give_log(&rows->removal);
    store_rows_account(rows, 0);
}

void store_rows_run(struct store_rows *rows, struct store_op *first)
{
    struct error err = ERROR_INIT;
    if (rows->database.handle == NULL) {
        refuse_all(first);
        return;
    }
    if (first == NULL) {
        probe(rows);
        return;
    }
    shorten_log(rows, first, NULL);
    if (finish_group(rows, first, NULL, false, &err) == 0 || err.code != ERROR_NO_MEMORY)
        return;
    /* Where there was no room for one of them, that is no reason for the others to fail. */
    store_removal_give_log(&rows->removal);
    for (struct store_op *op = first; op != NULL; op = op->next) {
        error_clear(&err);
        shorten_log(rows, op, op->next);
        finish_group(rows, op, op->next, true, &err);
    }
}

void store_rows_tidy(struct store_rows *rows)
{
    struct error err = ERROR_INIT;
    const struct store_report *report = &rows->accounts->report;
    int64_t room =
        report->budget_bytes < report->disk_free ? report->budget_bytes : report->disk_free;
    int64_t most = room / LOG_PART < MOST_LOG_BYTES ? room / LOG_PART : MOST_LOG_BYTES;
    if (most < LEAST_LOG_BYTES)
        most = LEAST_LOG_BYTES;
    if (rows->database.handle == NULL)
        return;
    if (!store_removal_tidy(&rows->removal) &&
        rows->database.log_pages * DATABASE_PAGE_BYTES > most &&
        store_database_checkpoint(&rows->database, false, 0, &err) != 0)
        store_removal_tell(&rows->removal, &err);
    store_rows_account(rows, 0);
}
