/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of states: what is written is found again, what is not whole never is. */
#include "server/store/store_backends.h"
#include "server/store/store_directory.h"
#include "tests/unit/store_bench.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

Test(store, there_and_back_and_over_a_restart)
{
    struct bench bench;
    bench_open(&bench);
    struct item *session = new_item(&bench, STORE_SESSION, "s1", 70);
    struct item *state = new_item(&bench, STORE_CHECKPOINT, "0123456789abcdef0123456789abcdef", 70);
    write_item(&bench, session);
    write_item(&bench, state);
    expect_accounts(&bench, 1, 1, 0);
    cr_expect(there(&bench, "checkpoints/0123456789abcdef0123456789abcdef.state"));
    for (int round = 0; round < 2; round++) {
        memset(state->image_out, 0, state_image_bytes(bench.engine, 70));
        memset(state->logits_out, 0, sizeof state->logits_out);
        run_op(&bench, begin_read, state);
        cr_expect(state->op.error.code == ERROR_NONE, "%s", state->op.error.message);
        cr_expect(memcmp(state->image, state->image_out, state_image_bytes(bench.engine, 70)) == 0);
        cr_expect(memcmp(state->logits, state->logits_out, sizeof state->logits) == 0);
        reopen(&bench, BUDGET);
        expect_accounts(&bench, 1, 1, 0);
        cr_assert(bench.num_found == 2);
        const struct found *found = bench.found;
        cr_expect(found[0].kind == STORE_SESSION && strcmp(found[0].name, "s1") == 0);
        cr_expect(strcmp(found[0].meta, session->meta) == 0 && found[0].position == 0);
        cr_expect(found[0].count == 70 && found[0].last_token == session->tokens[69]);
        cr_expect(found[1].kind == STORE_CHECKPOINT && found[1].position == 70 && found[1].logits);
        cr_expect(found[1].bytes == store_file_bytes(bench.store, 70, 70, true, true, 14));
    }
    session->count = 90; /* goes on */
    session->from = 70;
    session->fresh = false;
    write_item(&bench, session);
    expect_accounts(&bench, 1, 1, 0);
    run_op(&bench, begin_remove, state);
    cr_expect(state->op.error.code == ERROR_NONE);
    run_op(&bench, begin_remove, state); /* gone already */
    cr_expect(state->op.error.code == ERROR_NONE);
    expect_accounts(&bench, 1, 0, 0);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 1 && bench.found[0].count == 90);
    run_op(&bench, begin_read, state);
    cr_expect(state->op.error.code == ERROR_IO);
    free_item(session);
    free_item(state);
    bench_close(&bench);
}

Test(store, of_two_servers_one_gets_the_directory)
{
    struct bench bench, other;
    bench_open(&bench);
    other = bench;
    other.store = NULL;
    struct error err = ERROR_INIT;
    char expected[64];
    snprintf(expected, sizeof expected, "another server uses it (process %ld)", (long)getpid());
    cr_expect(try_open(&other, BUDGET, &err) == -1 && other.store == NULL);
    cr_expect(strstr(err.message, expected) != NULL, "%s", err.message);
    error_clear(&err);
    store_close(bench.store);
    bench.store = NULL;
    cr_expect(try_open(&other, BUDGET, &err) == 0, "%s", err.message);
    store_close(other.store);
    snprintf(other.path, sizeof other.path, "/dev/null");
    cr_expect(try_open(&other, BUDGET, &err) == -1);
    cr_expect(strstr(err.message, "/dev/null: cannot") != NULL, "%s", err.message);
    bench_close(&bench);
}

Test(store, what_is_not_whole_is_set_aside_at_the_start)
{
    static const char *const names[] = {"good", "short", "head", "tokens", "cut"};
    struct bench bench;
    char path[512], to[512];
    bench_open(&bench);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct item *item = new_item(&bench, STORE_CHECKPOINT, names[i], 10);
        write_item(&bench, item);
        free_item(item);
    }
    damage(&bench, "checkpoints/short.state", -1);
    damage(&bench, "checkpoints/head.state", 50);
    damage(&bench, "checkpoints/tokens.state", 216 + 16);
    write_whole(bench.folder, "checkpoints/cut.state", "", 0);
    write_whole(bench.folder, "checkpoints/torn.state.tmp", "torn", 4);
    cr_assert(mkdir(path_of(&bench, "sessions", path), 0700) == 0); /* of regla 0.2 */
    write_whole(bench.folder, "sessions/strange.txt", "what?", 5);
    write_whole(bench.folder, "sessions/foreign.session", "no state file", 13);
    cr_assert(mkfifo(path_of(&bench, "checkpoints/pipe.state", path), 0600) == 0);
    cr_assert(symlink("good.state", path_of(&bench, "checkpoints/link.state", path)) == 0);
    path_of(&bench, "checkpoints/good.state", path);
    cr_assert(link(path, path_of(&bench, "sessions/state.session", to)) == 0);
    cr_assert(link(path, path_of(&bench,
                                 "checkpoints/"
                                 "a_name_that_is_longer_than_any_of_ours.state",
                                 to)) == 0);
    /* checkpoints can be computed again: theirs take no room */
    static const char *const aside[] = {
        "checkpoints/short.state",
        "checkpoints/head.state",
        "checkpoints/tokens.state",
        "checkpoints/cut.state",
        "sessions/foreign.session",
        "sessions/state.session",
        "checkpoints/pipe.state",
        "checkpoints/link.state",
        "checkpoints/a_name_that_is_longer_than_any_of_ours.state",
    };
    for (int round = 0; round < 2; round++) {
        reopen(&bench, BUDGET);
        cr_expect(bench.num_found == 1 && strcmp(bench.found[0].name, "good") == 0);
        for (size_t i = 0; i < sizeof aside / sizeof *aside; i++) {
            char rejected[256];
            bool kept = strncmp(aside[i], "sessions/", 9) == 0;
            snprintf(rejected, sizeof rejected, "%s.rejected", aside[i]);
            cr_expect(!there(&bench, aside[i]) && there(&bench, rejected) == kept, "%s", aside[i]);
        }
        cr_expect(!there(&bench, "checkpoints/torn.state.tmp"));
        struct store_report report;
        store_report(bench.store, &report);
        cr_expect(report.checkpoint_files == 1 && report.sessions == 0);
        cr_expect(report.failures == (round == 0 ? 9 : 0));
    }
    write_whole(bench.folder, "sessions/foreign.session", "again", 5);
    reopen(&bench, BUDGET);
    cr_expect(there(&bench, "sessions/foreign.session.rejected") &&
              there(&bench, "sessions/foreign.session.1.rejected"));
    bench_close(&bench);
}

Test(store, a_checkpoint_that_is_not_whole_goes_when_it_is_read)
{
    struct bench bench;
    bench_open(&bench);
    struct item *item = new_item(&bench, STORE_CHECKPOINT, "x", 70);
    write_item(&bench, item);
    damage(&bench, "checkpoints/x.state", 9000); /* in the state: the scan does not see it */
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 1);
    run_op(&bench, begin_read, item);
    cr_expect(item->op.error.code == ERROR_INVALID, "%s", item->op.error.message);
    cr_expect(strstr(item->op.error.message, "checkpoints/x.state: state file: corrupt: STATE") !=
                  NULL,
              "%s", item->op.error.message);
    cr_expect(!there(&bench, "checkpoints/x.state") &&
              !there(&bench, "checkpoints/x.state.rejected"));
    expect_accounts(&bench, 0, 0, 0);
    write_item(&bench, item);
    item->tokens[3]++;
    run_op(&bench, begin_read, item);
    cr_expect(item->op.error.code == ERROR_INVALID && strstr(item->op.error.message, "tokens"));
    expect_accounts(&bench, 0, 0, 0);
    write_item(&bench, item);
    item->position = 69;
    run_op(&bench, begin_read, item);
    cr_expect(item->op.error.code == ERROR_INVALID &&
              strstr(item->op.error.message, "expected position 69 of 70 tokens, got 70 of 70"));
    free_item(item);
    bench_close(&bench);
}

Test(store, the_budget_is_kept)
{
    struct bench bench;
    struct store_report report;
    bench_open(&bench);
    int64_t one = store_file_bytes(bench.store, 10, 10, true, true, 14);
    store_close(bench.store);
    bench.store = NULL;
    reopen(&bench, database_bytes(&bench) + 2 * one + 100);
    struct item *items[3];
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "c%d", i);
        items[i] = new_item(&bench, STORE_CHECKPOINT, name, 10);
        run_op(&bench, begin_write, items[i]);
        store_report(bench.store, &report);
        cr_expect(items[i]->op.error.code == (i < 2 ? ERROR_NONE : ERROR_NO_MEMORY));
        cr_expect(report.bytes <= report.budget_bytes);
    }
    expect_accounts(&bench, 0, 2, 0);
    run_op(&bench, begin_remove, items[0]);
    run_op(&bench, begin_write, items[2]);
    store_report(bench.store, &report);
    cr_expect(items[2]->op.error.code == ERROR_NONE && report.failures == 0,
              "the disk refused nothing");
    expect_accounts(&bench, 0, 2, 0);
    struct item *session = new_item(&bench, STORE_SESSION, "s", 100);
    run_op(&bench, begin_write, session);
    store_report(bench.store, &report);
    cr_expect(session->op.error.code == ERROR_NO_MEMORY && report.full);
    cr_expect(!report.failing, "no disk is to blame");
    run_op(&bench, begin_write, items[0]);
    store_report(bench.store, &report);
    cr_expect(report.full, "what a checkpoint finds says nothing of sessions");
    run_op(&bench, begin_remove, items[1]);
    write_item(&bench, session);
    store_report(bench.store, &report);
    cr_expect(!report.full);
    run_op(&bench, begin_write, items[1]);
    store_report(bench.store, &report);
    cr_expect(items[1]->op.error.code == ERROR_NO_MEMORY && !report.full);
    free_item(session);
    for (int i = 0; i < 3; i++)
        free_item(items[i]);
    bench_close(&bench);
}

/* Until so many operations have failed; < 0: until the last has not. */
static void wait_for_report(struct bench *bench, int64_t failures)
{
    struct store_report report;
    const struct timespec pause = {0, 1000000};
    do {
        nanosleep(&pause, NULL);
        store_report(bench->store, &report);
    } while (failures < 0 ? report.failing : report.failures < failures);
}

/* The kernel refuses to write past the limit, as it would on a full disk. */
Test(store, without_room_on_the_disk_nothing_stays)
{
    struct bench bench;
    struct store_report report;
    bench_open(&bench);
    struct item *session = new_item(&bench, STORE_SESSION, "s", 10);
    struct item *state = new_item(&bench, STORE_CHECKPOINT, "c", 70);
    write_item(&bench, session);
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 4096;
    cr_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (int i = 0; i < 3; i++)
        run_op(&bench, begin_write, state);
    cr_expect(state->op.error.code == ERROR_NO_MEMORY, "%s", state->op.error.message);
    store_report(bench.store, &report);
    cr_expect(!report.full && !report.failing && report.failures == 3);
    expect_accounts(&bench, 1, 0, 0);
    session->count = 20;
    session->from = 10;
    session->fresh = false;
    run_op(&bench, begin_write, session);
    store_report(bench.store, &report);
    cr_expect(session->op.error.code == ERROR_NO_MEMORY, "%s", session->op.error.message);
    cr_expect(report.full && report.failing && report.failures == 5);
    store_probe(bench.store);
    wait_for_report(&bench, 6);
    store_report(bench.store, &report);
    cr_expect(report.failing, "and it says so");
    expect_accounts(&bench, 1, 0, 0);
    cr_assert(setrlimit(RLIMIT_FSIZE, &before) == 0);
    store_probe(bench.store);
    wait_for_report(&bench, -1);
    store_report(bench.store, &report);
    cr_expect(!report.failing && !report.full);
    write_item(&bench, state);
    expect_accounts(&bench, 1, 1, 0);
    free_item(session);
    free_item(state);
    bench_close(&bench);
}

/* Many operations at once: each file ends as the last that was said of it, also across a close. */
Test(store, operations_on_a_file_run_in_order)
{
    enum { FILES = 20 };
    struct bench bench;
    bench_open(&bench);
    struct item *writes[FILES], *removes[FILES];
    for (int i = 0; i < FILES; i++) {
        char name[8];
        snprintf(name, sizeof name, "f%d", i);
        writes[i] = new_item(&bench, i % 2 ? STORE_SESSION : STORE_CHECKPOINT, name, 10);
        removes[i] = new_item(&bench, i % 2 ? STORE_SESSION : STORE_CHECKPOINT, name, 10);
    }
    for (int round = 0; round < 2; round++) {
        int done = bench.done;
        for (int i = 0; i < FILES; i++)
            begin_write(bench.store, writes[i]);
        for (int i = 0; i < FILES - 4; i++)
            begin_remove(bench.store, removes[i]);
        if (round == 0) {
            drain(&bench);
            cr_expect(bench.done == done + 2 * FILES - 4);
            cr_expect(!store_poll(bench.store));
        } else {
            reopen(&bench, BUDGET); /* ends them, and says nothing */
            cr_expect(bench.done == done && bench.num_found == 4);
        }
        expect_accounts(&bench, 2, 2, 0);
    }
    for (int i = 0; i < FILES; i++) {
        free_item(writes[i]);
        free_item(removes[i]);
    }
    bench_close(&bench);
}

static struct bench *watched;
static int row_place; /* how many were done before it */

static void row_done(struct store_op *op)
{
    (void)op;
    row_place = watched->done++;
}

/* However many files are to be read, a row does not wait for all of them. */
Test(store, reads_take_turns_with_rows)
{
    enum { READS = 300 };
    struct bench bench;
    struct item *reads[READS];
    bench_open(&bench);
    watched = &bench;
    struct item *row = new_item(&bench, STORE_SESSION, "row", 10);
    struct item *file = new_item(&bench, STORE_CHECKPOINT, "file", 190);
    write_item(&bench, file);
    for (int i = 0; i < READS; i++)
        reads[i] = new_item(&bench, STORE_CHECKPOINT, "file", 190);
    row->told = row_done;
    bench.done = 0;
    for (int i = 0; i < READS; i++)
        begin_read(bench.store, reads[i]);
    begin_write(bench.store, row);
    drain(&bench);
    cr_expect(bench.done == READS + 1 && row->op.error.code == ERROR_NONE);
    cr_expect(row_place < READS, "after %d of %d reads", row_place, READS);
    for (int i = 0; i < READS; i++)
        free_item(reads[i]);
    free_item(row);
    free_item(file);
    bench_close(&bench);
}

/* Writes versions of three files, each with one token more, until it is killed. */
static void write_for_ever(struct bench *bench, int started)
{
    struct item *items[3];
    struct error err = ERROR_INIT;
    if (try_open(bench, BUDGET, &err) != 0)
        _exit(1);
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "k%d", i);
        items[i] = new_item(bench, i == 0 ? STORE_CHECKPOINT : STORE_SESSION, name, 70);
    }
    for (int count = 71;; count = count == 199 ? 71 : count + 1) {
        for (int i = 0; i < 3; i++) {
            items[i]->count = count;
            run_op(bench, begin_write, items[i]);
            items[i]->fresh = false;
        }
        if (count == 71 && write(started, "", 1) != 1)
            _exit(1);
    }
}

Test(store, killed_at_any_moment_it_leaves_whole_files)
{
    enum { KILLS = 30 };
    struct bench bench;
    bench_open(&bench);
    store_close(bench.store);
    bench.store = NULL;
    for (int round = 0; round < KILLS; round++) {
        int ends[2];
        char byte;
        cr_assert(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0)
            write_for_ever(&bench, ends[1]);
        cr_assert(child > 0 && read(ends[0], &byte, 1) == 1);
        /* somewhere within some writes */
        const struct timespec moment = {0, (long)((uint32_t)round * 2654435761u % 10000000)};
        nanosleep(&moment, NULL);
        int status;
        cr_assert(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        close(ends[0]);
        close(ends[1]);
        reopen(&bench, BUDGET);
        cr_assert(bench.num_found == 3, "%d", bench.num_found);
        expect_accounts(&bench, 2, 1, 0);
        for (int i = 0; i < 3; i++) {
            const struct found *found = &bench.found[i];
            cr_assert(found->count >= 71 && found->count < 200);
            cr_assert(found->last_token == text_token(bench.engine, 1, found->count - 1));
        }
        store_close(bench.store);
        bench.store = NULL;
    }
    bench_close(&bench);
}

Test(store, owners_are_told_apart_by_a_keyed_hash)
{
    struct bench bench, other;
    char tags[5][STORE_OWNER_SIZE], path[128];
    bench_open(&bench);
    bench_open(&other);
    store_owner_tag(bench.store, "", tags[0]);
    store_owner_tag(bench.store, "sk-1", tags[1]);
    store_owner_tag(bench.store, "sk-2", tags[2]);
    store_owner_tag(other.store, "sk-1", tags[3]);
    for (int i = 0; i < 4; i++) {
        cr_expect(strlen(tags[i]) == 32);
        for (int j = 0; j < i; j++)
            cr_expect(strcmp(tags[i], tags[j]) != 0);
    }
    reopen(&bench, BUDGET);
    store_owner_tag(bench.store, "sk-1", tags[4]);
    cr_expect(strcmp(tags[1], tags[4]) == 0);
    struct stat status;
    snprintf(path, sizeof path, "%s/secret", bench.path);
    cr_expect(stat(path, &status) == 0 && status.st_size == 16 && (status.st_mode & 0777) == 0600);
    store_close(bench.store);
    bench.store = NULL;
    write_whole(bench.path, "secret", "short", 5);
    struct error err = ERROR_INIT;
    cr_expect(try_open(&bench, BUDGET, &err) == -1 && strstr(err.message, "secret: expected 16"));
    bench_close(&bench);
    bench_close(&other);
}

Test(store, a_location_without_a_scheme_that_we_know_is_a_directory)
{
    const char *const locations[] = {"", "/var/lib/regla", "states", "nowhere://states", "://"};
    for (size_t i = 0; i < sizeof locations / sizeof *locations; i++)
        cr_expect(store_backends_find(locations[i]) == &store_directory, "%s", locations[i]);
}

/* A limit that the first file found lowers: the next folder cannot be opened. */
static void found_and_no_more(void *context, const struct store_found *file)
{
    struct rlimit limit;
    struct bench *bench = context;
    cr_assert(bench->store != NULL);
    bench->num_found++;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 3;
    cr_assert(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    static struct item gone;
    gone.told = on_done;
    gone.done = &bench->done;
    snprintf(gone.own_name, sizeof gone.own_name, "%s", file->name);
    gone.name = gone.own_name;
    begin_remove(bench->store, &gone);
}

Test(store, a_scan_that_fails_leaves_what_was_begun_to_its_end)
{
    struct bench bench;
    struct error err = ERROR_INIT;
    bench_open(&bench);
    struct item *session = new_item(&bench, STORE_SESSION, "s", 10);
    write_item(&bench, session);
    store_close(bench.store);
    bench.store = NULL;
    bench.num_found = 0;
    int done = bench.done;
    const struct store_options options = {.location = bench.path,
                                          .budget_bytes = BUDGET,
                                          .found = found_and_no_more,
                                          .found_context = &bench};
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    cr_expect(store_open(&bench.store, bench.engine, &options, &err) == -1);
    cr_assert(setrlimit(RLIMIT_NOFILE, &before) == 0);
    cr_expect(bench.num_found == 1 && err.code == ERROR_IO, "%s", err.message);
    cr_assert(bench.store != NULL, "the caller still has to close it");
    store_finish(bench.store);
    cr_expect(bench.done == done + 1);
    reopen(&bench, BUDGET);
    cr_expect(bench.num_found == 0);
    free_item(session);
    bench_close(&bench);
}

static void only_touched(void *context, const struct store_found *file)
{
    int64_t *modified = context;
    *modified = file->modified_ns;
}

Test(store, a_session_that_is_touched_is_as_of_now)
{
    struct bench bench;
    struct error err = ERROR_INIT;
    int64_t modified = 0;
    bench_open(&bench);
    struct item *session = new_item(&bench, STORE_SESSION, "s", 10);
    run_op(&bench, begin_use, session);
    cr_expect(session->op.error.code == ERROR_NONE, "what is missing is no error");
    session->used_ns = 1000 * (int64_t)1000000000;
    write_item(&bench, session);
    const struct store_options options = {.location = bench.path,
                                          .budget_bytes = BUDGET,
                                          .found = only_touched,
                                          .found_context = &modified};
    for (int round = 0; round < 2; round++) {
        store_close(bench.store);
        cr_assert(store_open(&bench.store, bench.engine, &options, &err) == 0, "%s", err.message);
        if (round == 0) {
            cr_expect_eq(modified, 1000 * (int64_t)1000000000);
            session->used_ns = 0;
            run_op_unwoken(&bench, begin_use, session);
        }
    }
    cr_expect(llabs(modified / 1000000000 - (int64_t)time(NULL)) < 3600);
    free_item(session);
    bench_close(&bench);
}

/* What was removed for it first, however many files, makes its room. */
Test(store, a_session_has_the_room_that_was_made_for_it)
{
    enum { FILES = 12, ROUNDS = 20, TURNS = 300 * 1024 };
    static char turns[TURNS];
    struct bench bench;
    struct item *files[FILES];
    bench_open(&bench);
    struct item *session = new_item(&bench, STORE_SESSION, "s", 100);
    session->turns = memset(turns, ' ', TURNS);
    session->turns_length = TURNS;
    const int64_t needed = store_commit_bytes(commit_of(session));
    const int64_t one = store_file_bytes(bench.store, 4, 4, true, true, 14);
    cr_assert(FILES * one > needed && one < needed / 4, "%lld of %lld", (long long)one,
              (long long)needed);
    store_close(bench.store);
    bench.store = NULL;
    for (int round = 0; round < ROUNDS; round++) {
        struct store_report report;
        reopen(&bench, BUDGET); /* and the log is empty */
        store_report(bench.store, &report);
        const int64_t kept = report.bytes - report.checkpoint_files * one;
        reopen(&bench, kept + FILES * one);
        for (int i = 0; i < FILES; i++) {
            char name[8];
            snprintf(name, sizeof name, "f%d", i);
            files[i] = new_item(&bench, STORE_CHECKPOINT, name, 4);
            write_item(&bench, files[i]);
        }
        for (int i = 0; i < FILES; i++)
            begin_remove(bench.store, files[i]);
        begin_write(bench.store, session);
        drain(&bench);
        cr_assert(session->op.error.code == ERROR_NONE, "round %d: %s", round,
                  session->op.error.message);
        run_op(&bench, begin_remove, session);
        for (int i = 0; i < FILES; i++)
            free_item(files[i]);
    }
    free_item(session);
    bench_close(&bench);
}

/* What it is said to need is what it needs. */
Test(store, a_session_fits_the_bytes_that_it_is_said_to_need)
{
    struct bench bench;
    struct store_report report;
    bench_open(&bench);
    struct item *session = new_item(&bench, STORE_SESSION, "s", 200);
    const int64_t needed = store_commit_bytes(commit_of(session));
    store_close(bench.store);
    bench.store = NULL;
    reopen(&bench, database_bytes(&bench) + needed);
    store_report(bench.store, &report);
    cr_assert(report.budget_bytes - report.bytes == needed, "%lld, not %lld",
              (long long)(report.budget_bytes - report.bytes), (long long)needed);
    write_item(&bench, session);
    store_report(bench.store, &report);
    cr_expect(report.bytes <= report.budget_bytes);
    free_item(session);
    bench_close(&bench);
}

/* Batches of sessions until none is taken any more: what a commit writes to the log, and what the
 * database takes from it later, fit the budget together. */
Test(store, sessions_stay_within_the_budget)
{
    enum { BATCH = 12, ROUNDS = 40, SMALL = 600 * 1024 };
    struct bench bench;
    struct store_report report;
    int taken = 0, refused = 0;
    bench_open(&bench);
    reopen(&bench, SMALL);
    for (int round = 0; round < ROUNDS; round++) {
        struct item *items[BATCH];
        for (int i = 0; i < BATCH; i++) {
            char name[16];
            snprintf(name, sizeof name, "s%d", round * BATCH + i);
            items[i] = new_item(&bench, STORE_SESSION, name, 70);
            begin_write(bench.store, items[i]);
        }
        while (store_poll(bench.store)) {
            store_report(bench.store, &report);
            cr_assert(report.bytes <= SMALL, "round %d: %lld", round, (long long)report.bytes);
        }
        drain(&bench);
        store_report(bench.store, &report);
        cr_assert(report.bytes <= SMALL, "round %d: %lld", round, (long long)report.bytes);
        cr_assert(size_in(&bench, "sessions.db") + size_in(&bench, "sessions.db-wal") <= SMALL);
        for (int i = 0; i < BATCH; i++) {
            *(items[i]->op.error.code == ERROR_NONE ? &taken : &refused) += 1;
            free_item(items[i]);
        }
    }
    cr_expect(taken > SMALL / 4096 / 2 && refused > BATCH, "%d and %d", taken, refused);
    expect_accounts(&bench, taken, 0, 0);
    bench_close(&bench);
}
