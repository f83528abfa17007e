/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_database.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "rgls": whose database a file is; and the version of the tables. */
#define APPLICATION "1919380595"
#define VERSION "1"

static const char SCHEMA[] =
    "CREATE TABLE session (at INTEGER PRIMARY KEY, model BLOB NOT NULL, name TEXT NOT NULL,"
    " meta TEXT NOT NULL, count INTEGER NOT NULL, touched INTEGER NOT NULL, sum INTEGER NOT NULL,"
    " tokens BLOB NOT NULL, padding BLOB NOT NULL);"
    "CREATE TABLE part (of INTEGER NOT NULL, number INTEGER NOT NULL, sum INTEGER NOT NULL,"
    " content BLOB NOT NULL, PRIMARY KEY (of, number));"
    "CREATE TABLE reply (at INTEGER PRIMARY KEY, name BLOB NOT NULL, body BLOB NOT NULL,"
    " session TEXT NOT NULL, status INTEGER NOT NULL, error TEXT NOT NULL, stream INTEGER NOT NULL,"
    " expires INTEGER NOT NULL, length INTEGER NOT NULL, sum INTEGER NOT NULL);"
    "CREATE INDEX reply_session ON reply (session);"
    "CREATE INDEX reply_expires ON reply (expires);"
    "CREATE TABLE probe (number INTEGER NOT NULL);"
    "INSERT INTO probe VALUES (0);"
    "PRAGMA application_id = " APPLICATION ";"
    "PRAGMA user_version = " VERSION ";";

/* What the tables have to be: no triggers, views or columns of somebody else's. */
static const char CHECK[] =
    "SELECT (SELECT application_id FROM pragma_application_id) = " APPLICATION
    " AND (SELECT user_version FROM pragma_user_version) = " VERSION
    " AND (SELECT page_size FROM pragma_page_size) = 4096"
    " AND (SELECT group_concat(type || ' ' || name, ',') FROM (SELECT type, name FROM sqlite_schema"
    " ORDER BY name)) = 'table part,table probe,table reply,"
    "index reply_expires,index reply_session,table session,index sqlite_autoindex_part_1'"
    " AND (SELECT group_concat(name, ' ') FROM pragma_table_info('session')) ="
    " 'at model name meta count touched sum tokens padding'"
    " AND (SELECT group_concat(name, ' ') FROM pragma_table_info('part')) = 'of number sum content'"
    " AND (SELECT group_concat(name, ' ') FROM pragma_table_info('reply')) ="
    " 'at name body session status error stream expires length sum'";

static const char *const TEXTS[NUM_DATABASE_STATEMENTS] = {
    [DATABASE_BEGIN] = "BEGIN IMMEDIATE",
    [DATABASE_COMMIT] = "COMMIT",
    [DATABASE_ROLLBACK] = "ROLLBACK",
    [DATABASE_PROBE] = "UPDATE probe SET number = (number + 1) % 256",
    [DATABASE_PAGES] = "PRAGMA page_count",
    [DATABASE_FREE_PAGES] = "PRAGMA freelist_count",
    [DATABASE_PUT_SESSION] =
        "INSERT INTO session VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, zeroblob(?9))"
        " ON CONFLICT (at) DO UPDATE SET meta = ?4, count = ?5, touched = ?6, sum = ?7,"
        " tokens = ?8, padding = zeroblob(?9) WHERE name = ?3",
    [DATABASE_TOUCH_SESSION] = "UPDATE session SET touched = ?2 WHERE at = ?1",
    [DATABASE_DROP_SESSION] = "DELETE FROM session WHERE at = ?1",
    [DATABASE_LOAD_SESSIONS] =
        "SELECT at, model, name, meta, count, touched, sum, tokens FROM session"
        " WHERE ?1 IS NULL OR model = ?1 ORDER BY at",
    [DATABASE_FIND_SESSION] = "SELECT 1 FROM session WHERE at = ?1",
    [DATABASE_PUT_PART] = "INSERT OR REPLACE INTO part VALUES (?1, ?2, ?3, ?4)",
    [DATABASE_DROP_PARTS] = "DELETE FROM part WHERE of = ?1 AND number >= ?2 AND number < ?3",
    [DATABASE_DROP_SOME_PARTS] =
        "DELETE FROM part WHERE rowid IN (SELECT rowid FROM part WHERE of = ?1 LIMIT ?2)",
    [DATABASE_PARTS_OF_NONE] = "SELECT of FROM part WHERE NOT EXISTS (SELECT 1 FROM session WHERE"
                               " at = of) AND NOT EXISTS (SELECT 1 FROM reply WHERE at = of AND"
                               " length > 0) LIMIT 1",
    [DATABASE_LOAD_PARTS] = "SELECT number, sum, content FROM part WHERE of = ?1 ORDER BY number",
    /* A reply that comes once its session has been deleted stays out. */
    [DATABASE_PUT_REPLY] =
        "INSERT INTO reply SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE ?4 = '' OR ?5 = 0"
        " OR EXISTS (SELECT 1 FROM session WHERE at = ?11)"
        " OR EXISTS (SELECT 1 FROM reply WHERE at = ?1) ON CONFLICT (at)"
        " DO UPDATE SET body = ?3, session = iif(?4 = '', session, ?4), status = ?5, error = ?6,"
        " stream = ?7, expires = ?8, length = ?9, sum = ?10"
        " WHERE name = ?2 AND (session <> 'deleted' OR ?5 = 0)",
    [DATABASE_DROP_REPLY] = "DELETE FROM reply WHERE at = ?1",
    [DATABASE_EXPIRED_REPLIES] = "SELECT at FROM reply WHERE expires <= ?1 LIMIT 1",
    [DATABASE_HUSH_REPLIES] = "UPDATE reply SET status = 0, error = '', session = 'deleted'"
                              " WHERE session = ?1",
    [DATABASE_HUSHED_REPLY] = "SELECT at FROM reply WHERE session = 'deleted' AND length > 0"
                              " LIMIT 1",
    [DATABASE_EMPTY_REPLY] = "UPDATE reply SET length = 0 WHERE at = ?1",
    [DATABASE_CLAIM_REPLY] = "UPDATE reply SET session = ?2 WHERE at = ?1 AND name = ?3 AND"
                             " status <> 0 AND expires >= ?4",
    [DATABASE_LOAD_REPLIES] = "SELECT at, name, body, session, status, error, stream, expires,"
                              " length, sum FROM reply ORDER BY expires",
};

/* The errno of the last call on the database or its log that failed; 0: none is known.
 * (sqlite3_system_errno does not know that of a commit.) */
static int system_error(sqlite3 *handle)
{
    int code = 0;
    sqlite3_file *log = NULL;
    if (sqlite3_file_control(handle, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log) == SQLITE_OK &&
        log != NULL && log->pMethods != NULL)
        log->pMethods->xFileControl(log, SQLITE_FCNTL_LAST_ERRNO, &code);
    if (code == 0)
        sqlite3_file_control(handle, "main", SQLITE_FCNTL_LAST_ERRNO, &code);
    return code;
}

int store_database_cannot(const struct store_database *database, const char *what,
                          struct error *err)
{
    int code = sqlite3_extended_errcode(database->handle);
    int primary = code & 0xff;
    bool io = primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN;
    int system = io ? system_error(database->handle) : 0;
    bool room =
        primary == SQLITE_FULL || (io && (system == ENOSPC || system == EDQUOT || system == EFBIG));
    enum error_code kind = room || primary == SQLITE_NOMEM                         ? ERROR_NO_MEMORY
                           : primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB ? ERROR_INVALID
                                                                                   : ERROR_IO;
    return error_set(err, kind, "%s: cannot %s: %s%s%s", database->path, what,
                     room ? "no room on the disk" : sqlite3_errmsg(database->handle),
                     io && system != 0 && !room ? ": " : "",
                     io && system != 0 && !room ? strerror(system) : "");
}

sqlite3_stmt *store_database_statement(struct store_database *database,
                                       enum database_statement which)
{
    return database->statements[which];
}

int store_database_run(struct store_database *database, enum database_statement which,
                       const char *what, struct error *err)
{
    sqlite3_stmt *statement = database->statements[which];
    int code = sqlite3_step(statement);
    int result = code == SQLITE_DONE ? 0 : store_database_cannot(database, what, err);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return result;
}

int store_database_find(struct store_database *database, enum database_statement which,
                        const char *what, int64_t *number, struct error *err)
{
    sqlite3_stmt *statement = database->statements[which];
    int code = sqlite3_step(statement);
    *number = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
    int result =
        code == SQLITE_ROW || code == SQLITE_DONE ? 0 : store_database_cannot(database, what, err);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return result;
}

/* ---- opening ---- */

static int set_up(sqlite3 *handle)
{
    static const char PRAGMAS[] =
        "PRAGMA page_size = 4096; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
        "PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 0;"
        "PRAGMA cache_size = -4096; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;"
        "PRAGMA mmap_size = 0;";
    sqlite3_extended_result_codes(handle, 1);
    sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    sqlite3_busy_timeout(handle, DATABASE_WAIT_MS);
    return sqlite3_exec(handle, PRAGMAS, NULL, NULL, NULL);
}

/* A number that a query gives; -1: none. */
static int64_t number_of(sqlite3 *handle, const char *query)
{
    sqlite3_stmt *statement = NULL;
    int64_t number = -1;
    if (sqlite3_prepare_v2(handle, query, -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW)
        number = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return number;
}

static int make_tables(struct store_database *database, struct error *err)
{
    sqlite3 *handle = database->handle;
    int64_t tables = number_of(handle, "SELECT count(*) FROM sqlite_schema");
    if (tables == 0 && number_of(handle, "SELECT application_id FROM pragma_application_id") == 0) {
        if (sqlite3_exec(handle, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK ||
            sqlite3_exec(handle, SCHEMA, NULL, NULL, NULL) != SQLITE_OK ||
            sqlite3_exec(handle, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
            return store_database_cannot(database, "make its tables", err);
        return 0;
    }
    int64_t ours = number_of(handle, CHECK);
    if (ours == 1)
        return 0;
    if (ours < 0)
        return store_database_cannot(database, "read its tables", err);
    return error_set(err, ERROR_INVALID, "%s: its tables are none of this server's",
                     database->path);
}

static int prepare(struct store_database *database, struct error *err)
{
    for (int i = 0; i < NUM_DATABASE_STATEMENTS; i++)
        if (sqlite3_prepare_v3(database->handle, TEXTS[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &database->statements[i], NULL) != SQLITE_OK)
            return store_database_cannot(database, "prepare a statement", err);
    return 0;
}

static char *join(const char *directory, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

static int on_commit(void *context, sqlite3 *handle, const char *name, int pages)
{
    (void)handle;
    (void)name;
    ((struct store_database *)context)->log_pages = pages;
    return SQLITE_OK;
}

/* Opens the file, which may not be a link. But links may lead to the directory, and
 * SQLITE_OPEN_NOFOLLOW takes none at all: so they are followed first. */
static int open_file(struct store_database *database, const char *directory, const char *name,
                     struct error *err)
{
    struct stat status;
    char real[PATH_MAX];
    if (lstat(database->path, &status) == 0 && !S_ISREG(status.st_mode))
        return error_set(err, ERROR_INVALID, "%s: it is no regular file", database->path);
    char *path = realpath(directory, real) != NULL ? join(real, name) : NULL;
    if (path == NULL)
        return error_set(err, ERROR_IO, "%s: cannot open: %s", database->path, strerror(errno));
    int code = sqlite3_open_v2(path, &database->handle,
                               SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
                                   SQLITE_OPEN_NOFOLLOW,
                               NULL);
    free(path);
    if (code != SQLITE_OK)
        return store_database_cannot(database, "open", err);
    if (chmod(database->path, 0600) != 0)
        return error_set(err, ERROR_IO, "%s: cannot set its mode: %s", database->path,
                         strerror(errno));
    return set_up(database->handle) == SQLITE_OK ? 0 : store_database_cannot(database, "open", err);
}

int store_database_open(struct store_database *database, const char *directory, const char *name,
                        struct error *err)
{
    *database = (struct store_database){.path = join(directory, name)};
    if (database->path == NULL || asprintf(&database->log_path, "%s-wal", database->path) < 0) {
        database->log_path = NULL;
        store_database_close(database);
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory", directory);
    }
    if (open_file(database, directory, name, err) != 0 || make_tables(database, err) != 0 ||
        prepare(database, err) != 0) {
        store_database_close(database);
        return -1;
    }
    /* Of an earlier run: how much of it is in the database already is not known. */
    database->log_pages = store_database_log_bytes(database) / DATABASE_FRAME_BYTES;
    sqlite3_wal_hook(database->handle, on_commit, database);
    return 0;
}

void store_database_close(struct store_database *database)
{
    for (int i = 0; i < NUM_DATABASE_STATEMENTS; i++)
        sqlite3_finalize(database->statements[i]);
    sqlite3_close(database->handle);
    free(database->path);
    free(database->log_path);
    *database = (struct store_database){0};
}

void store_database_limit_memory(int64_t bytes)
{
    sqlite3_soft_heap_limit64(bytes);
}

int store_database_set_aside(const char *directory, char *aside, size_t size, struct error *err)
{
    enum { MOST = 1000 };
    /* Once the database is gone its copy is what counts (store_database_settle). */
    static const char *const ends[] = {"", "-wal", "-shm"};
    char from[4096], to[4096];
    struct stat status;
    snprintf(aside, size, DATABASE_NAME ".rejected");
    snprintf(to, sizeof to, "%s/%s", directory, aside);
    for (int i = 1; lstat(to, &status) == 0 && i < MOST; i++) {
        snprintf(aside, size, DATABASE_NAME ".%d.rejected", i);
        snprintf(to, sizeof to, "%s/%s", directory, aside);
    }
    if (lstat(to, &status) == 0)
        return error_set(err, ERROR_IO, "%s: there are too many of them", to);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        snprintf(from, sizeof from, "%s/" DATABASE_NAME "%s", directory, ends[i]);
        snprintf(to, sizeof to, "%s/%s%s", directory, aside, ends[i]);
        if (rename(from, to) != 0 && errno != ENOENT)
            return error_set(err, ERROR_IO, "%s: cannot set it aside: %s", from, strerror(errno));
    }
    return 0;
}

int store_database_settle(const char *directory, struct error *err)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    char name[4096], fresh[4096];
    struct stat status;
    snprintf(name, sizeof name, "%s/" DATABASE_NAME, directory);
    snprintf(fresh, sizeof fresh, "%s/" DATABASE_FRESH, directory);
    if (lstat(name, &status) != 0 && errno == ENOENT) {
        if (lstat(fresh, &status) != 0 && errno == ENOENT)
            return 0;
        /* A log of the database that was set aside is not to meet the copy. */
        for (size_t i = 1; i < sizeof ends / sizeof *ends; i++) {
            snprintf(name, sizeof name, "%s/" DATABASE_NAME "%s", directory, ends[i]);
            if (unlink(name) != 0 && errno != ENOENT)
                return error_set(err, ERROR_IO, "%s: cannot remove it: %s", name, strerror(errno));
        }
        snprintf(name, sizeof name, "%s/" DATABASE_NAME, directory);
        return rename(fresh, name) == 0
                   ? 0
                   : error_set(err, ERROR_IO, "%s: cannot rename it: %s", fresh, strerror(errno));
    }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        snprintf(fresh, sizeof fresh, "%s/" DATABASE_FRESH "%s", directory, ends[i]);
        if (unlink(fresh) != 0 && errno != ENOENT)
            return error_set(err, ERROR_IO, "%s: cannot remove it: %s", fresh, strerror(errno));
    }
    return 0;
}

/* ---- transactions ---- */

int store_database_begin(struct store_database *database, struct error *err)
{
    return store_database_run(database, DATABASE_BEGIN, "begin a change", err);
}

void store_database_rollback(struct store_database *database)
{
    struct error ignored = ERROR_INIT;
    if (sqlite3_get_autocommit(database->handle) == 0)
        store_database_run(database, DATABASE_ROLLBACK, "undo a change", &ignored);
}

int store_database_commit(struct store_database *database, struct error *err)
{
    if (store_database_run(database, DATABASE_COMMIT, "commit", err) == 0)
        return 0;
    store_database_rollback(database);
    return -1;
}

int store_database_probe(struct store_database *database, struct error *err)
{
    if (store_database_begin(database, err) != 0)
        return -1;
    if (store_database_run(database, DATABASE_PROBE, "write", err) == 0)
        return store_database_commit(database, err);
    store_database_rollback(database);
    return -1;
}

int store_database_checkpoint(struct store_database *database, bool truncate, int wait_ms,
                              struct error *err)
{
    int mode = truncate ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE;
    int log = -1, copied = -1;
    sqlite3_busy_timeout(database->handle, wait_ms);
    int code = sqlite3_wal_checkpoint_v2(database->handle, NULL, mode, &log, &copied);
    sqlite3_busy_timeout(database->handle, DATABASE_WAIT_MS);
    if (log >= 0 && copied >= 0) /* else it has not been looked at */
        database->log_pages = log - copied;
    return code == SQLITE_OK ? 0 : store_database_cannot(database, "empty its log", err);
}

int store_database_drop_parts(struct store_database *database, int64_t of, int64_t most,
                              int64_t *dropped, struct error *err)
{
    sqlite3_stmt *drop = store_database_statement(database, DATABASE_DROP_SOME_PARTS);
    sqlite3_bind_int64(drop, 1, of);
    sqlite3_bind_int64(drop, 2, most);
    if (store_database_run(database, DATABASE_DROP_SOME_PARTS, "remove parts", err) != 0)
        return -1;
    *dropped = sqlite3_changes64(database->handle);
    return 0;
}

/* ---- what it takes ---- */

static int64_t size_of(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (int64_t)status.st_size : 0;
}

int64_t store_database_log_bytes(const struct store_database *database)
{
    return size_of(database->log_path);
}

/* 0 where they cannot be counted. */
static int64_t bytes_of_pages(struct store_database *database, enum database_statement which)
{
    int64_t pages = 0;
    struct error ignored = ERROR_INIT;
    if (database->statements[which] != NULL)
        store_database_find(database, which, "count pages", &pages, &ignored);
    return pages * DATABASE_PAGE_BYTES;
}

int64_t store_database_bytes(struct store_database *database)
{
    const int64_t file = size_of(database->path);
    const int64_t pages = bytes_of_pages(database, DATABASE_PAGES);
    return (file > pages ? file : pages) + size_of(database->log_path);
}

int64_t store_database_free_bytes(struct store_database *database)
{
    return bytes_of_pages(database, DATABASE_FREE_PAGES);
}

/* ---- a copy ---- */

int store_database_copy(const char *directory, const char *to, struct error *err)
{
    struct store_database from = {.path = join(directory, DATABASE_NAME)};
    struct store_database copy = {.path = (char *)to}; /* borrowed, and only read */
    int result = -1;
    if (from.path == NULL)
        error_set(err, ERROR_NO_MEMORY, "%s: no memory", directory);
    else if (sqlite3_open_v2(from.path, &from.handle, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK ||
             sqlite3_busy_timeout(from.handle, 10000) != SQLITE_OK)
        store_database_cannot(&from, "open", err);
    else if (sqlite3_open_v2(copy.path, &copy.handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                             NULL) != SQLITE_OK ||
             chmod(copy.path, 0600) != 0 ||
             sqlite3_exec(copy.handle, "PRAGMA synchronous = FULL", NULL, NULL, NULL) != SQLITE_OK)
        store_database_cannot(&copy, "make", err);
    else {
        /* In one step: from one moment, whatever the server writes meanwhile. */
        sqlite3_backup *backup = sqlite3_backup_init(copy.handle, "main", from.handle, "main");
        if (backup != NULL && sqlite3_backup_step(backup, -1) == SQLITE_DONE)
            result = 0;
        if (sqlite3_backup_finish(backup) != SQLITE_OK || result != 0)
            result = store_database_cannot(&copy, "copy into it", err);
    }
    copy.path = NULL;
    store_database_close(&copy);
    store_database_close(&from);
    return result;
}
