/* SPDX-License-Identifier: Apache-2.0 */
/* The database of a directory of states: what it takes over, what of it is corrupt, and that
 * nothing is left of what was deleted. */
#include "engine/state_file.h"
#include "server/store/session_rows.h"
#include "tests/unit/session_database.h"
#include "tests/unit/store_bench.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <unistd.h>

/* A session as regla 0.2 left it: a file. */
static int append(void *context, const void *bytes, size_t size, struct error *err)
{
    (void)err;
    return fwrite(bytes, 1, size, context) == size ? 0 : -1;
}

Test(store_database, sessions_in_files_are_taken_over_once)
{
    enum { FILES = 20 };
    struct bench bench;
    struct error err = ERROR_INIT;
    char path[512], name[64];
    bench_open(&bench);
    struct item *item = new_item(&bench, STORE_SESSION, "s", 70);
    cr_assert(mkdir(path_of(&bench, "sessions", path), 0700) == 0);
    for (int i = 0; i < FILES; i++) {
        struct state_file_source source = {.num_tokens = 50 + i,
                                           .tokens = item->tokens,
                                           .meta = item->meta,
                                           .meta_bytes = strlen(item->meta)};
        snprintf(name, sizeof name, "sessions/old%d.session", i);
        FILE *file = fopen(path_of(&bench, name, path), "wb");
        cr_assert(file && state_file_write(bench.engine, &source, append, file, &err) == 0);
        fclose(file);
    }
    write_whole(bench.folder, "sessions/torn.session.tmp", "torn", 4);
    damage(&bench, "sessions/old3.session", -1);
    for (int round = 0; round < 2; round++) {
        reopen(&bench, BUDGET);
        cr_expect(bench.num_found == FILES - 1, "%d", bench.num_found);
        int64_t tokens = 0;
        for (int i = 0; i < bench.num_found; i++) {
            cr_expect(strcmp(bench.found[i].meta, item->meta) == 0);
            tokens += bench.found[i].count;
        }
        cr_expect(tokens == FILES * 50 + FILES * (FILES - 1) / 2 - 53);
        cr_expect(there(&bench, "sessions/old3.session.rejected") &&
                  !there(&bench, "sessions/old1.session") &&
                  !there(&bench, "sessions/torn.session.tmp"));
        expect_accounts(&bench, FILES - 1, 0, 1);
    }
    free_item(item);
    bench_close(&bench);
}

static const char *database_of(const struct bench *bench, char path[512])
{
    snprintf(path, 512, "%s/sessions.db", bench->path);
    return path;
}

Test(store_database, a_database_that_is_none_or_corrupt_is_set_aside)
{
    enum { SESSIONS = 20 };
    struct bench bench;
    char path[512], name[32];
    size_t size;
    bench_open(&bench);
    store_close(bench.store);
    bench.store = NULL;
    write_whole(bench.path, "sessions.db", "this is no database, however long it may be", 43);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 0);
    for (int i = 0; i < SESSIONS; i++) {
        snprintf(name, sizeof name, "s%d", i);
        struct item *item = new_item(&bench, STORE_SESSION, name, 70);
        write_item(&bench, item);
        free_item(item);
    }
    store_close(bench.store);
    bench.store = NULL;
    /* A token, which the row's checksum covers: that one is left alone. */
    char *bytes = read_whole(database_of(&bench, path), &size);
    int32_t mark[4];
    for (int i = 0; i < 4; i++)
        mark[i] = text_token(bench.engine, 1, 60 + i);
    char *at = memmem(bytes, size, mark, sizeof mark);
    cr_assert(at != NULL);
    at[0] ^= 1;
    write_whole(bench.path, "sessions.db", bytes, size);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == SESSIONS - 1, "%d", bench.num_found);
    store_close(bench.store);
    bench.store = NULL;
    /* A page in the middle is not one of a tree any more. */
    memset(bytes + size / 4096 / 2 * 4096, 0x5a, 4096);
    write_whole(bench.path, "sessions.db", bytes, size);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found > 0 && bench.num_found < SESSIONS - 1, "%d", bench.num_found);
    struct store_report report;
    store_report(bench.store, &report);
    cr_expect(report.sessions == bench.num_found && report.failures > 0);
    int found = bench.num_found;
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == found, "what was taken over stays");
    snprintf(path, sizeof path, "ls %s/sessions.db.rejected %s/sessions.db.1.rejected >/dev/null",
             bench.path, bench.path);
    cr_expect(system(path) == 0);
    free(bytes);
    bench_close(&bench);
}

/* --state-dir may lead through links; the database itself may not be one. */
Test(store_database, a_directory_may_be_a_link)
{
    struct bench bench;
    char command[256], path[64];
    bench_open(&bench);
    struct item *item = new_item(&bench, STORE_SESSION, "s", 70);
    write_item(&bench, item);
    store_close(bench.store);
    bench.store = NULL;
    memcpy(path, bench.path, sizeof path);
    snprintf(bench.path, sizeof bench.path, "%.50s-link", path);
    cr_assert(symlink(path, bench.path) == 0);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 1);
    store_close(bench.store);
    bench.store = NULL;
    snprintf(command, sizeof command, "cd %s && mv sessions.db other && ln -s other sessions.db",
             path);
    cr_assert(system(command) == 0);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 0);
    cr_assert(unlink(bench.path) == 0);
    memcpy(bench.path, path, sizeof path);
    free_item(item);
    bench_close(&bench);
}

static int interrupt(void *context)
{
    (void)context;
    return 1;
}

/* Whoever takes it for one that is not there overwrites it. */
Test(store_database, a_session_that_cannot_be_looked_for_is_an_error)
{
    struct bench bench;
    struct store_database database;
    struct error err = ERROR_INIT;
    bool has;
    bench_open(&bench);
    store_close(bench.store);
    bench.store = NULL;
    cr_assert(store_database_open(&database, bench.path, DATABASE_NAME, &err) == 0);
    cr_expect(session_rows_has(&database, "none", &has, &err) == 0 && !has);
    sqlite3_progress_handler(database.handle, 1, interrupt, NULL);
    cr_expect(session_rows_has(&database, "none", &has, &err) == -1 && err.code == ERROR_IO);
    store_database_close(&database);
    bench_close(&bench);
}

/* A session of an older regla's file that is there already has perhaps gone on since. */
Test(store_database, a_file_does_not_overwrite_a_session)
{
    struct bench bench;
    struct error err = ERROR_INIT;
    char path[512];
    bench_open(&bench);
    struct item *item = new_item(&bench, STORE_SESSION, "old", 70);
    write_item(&bench, item);
    struct state_file_source source = {.num_tokens = 50,
                                       .tokens = item->tokens,
                                       .meta = item->meta,
                                       .meta_bytes = strlen(item->meta)};
    cr_assert(mkdir(path_of(&bench, "sessions", path), 0700) == 0);
    FILE *file = fopen(path_of(&bench, "sessions/old.session", path), "wb");
    cr_assert(file && state_file_write(bench.engine, &source, append, file, &err) == 0);
    fclose(file);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 1 && bench.found[0].count == 70);
    cr_expect(!there(&bench, "sessions/old.session"));
    free_item(item);
    bench_close(&bench);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes > 0 ? bytes : limit.rlim_max;
    cr_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static struct item *write_long(struct bench *bench, int64_t count, int32_t **tokens)
{
    struct item *item = new_item(bench, STORE_SESSION, "long", 10);
    *tokens = malloc((size_t)count * sizeof **tokens);
    for (int64_t i = 0; i < count; i++)
        (*tokens)[i] = text_token(bench->engine, 1, (int)(i % 200));
    item->text = *tokens;
    item->count = count;
    write_item(bench, item);
    return item;
}

/* What is removed goes to the log first. Where the log may have no more pages than the database a
 * long session is removed all the same. */
Test(store_database, a_long_session_is_removed_from_a_full_disk)
{
    struct bench bench;
    struct stat status;
    char path[512];
    int32_t *tokens;
    bench_open(&bench);
    struct item *item = write_long(&bench, 3000000, &tokens);
    reopen(&bench, BUDGET); /* the log is empty */
    cr_assert(stat(database_of(&bench, path), &status) == 0);
    limit_files((rlim_t)status.st_size / 2);
    int done = bench.done;
    run_op(&bench, begin_remove, item);
    cr_expect(bench.done == done + 1);
    cr_expect(item->op.error.code == ERROR_NONE, "%s", item->op.error.message);
    limit_files(0);
    reopen(&bench, BUDGET); /* what was left is swept */
    cr_expect(bench.num_found == 0);
    store_close(bench.store);
    bench.store = NULL;
    cr_expect(session_database_number(bench.path, "SELECT count(*) FROM part") == 0);
    free(tokens);
    free_item(item);
    bench_close(&bench);
}

/* A large database is not checked before it is read. */
Test(store_database, a_large_corrupt_database_is_set_aside)
{
    struct bench bench;
    char path[512], name[32];
    size_t size;
    int32_t *tokens;
    bench_open(&bench);
    reopen(&bench, 4 * BUDGET);
    struct item *item = write_long(&bench, 18000000, &tokens);
    item->count = 70;
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "s%d", i);
        snprintf(item->own_name, sizeof item->own_name, "%s", name);
        write_item(&bench, item);
    }
    store_close(bench.store);
    bench.store = NULL;
    char *bytes = read_whole(database_of(&bench, path), &size);
    cr_assert(size > 64 << 20);
    for (size_t page = 1; page < size / 4096; page++) {
        const char *found = memmem(bytes + page * 4096, 4096, "{\"owner\"", 8);
        if (found && bytes[page * 4096] == 13 && page > size / 4096 - 10) {
            memset(bytes + page * 4096, 0x5a, 4096);
            break;
        }
    }
    write_whole(bench.path, "sessions.db", bytes, size);
    /* Without room for another it stays as it is. */
    struct error err = ERROR_INIT;
    snprintf(path, sizeof path, "%s/sessions.db.rejected", bench.path);
    limit_files(16 << 10);
    cr_expect(try_open(&bench, BUDGET, &err) != 0);
    limit_files(0);
    cr_expect(access(path, F_OK) != 0);
    bench.store = NULL;
    reopen(&bench, BUDGET);
    cr_expect(access(path, R_OK) == 0 && bench.num_found < 20);
    int found = bench.num_found;
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == found);
    free(bytes);
    free(tokens);
    free_item(item);
    bench_close(&bench);
}

/* A stop in the middle: the corrupt one has gone, and its log, of pages of old, has not. */
Test(store_database, a_copy_takes_the_place_of_what_was_set_aside)
{
    struct bench bench;
    char path[512], from[512];
    size_t size;
    sqlite3 *handle;
    bench_open(&bench);
    struct item *item = new_item(&bench, STORE_SESSION, "old", 70);
    write_item(&bench, item);
    store_close(bench.store);
    bench.store = NULL;
    /* A log with a change that the database lacks. */
    cr_assert(sqlite3_open(database_of(&bench, path), &handle) == SQLITE_OK);
    cr_assert(sqlite3_exec(handle, "DELETE FROM session", NULL, NULL, NULL) == SQLITE_OK);
    snprintf(from, sizeof from, "%s/sessions.db-wal", bench.path);
    char *log = read_whole(from, &size);
    cr_assert(size > 4096);
    sqlite3_close(handle);
    reopen(&bench, BUDGET);
    cr_assert(bench.num_found == 0);
    write_item(&bench, item);
    store_close(bench.store);
    bench.store = NULL;
    snprintf(from, sizeof from, "%s/sessions.db.new", bench.path);
    cr_assert(rename(database_of(&bench, path), from) == 0);
    write_whole(bench.path, "sessions.db-wal", log, size);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 1);
    free(log);
    free_item(item);
    bench_close(&bench);
}

Test(store_database, a_database_with_tables_of_others_is_set_aside)
{
    struct bench bench;
    char path[512];
    sqlite3 *handle;
    bench_open(&bench);
    store_close(bench.store);
    bench.store = NULL;
    cr_assert(sqlite3_open(database_of(&bench, path), &handle) == SQLITE_OK);
    cr_assert(sqlite3_exec(
                  handle, "CREATE TRIGGER t AFTER INSERT ON session BEGIN DELETE FROM session; END",
                  NULL, NULL, NULL) == SQLITE_OK);
    sqlite3_close(handle);
    reopen(&bench, BUDGET);
    struct item *item = new_item(&bench, STORE_SESSION, "s", 70);
    write_item(&bench, item);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 1);
    free_item(item);
    bench_close(&bench);
}

/* Pairs of the tokens of what_was_deleted_is_nowhere that are in the database or its log. */
static int marks_in(const struct bench *bench)
{
    char path[512];
    static const char *const files[] = {"sessions.db", "sessions.db-wal"};
    int found = 0;
    for (int f = 0; f < 2; f++) {
        size_t size;
        struct stat status;
        snprintf(path, sizeof path, "%s/%s", bench->path, files[f]);
        if (stat(path, &status) != 0)
            continue;
        char *bytes = read_whole(path, &size);
        for (size_t i = 0; i + 8 <= size; i++) {
            uint32_t pair[2];
            memcpy(pair, bytes + i, sizeof pair);
            found += pair[0] >> 22 == 0x40000000 >> 22 && pair[1] == pair[0] + 1;
        }
        free(bytes);
    }
    return found;
}

/* No byte of what was deleted is left, however often rows were written and moved. */
Test(store_database, what_was_deleted_is_nowhere)
{
    enum { SESSIONS = 40, ROUNDS = 400 };
    struct bench bench;
    int64_t counts[SESSIONS] = {0};
    uint32_t dice = 1;
    bench_open(&bench);
    struct item *item = new_item(&bench, STORE_SESSION, "s", 70);
    int32_t *tokens = malloc(3000 * sizeof *tokens);
    item->text = tokens;
    for (int round = 0; round < ROUNDS + SESSIONS; round++) {
        dice = dice * 1664525u + 1013904223u;
        if (round == ROUNDS)
            cr_expect(marks_in(&bench) > 0, "what is there can be found");
        int which = round < ROUNDS ? (int)(dice >> 8) % SESSIONS : round - ROUNDS;
        snprintf(item->own_name, sizeof item->own_name, "s%d", which);
        if (counts[which] > 0 && ((dice >> 20) % 3 == 0 || round >= ROUNDS)) {
            run_op(&bench, begin_remove, item);
            counts[which] = 0;
        } else if (round < ROUNDS) {
            item->fresh = counts[which] == 0;
            item->from = 0;
            counts[which] = item->count = 1 + (dice >> 12) % 2900;
            for (int i = 0; i < 3000; i++) /* which no page has by chance */
                tokens[i] = (int32_t)(0x40000000 | (uint32_t)which << 16 | (uint32_t)i);
            write_item(&bench, item);
        }
    }
    cr_expect(marks_in(&bench) == 0, "the log is empty, too");
    store_close(bench.store);
    bench.store = NULL;
    cr_expect(marks_in(&bench) == 0);
    free(tokens);
    free_item(item);
    bench_close(&bench);
}
