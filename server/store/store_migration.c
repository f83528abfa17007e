/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_migration.h"

#include "server/log.h"
#include "server/store/store_codec.h"
#include "server/store/store_file.h"
#include "server/store/store_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* So many files a commit: until it is done both they and what is made of them take room. */
enum { BATCH = 256, MOST_REJECTED = 1000 };

static const char FOLDER[] = "sessions", SUFFIX[] = ".session";

struct migration {
    struct store_rows *rows;
    const struct engine *engine;
    int folder;
    int64_t taken;
};

/* A name of its own for a file that must not be read. */
static void set_aside(const struct migration *migration, const char *name, const char *why)
{
    char aside[NAME_MAX + 32];
    snprintf(aside, sizeof aside, "%s.rejected", name);
    for (int i = 1; store_file_size(migration->folder, aside) >= 0 && i < MOST_REJECTED; i++)
        snprintf(aside, sizeof aside, "%s.%d.rejected", name, i);
    store_accounts_fail(migration->rows->accounts);
    errno = EEXIST;
    if (store_file_size(migration->folder, aside) >= 0 ||
        renameat(migration->folder, name, migration->folder, aside) != 0)
        log_message(LOG_LEVEL_ERROR, "%s/%s is not accepted and cannot be set aside (%s): %s",
                    FOLDER, name, strerror(errno), why);
    else
        log_message(LOG_LEVEL_WARN, "%s/%s is not accepted, and now %s: %s", FOLDER, name, aside,
                    why);
}

static int put_file(struct migration *migration, const struct state_file *file,
                    struct session_row *row, struct error *err)
{
    if (store_codec_check(file, migration->engine, STORE_SESSION, err) != 0)
        return -1;
    if (file->meta.size > SESSION_ROW_META)
        return error_set(err, ERROR_INVALID, "its META has %zu bytes, at most %d are expected",
                         file->meta.size, SESSION_ROW_META);
    memcpy(row->meta, file->meta.bytes, file->meta.size);
    row->meta_length = file->meta.size;
    row->count = file->num_tokens;
    row->tokens = malloc(file->tokens.size + 1);
    if (row->tokens == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for its tokens");
    state_file_tokens(file, row->tokens);
    struct error failed = ERROR_INIT;
    bool known;
    int result = session_rows_has(&migration->rows->database, row->name, &known, &failed);
    /* If it is there it has been taken over before, and may have gone on since. */
    if (result == 0 && !known)
        result = session_rows_put(&migration->rows->database, row, 0, 0, &failed);
    free(row->tokens);
    /* Whatever the database refuses, the file is whole. */
    return result == 0 ? 0 : error_set(err, ERROR_IO, "%s", failed.message);
}

/* Within a transaction. ERROR_INVALID: it is no whole session's. */
static int take_file(struct migration *migration, const char *name, struct error *err)
{
    struct session_row row = {0};
    struct state_file file;
    struct stat status;
    if (!store_file_stem(name, SUFFIX, row.name))
        return error_set(err, ERROR_INVALID, "it is none of this server's files");
    void *bytes = store_file_start(migration->folder, name, &status, &file, err);
    if (bytes == NULL)
        return -1;
    memcpy(row.model, migration->rows->model, sizeof row.model);
    row.touched_ns = store_folder_modified_ns(&status);
    int result = put_file(migration, &file, &row, err);
    free(bytes);
    return result;
}

/* Takes the files over, and then removes those of them that were. */
static int take_batch(struct migration *migration, char **names, size_t count, struct error *err)
{
    struct store_database *database = &migration->rows->database;
    bool taken[BATCH] = {false};
    int result = store_database_begin(database, err);
    for (size_t i = 0; i < count && result == 0; i++) {
        struct error why = ERROR_INIT;
        taken[i] =
            store_file_has_suffix(names[i], SUFFIX) && take_file(migration, names[i], &why) == 0;
        if (why.code == ERROR_INVALID)
            set_aside(migration, names[i], why.message);
        else if (why.code != ERROR_NONE)
            result = error_set(err, why.code, "%s/%s: %s", FOLDER, names[i], why.message);
        migration->taken += taken[i];
    }
    if (result == 0)
        result = store_database_commit(database, err);
    else
        store_database_rollback(database);
    for (size_t i = 0; i < count && result == 0; i++)
        if (taken[i] || store_file_has_suffix(names[i], ".tmp"))
            unlinkat(migration->folder, names[i], 0);
    return result;
}

static int take_all(struct migration *migration, char **names, struct error *err)
{
    size_t count = 0;
    int result = 0;
    while (names[count] != NULL)
        count++;
    for (size_t at = 0; at < count && result == 0; at += BATCH)
        result = take_batch(migration, names + at, count - at < BATCH ? count - at : BATCH, err);
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
    return result;
}

/* What was set aside takes of the budget. */
static void count_rest(const struct migration *migration)
{
    char **names = store_folder_names(migration->folder);
    for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
        int64_t size = store_file_size(migration->folder, names[i]);
        store_accounts_add(migration->rows->accounts, STORE_SESSION, size > 0 ? size : 0, 0);
        free(names[i]);
    }
    free(names);
}

int store_migration_run(struct store_rows *rows, int model, const struct engine *engine,
                        struct error *err)
{
    struct migration migration = {.rows = rows, .engine = engine};
    migration.folder = openat(model, FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (migration.folder < 0)
        return errno == ENOENT ? 0 : store_root_cannot(rows->root, "open", FOLDER, err);
    char **names = store_folder_names(migration.folder);
    int result = names == NULL ? store_root_cannot(rows->root, "read", FOLDER, err)
                               : take_all(&migration, names, err);
    if (result == 0 && migration.taken > 0)
        log_message(LOG_LEVEL_INFO, "%s: took over %lld sessions from files of their own",
                    rows->database.path, (long long)migration.taken);
    count_rest(&migration);
    close(migration.folder);
    unlinkat(model, FOLDER, AT_REMOVEDIR); /* stays with what was set aside */
    return result;
}
