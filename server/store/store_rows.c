/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_rows.h"

#include "engine/base/clock.h"
#include "server/log.h"
#include "server/store/reply_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The log is copied into the database when it is so long: as much is written twice, and read by the
 * next start. */
static const int64_t MOST_LOG_BYTES = 4 << 20;
/* But at most at this part of the room that there is, if that is more than so much. */
enum { LOG_PART = 8, LEAST_LOG_BYTES = 64 << 10 };
/* How often replies are looked through for those that have expired. */
static const int64_t EXPIRE_NS = 5 * (int64_t)1000000000;
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

struct salvage {
    struct store_database *to;
    int64_t sessions;
};

static int salvage_one(void *context, struct session_row *row, struct error *err)
{
    struct salvage *salvage = context;
    salvage->sessions++;
    return session_rows_put(salvage->to, row, 0, err);
}

/* Sets a corrupt database aside, and makes a new one of what can be read of it. */
static int start_anew(struct store_rows *rows, const char *why, struct error *err)
{
    char name[64], aside[4200];
    const char *directory = rows->root->path;
    struct store_database old = rows->database;
    struct error end = ERROR_INIT;
    int64_t damaged = 0;
    rows->database = (struct store_database){0};
    if (store_database_set_aside(directory, name, sizeof name, err) != 0 ||
        store_database_open(&rows->database, directory, err) != 0) {
        store_database_close(&old);
        return -1;
    }
    snprintf(aside, sizeof aside, "%s/%s", directory, name);
    struct salvage salvage = {.to = &rows->database};
    int result = store_database_begin(&rows->database, err);
    if (result == 0 && old.handle != NULL)
        session_rows_load(&old, NULL, salvage_one, &salvage, &damaged, &end);
    if (result == 0)
        result = store_database_commit(&rows->database, err);
    store_database_close(&old);
    store_accounts_fail(rows->accounts);
    log_message(LOG_LEVEL_ERROR, "%s; it is now %s, and %lld sessions were taken over from it", why,
                aside, (long long)salvage.sessions);
    return result;
}

int store_rows_open(struct store_rows *rows, const struct store_root *root,
                    struct store_accounts *accounts, const unsigned char *model, int32_t vocab_size,
                    struct error *err)
{
    struct error why = ERROR_INIT;
    *rows = (struct store_rows){.root = root, .accounts = accounts, .vocab_size = vocab_size};
    memcpy(rows->model, model, sizeof rows->model);
    if (store_database_open(&rows->database, root->path, &why) != 0 ||
        check_pages(rows, &why) != 0) {
        if (why.code != ERROR_INVALID) {
            *err = why;
            return -1;
        }
        if (start_anew(rows, why.message, err) != 0)
            return -1;
    }
    store_rows_account(rows, 0);
    return 0;
}

void store_rows_close(struct store_rows *rows)
{
    struct error ignored = ERROR_INIT;
    if (rows->database.handle != NULL)
        store_database_checkpoint(&rows->database, true, &ignored);
    store_database_close(&rows->database);
}

void store_rows_account(struct store_rows *rows, int64_t sessions)
{
    int64_t bytes = store_database_bytes(&rows->database);
    store_accounts_add(rows->accounts, STORE_SESSION, bytes - rows->bytes, sessions);
    rows->bytes = bytes;
}

/* ---- the scan ---- */

struct scan {
    struct store_rows *rows;
    const struct store_options *options;
    int64_t sessions, damaged;
};

static int tell_session(void *context, struct session_row *row, struct error *err)
{
    struct scan *scan = context;
    (void)err;
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
                                      .count = row->count,
                                      .modified_ns = row->touched_ns};
    if (scan->options->found != NULL)
        scan->options->found(scan->options->found_context, &found);
    return 0;
}

int store_rows_scan(struct store_rows *rows, const struct store_options *options, struct error *err)
{
    struct scan scan = {.rows = rows, .options = options};
    if (session_rows_load(&rows->database, rows->model, tell_session, &scan, &scan.damaged, err) !=
            0 ||
        (options->reply != NULL &&
         reply_rows_load(&rows->database, options->reply, options->found_context, err) != 0))
        return -1;
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
    bool removes;
};

static int64_t op_bytes(const struct store_op *op)
{
    int64_t bytes =
        op->kind == STORE_SESSION ? session_rows_bytes(op->count, op->from, op->fresh) : 0;
    return op->what != STORE_WRITE ? 0 : bytes + (op->reply ? reply_rows_bytes(op->reply) : 0);
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

static int check_room(struct store_rows *rows, const struct group *group, struct error *err)
{
    const struct store_report *report = &rows->accounts->report;
    int64_t left = report->budget_bytes - report->bytes;
    if (check_disk(rows, group->logged, err) != 0)
        return -1;
    if (group->bytes == 0 || group->bytes <= left ||
        group->bytes <= left + store_database_free_bytes(&rows->database))
        return 0;
    return error_set(err, ERROR_NO_MEMORY,
                     "%s: it would grow by %lld bytes, of the %lld of --disk-state are %lld taken",
                     rows->database.path, (long long)group->bytes, (long long)report->budget_bytes,
                     (long long)report->bytes);
}

static int write_session(struct store_rows *rows, const struct store_op *op, struct error *err)
{
    struct session_row row = {.meta_length = op->meta_length,
                              .count = op->count,
                              .touched_ns =
                                  op->modified_ns ? op->modified_ns : clock_nanos(CLOCK_REALTIME),
                              .tokens = (int32_t *)op->tokens}; /* which are only read */
    memcpy(row.model, rows->model, sizeof row.model);
    memcpy(row.name, op->name, sizeof row.name);
    if (op->meta_length <= SESSION_ROW_META)
        memcpy(row.meta, op->meta, op->meta_length);
    if (session_rows_put(&rows->database, &row, op->from, err) != 0)
        return -1;
    return op->reply != NULL ? reply_rows_put(&rows->database, op->reply, op->name, err) : 0;
}

static int run_one(struct store_rows *rows, const struct store_op *op, struct group *group,
                   struct error *err)
{
    struct store_database *database = &rows->database;
    bool was = false;
    group->bytes += op_bytes(op);
    group->logged += op_bytes(op) + STORE_LOG_BYTES;
    if (op->what == STORE_WRITE && check_room(rows, group, err) != 0)
        return -1;
    switch (op->what) {
    case STORE_WRITE:
        if (op->kind == STORE_REPLY)
            return reply_rows_put(database, op->reply, "", err);
        group->sessions += op->fresh;
        group->removes |= !op->fresh && op->from >= op->count; /* a rewind */
        return write_session(rows, op, err);
    case STORE_TOUCH:
        return session_rows_touch(database, op->name,
                                  op->modified_ns ? op->modified_ns : clock_nanos(CLOCK_REALTIME),
                                  err);
    default:
        if (op->kind == STORE_REPLY)
            return reply_rows_drop(database, op->reply->name, op->reply->name_length, err);
        group->removes = true;
        if (session_rows_drop(database, op->name, &was, err) != 0)
            return -1;
        group->sessions -= was;
        return reply_rows_empty(database, op->name, err);
    }
}

/* Runs the operations from `first` up to `end` in one commit. */
static int run_group(struct store_rows *rows, struct store_op *first, const struct store_op *end,
                     struct group *group, struct error *err)
{
    struct store_database *database = &rows->database;
    int64_t now = clock_nanos(CLOCK_REALTIME);
    if (store_database_begin(database, err) != 0)
        return -1;
    int result = 0;
    if (now - rows->expired_ns >= EXPIRE_NS || now < rows->expired_ns) {
        rows->expired_ns = now;
        result = reply_rows_expire(database, now, err);
    }
    for (const struct store_op *op = first; op != end && result == 0; op = op->next)
        result = run_one(rows, op, group, err);
    if (result == 0)
        return store_database_commit(database, err);
    store_database_rollback(database);
    return -1;
}

/* What was removed leaves the log before anybody is told. */
static void scrub(struct store_rows *rows)
{
    struct error err = ERROR_INIT;
    rows->scrub = store_database_checkpoint(&rows->database, true, &err) != 0;
    if (rows->scrub && !rows->log_stuck)
        log_message(LOG_LEVEL_WARN, "%s; what was deleted may still be in it", err.message);
    rows->log_stuck = rows->scrub;
}

/* Counts how a commit ended. */
static void count(struct store_rows *rows, enum error_code code)
{
    store_accounts_wrote(rows->accounts, STORE_SESSION,
                         code == ERROR_NONE        ? STORE_WRITTEN
                         : code == ERROR_NO_MEMORY ? STORE_NO_ROOM
                                                   : STORE_FAILED,
                         store_root_free_bytes(rows->root));
}

/* Runs and counts them; the errors are set. */
static int finish_group(struct store_rows *rows, struct store_op *first, const struct store_op *end,
                        struct error *err)
{
    struct group group = {0};
    int result = run_group(rows, first, end, &group, err);
    if (result == 0 && group.removes)
        scrub(rows);
    for (struct store_op *op = first; op != end; op = op->next)
        op->error = *err;
    store_rows_account(rows, result == 0 ? group.sessions : 0);
    count(rows, err->code);
    return result;
}

static void probe(struct store_rows *rows)
{
    struct error err = ERROR_INIT;
    /* a commit without room for what a turn writes is none */
    if (check_disk(rows, DATABASE_PAGE_BYTES + STORE_LOG_BYTES, &err) == 0)
        store_database_probe(&rows->database, &err);
    count(rows, err.code);
}

void store_rows_run(struct store_rows *rows, struct store_op *first)
{
    struct error err = ERROR_INIT;
    const struct store_report *report = &rows->accounts->report;
    int64_t wanted = 0;
    if (first == NULL) {
        probe(rows);
        return;
    }
    for (const struct store_op *op = first; op != NULL; op = op->next)
        wanted += op_bytes(op);
    /* The log has given its pages to the database, and is only as long as it once was. */
    if (wanted > report->budget_bytes - report->bytes &&
        store_database_log_bytes(&rows->database) > 0) {
        scrub(rows);
        store_rows_account(rows, 0);
    }
    if (finish_group(rows, first, NULL, &err) == 0 || err.code != ERROR_NO_MEMORY)
        return;
    /* An empty log gives room. And where there was none for one of them, that is no reason for the
     * others to fail. */
    scrub(rows);
    for (struct store_op *op = first; op != NULL; op = op->next) {
        error_clear(&err);
        finish_group(rows, op, op->next, &err);
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
    if (rows->scrub)
        scrub(rows);
    else if (rows->database.log_pages * DATABASE_PAGE_BYTES > most)
        store_database_checkpoint(&rows->database, false, &err);
    store_rows_account(rows, 0);
}
