/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions over a store: what a restart knows of them. */
#include "lib/base/clock.h"
#include "server/states/session.h"
#include "server/states/session_meta.h"
#include "server/states/sessions.h"
#include "tests/unit/session_database.h"
#include "tests/unit/state_trees.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>

static struct sessions *sessions;
static char directory[64];
static double ttl_s;
static bool memory_only;
static int64_t texts_bytes, quota_bytes;
static struct session_clock set_clock; /* what the sessions read, if it is set */

static void read_set_clock(struct session_clock *now)
{
    *now = set_clock;
}

static void make_sessions(void)
{
    struct error err = ERROR_INIT;
    const struct sessions_options options = {.engine = engine,
                                             .tree = tree,
                                             .store = store,
                                             .ttl_s = ttl_s,
                                             .memory_only = memory_only,
                                             .texts_bytes = texts_bytes,
                                             .quota_bytes = quota_bytes,
                                             .read_clock =
                                                 set_clock.wall_s ? read_set_clock : NULL};
    cr_assert(sessions_create(&sessions, &options, &err) == 0, "%s", err.message);
}

static void on_found(const struct store_found *file)
{
    if (!sessions)
        make_sessions();
    sessions_found(sessions, file);
}

static void open_all(void)
{
    session_found = on_found;
    sessions = NULL;
    open_tree_on(4, 4, ROOM, directory, 100);
    if (!sessions)
        make_sessions();
}

static void close_all(void)
{
    sessions_free(sessions);
    close_tree();
}

static void nothing(void *context, const struct api_error *err)
{
    (void)context;
    (void)err;
}

/* A row as an earlier server would have left it. */
static void on_done(struct store_op *op)
{
    cr_assert(op->error.code == ERROR_NONE, "%s", op->error.message);
}

static void leave_row(const char *name, double used, int64_t tokens, time_t modified)
{
    struct session_meta meta = {.owner = "me", .id = "it", .created = used, .used = used};
    char text[SESSION_META_SIZE];
    int32_t some[LONG];
    make_text(some, LONG, 1, 0);
    struct store_commit commit = {.session.op.done = on_done,
                                  .meta = text,
                                  .meta_length = session_meta_encode(&meta, text),
                                  .tokens = some,
                                  .count = tokens,
                                  .fresh = true,
                                  .used_ns = (int64_t)modified * 1000000000};
    snprintf(commit.session.name, sizeof commit.session.name, "%s", name);
    store_commit(store, &commit);
    store_finish(store);
}

static double used(void)
{
    struct api_error err = {0};
    struct session *session = sessions_find(sessions, "me", "it", &err);
    struct session_view view;
    if (!session)
        return -1;
    session_view(sessions, session, &view);
    return view.used;
}

Test(sessions, a_use_without_a_change_outlives_the_server)
{
    struct api_error err = {0};
    const struct session *seen;
    double now = (double)time(NULL);
    make_directory(directory);
    open_all();
    leave_row("a", now - 1000, 10, (time_t)now - 1000);
    close_all();
    ttl_s = 2000;
    open_all();
    cr_expect(used() < now - 900);
    cr_assert(sessions_peek(sessions, "me", "it", 10, &seen, &err) == 0 && seen);
    close_all();
    open_all();
    cr_expect(used() > now - 2, "it was read");
    close_all();
    ttl_s = 10000;
    open_all();
    cr_expect(sessions_poll(sessions) > 9900, "and so it lives");
    close_all();
    remove_directory(directory);
}

/* 8 bytes a token and 1 KiB a session; turns may take three quarters. */
Test(sessions, turns_under_way_count_in_the_memory_of_all)
{
    struct session *first, *second;
    struct api_error err = {0};
    texts_bytes = 18000;
    make_directory(directory);
    open_all();
    cr_assert(sessions_bind(sessions, "me", "a", -1, &first, &err) == 0);
    cr_assert(sessions_bind(sessions, "me", "b", -1, &second, &err) == 0);
    cr_expect(sessions_admit(sessions, first, 1000, 0, &err) == 0);
    cr_expect(sessions_admit(sessions, second, 1000, 0, &err) == -1 &&
              err.code == API_SESSION_QUOTA);
    sessions_settle(first, &(struct session_content){0}, NULL, nothing, NULL);
    api_error_clear(&err);
    cr_expect(sessions_admit(sessions, second, 1, 18000, &err) == -1 &&
              err.code == API_SESSION_QUOTA);
    api_error_clear(&err);
    cr_expect(sessions_admit(sessions, second, 1000, 0, &err) == 0, "%s", err.message);
    sessions_settle(second, &(struct session_content){0}, NULL, nothing, NULL);
    close_all();
    remove_directory(directory);
}

Test(sessions, a_clock_that_goes_back_prolongs_nothing)
{
    double now = (double)time(NULL);
    make_directory(directory);
    open_all();
    leave_row("a", now + 5000, 10, (time_t)now + 4999);
    close_all();
    ttl_s = 500;
    open_all();
    double due = sessions_poll(sessions);
    cr_expect(due > 0 && due <= 500, "%g", due);
    double noted = used();
    cr_expect(noted > 0 && noted <= (double)clock_nanos(CLOCK_REALTIME) * 1e-9, "%f", noted);
    close_all();
    remove_directory(directory);
}

static void pass(double running_s, double wall_s)
{
    set_clock.running_s += running_s;
    set_clock.wall_s += wall_s;
}

/* The session "it", made and used as a request does. */
static void make_session(int64_t count)
{
    struct api_error err = {0};
    struct session *session;
    int32_t *some = malloc(LONG * sizeof *some);
    make_text(some, LONG, 1, 0);
    cr_assert(sessions_bind(sessions, "me", "it", -1, &session, &err) == 0, "%s", err.message);
    sessions_settle(session, &(struct session_content){.tokens = some, .count = count}, NULL,
                    nothing, NULL);
    store_finish(store);
}

/* A store with that session in it, at a time of our own; ttl: 0 for none. */
static void begin(double ttl)
{
    set_clock = (struct session_clock){.wall_s = 1.8e9, .running_s = 1000};
    ttl_s = ttl;
    make_directory(directory);
    open_all();
    make_session(10);
}

Test(sessions, a_wall_clock_that_jumps_ends_and_prolongs_nothing)
{
    begin(500);
    cr_expect_eq(sessions_poll(sessions), 500);
    pass(100, 1e6);
    cr_expect_eq(sessions_poll(sessions), 400, "it has not been unused for longer than that");
    pass(399, -2e6);
    cr_expect_eq(sessions_poll(sessions), 1);
    cr_expect(used() > 0, "499 of 500 seconds");
    pass(1, -1e6);
    sessions_poll(sessions);
    store_finish(store);
    cr_expect(used() < 0, "500 seconds");
    close_all();
    remove_directory(directory);
}

Test(sessions, looking_at_a_session_is_no_use_and_reading_it_is)
{
    struct api_error err = {0};
    const struct session *seen;
    begin(500);
    pass(400, 400);
    cr_expect_eq(used(), 1.8e9);
    cr_expect_eq(sessions_poll(sessions), 100);
    cr_assert(sessions_peek(sessions, "me", "it", 10, &seen, &err) == 0 && seen);
    cr_expect_eq(used(), 1.8e9 + 400);
    pass(100, 100);
    cr_expect_eq(sessions_poll(sessions), 400);
    close_all();
    remove_directory(directory);
}

static void expect_turns(const char *expected, size_t length)
{
    struct api_error err = {0};
    int64_t bytes;
    const char *turns = session_turns(sessions_find(sessions, "me", "it", &err), &bytes);
    cr_assert_eq(bytes, (int64_t)length);
    cr_expect(memcmp(turns, expected, length) == 0);
}

/* A turn of a chat that ends at `position`, of so many bytes. */
static void add_turn(char *turns, size_t *length, int64_t position, size_t bytes)
{
    char head[64];
    size_t begun = (size_t)snprintf(head, sizeof head, "%lld 1 1 {", (long long)position);
    memset(turns + *length, 'x', bytes);
    memcpy(turns + *length, head, begun);
    *length += bytes;
    turns[*length - 1] = '\n';
}

/* The session gets so many tokens, and these turns, with room behind both. */
static void take_turns_of(const char *id, int64_t count, const char *turns, size_t length)
{
    struct api_error err = {0};
    struct session *session;
    int32_t *some = malloc(LONG * sizeof *some);
    char *copy = malloc(2 * length);
    make_text(some, LONG, 1, 0);
    memcpy(copy, turns, length);
    cr_assert(sessions_bind(sessions, "me", id, -1, &session, &err) == 0, "%s", err.message);
    sessions_settle(
        session,
        &(struct session_content){
            .tokens = some, .count = count, .turns = copy, .turns_length = (int64_t)length},
        NULL, nothing, NULL);
    store_finish(store);
}

static void take_turns(int64_t count, const char *turns, size_t length)
{
    take_turns_of("it", count, turns, length);
}

static void check_turns_over_restarts(bool in_memory)
{
    enum { FIRST = 5000, SECOND = 3001, THIRD = 9000 };
    static char turns[FIRST + SECOND + THIRD];
    struct api_error err = {0};
    size_t length = 0;
    memory_only = in_memory;
    make_directory(directory);
    open_all();
    add_turn(turns, &length, 10, FIRST);
    take_turns(10, turns, length);
    add_turn(turns, &length, 20, SECOND);
    take_turns(20, turns, length);
    add_turn(turns, &length, 30, THIRD);
    take_turns(30, turns, length);
    close_all();
    open_all();
    expect_turns(turns, length);
    cr_assert(sessions_fork(sessions, "me", "it", "other", nothing, NULL, &err) == 0);
    store_finish(store);
    /* Back to between two turns, of which only the first is left; then another second one. */
    cr_assert(sessions_rewind(sessions, "me", "it", 29, nothing, NULL, &err) == 0);
    store_finish(store);
    expect_turns(turns, FIRST + SECOND);
    cr_assert(sessions_rewind(sessions, "me", "it", 10, nothing, NULL, &err) == 0);
    store_finish(store);
    close_all();
    open_all();
    expect_turns(turns, FIRST);
    length = FIRST;
    add_turn(turns, &length, 15, 200);
    take_turns(15, turns, length);
    close_all();
    open_all();
    expect_turns(turns, length);
    int64_t bytes;
    session_turns(sessions_find(sessions, "me", "other", &err), &bytes);
    cr_expect_eq(bytes, FIRST + SECOND + THIRD);
    close_all();
    remove_directory(directory);
}

Test(sessions, turns_of_a_chat_are_there_after_a_restart)
{
    check_turns_over_restarts(false);
}

Test(sessions, turns_of_a_chat_are_there_after_a_restart_when_written_behind)
{
    check_turns_over_restarts(true);
}

/* Bytes that its tokens and turns take, whatever of them are in use. */
static size_t taken_bytes(const struct session *session)
{
    return malloc_usable_size(session->tokens) + malloc_usable_size(session->turns);
}

/* What comes has room behind it, and what goes leaves some: only what is in use is counted. */
Test(sessions, have_no_more_memory_than_is_counted)
{
    enum { FIRST = 1000, SECOND = 50000, ROUNDING = 64 };
    static char turns[FIRST + SECOND];
    struct api_error err = {0};
    size_t first = 0;
    make_directory(directory);
    open_all();
    add_turn(turns, &first, 10, FIRST);
    size_t length = first;
    add_turn(turns, &length, 20, SECOND);
    take_turns(20, turns, length);
    const struct session *session = sessions_find(sessions, "me", "it", &err);
    cr_expect_leq(taken_bytes(session), 20 * sizeof(int32_t) + length + ROUNDING);
    cr_assert(sessions_rewind(sessions, "me", "it", 10, nothing, NULL, &err) == 0);
    store_finish(store);
    cr_expect_leq(taken_bytes(session), 10 * sizeof(int32_t) + first + ROUNDING);
    expect_turns(turns, first);
    cr_assert(sessions_rewind(sessions, "me", "it", 0, nothing, NULL, &err) == 0);
    store_finish(store);
    cr_expect_eq(taken_bytes(session), 0);
    close_all();
    remove_directory(directory);
}

Test(sessions, turns_count_in_the_quota_of_a_key)
{
    enum { TURNS = 1 << 20, LESS = 1000 };
    static char turns[TURNS];
    struct session *it, *other;
    struct api_error err = {0};
    size_t length = 0;
    make_directory(directory);
    open_all();
    quota_bytes = TURNS + TURNS / 2 + (int64_t)engine_state_bytes(engine, 10);
    sessions_free(sessions);
    make_sessions();
    add_turn(turns, &length, 10, TURNS);
    take_turns(10, turns, length);
    cr_assert(sessions_bind(sessions, "me", "other", -1, &other, &err) == 0);
    cr_expect(sessions_admit(sessions, other, 0, TURNS / 2 + 1, &err) == -1 &&
              err.code == API_SESSION_QUOTA);
    api_error_clear(&err);
    cr_expect(sessions_admit(sessions, other, 0, TURNS / 2 - LESS, &err) == 0, "%s", err.message);
    cr_assert(sessions_bind(sessions, "me", "it", -1, &it, &err) == 0);
    cr_expect(sessions_admit(sessions, it, 10, LESS + 1, &err) == -1 &&
                  err.code == API_SESSION_QUOTA,
              "what may come of the other counts");
    api_error_clear(&err);
    cr_expect(sessions_admit(sessions, it, 10, LESS, &err) == 0, "%s", err.message);
    sessions_settle(it, &(struct session_content){0}, NULL, nothing, NULL);
    sessions_settle(other, &(struct session_content){0}, NULL, nothing, NULL);
    cr_expect(sessions_fork(sessions, "me", "it", "copy", nothing, NULL, &err) == -1 &&
              err.code == API_SESSION_QUOTA);
    api_error_clear(&err);
    close_all();
    remove_directory(directory);
}

static bool is_there(const char *id)
{
    return sessions_find(sessions, "me", id, NULL) != NULL;
}

/* Those that were unused for longest, and only where that is enough. */
Test(sessions, responses_make_room_in_memory)
{
    enum { TURNS = 3000 };
    static char turns[TURNS];
    static const char *const IDS[] = {"resp_a", "resp_b", "plain"};
    const struct session *seen;
    struct session *other;
    struct api_error err = {0};
    size_t length = 0;
    texts_bytes = 18000;
    make_directory(directory);
    open_all();
    add_turn(turns, &length, 10, TURNS);
    for (int i = 0; i < 3; i++)
        take_turns_of(IDS[i], 10, turns, length);
    cr_assert(sessions_peek(sessions, "me", "resp_a", -1, &seen, &err) == 0 && seen);
    cr_assert(sessions_bind(sessions, "me", "other", -1, &other, &err) == 0);
    cr_expect(sessions_admit(sessions, other, 10, 4 * TURNS, &err) == -1 &&
              err.code == API_SESSION_QUOTA);
    api_error_clear(&err);
    store_finish(store);
    cr_expect(is_there("resp_a") && is_there("resp_b") && is_there("plain"));
    cr_expect(sessions_admit(sessions, other, 10, TURNS, &err) == 0, "%s", err.message);
    store_finish(store);
    cr_expect(is_there("resp_a") && !is_there("resp_b") && is_there("plain"));
    sessions_settle(other, &(struct session_content){0}, NULL, nothing, NULL);
    cr_assert(sessions_bind(sessions, "me", "other", -1, &other, &err) == 0);
    cr_expect(sessions_admit(sessions, other, 10, 2 * TURNS, &err) == 0, "%s", err.message);
    store_finish(store);
    cr_expect(!is_there("resp_a") && is_there("plain"));
    sessions_settle(other, &(struct session_content){0}, NULL, nothing, NULL);
    close_all();
    remove_directory(directory);
}

/* A server that had a session, used at 1.8e9, has ended. */
static void leave_session(double ttl)
{
    begin(ttl);
    close_all();
}

static void restart(double wall_s)
{
    set_clock = (struct session_clock){.wall_s = wall_s, .running_s = 5};
    open_all();
}

static void expect_alive(const char *why)
{
    store_finish(store);
    cr_expect(used() > 0, "%s", why);
}

/* The next poll ends it; then the test is over. */
static void expect_end(void)
{
    sessions_poll(sessions);
    store_finish(store);
    cr_expect(used() < 0, "it should be gone");
    close_all();
    remove_directory(directory);
}

Test(sessions, over_a_restart_the_wall_clock_counts)
{
    leave_session(10000);
    restart(1.8e9 + 4000);
    cr_expect_eq(sessions_poll(sessions), 6000);
    close_all();
    restart(1.8e9 + 10001);
    cr_expect_eq(sessions_poll(sessions), 3600, "it may be the clock that is wrong");
    pass(3599, 3599);
    cr_expect_eq(sessions_poll(sessions), 1);
    expect_alive("13600 of 10000 seconds, 3599 of them in this server");
    pass(1, 1);
    expect_end();
}

Test(sessions, a_short_time_to_live_begins_anew_with_a_restart)
{
    leave_session(500);
    restart(1.8e9 + 501);
    cr_expect_eq(sessions_poll(sessions), 500);
    expect_alive("501 of 500 seconds, none of them in this server");
    pass(500, 500);
    expect_end();
}

Test(sessions, a_clock_that_was_ahead_at_the_start_ends_nothing)
{
    leave_session(10000);
    restart(1.8e9 + 1e9);
    cr_expect_eq(sessions_poll(sessions), 3600);
    pass(3600, 4000 - 1e9);
    cr_expect_eq(sessions_poll(sessions), 6000, "by the clock as it is now");
    expect_alive("4000 of 10000 seconds");
    pass(6000, 6000);
    expect_end();
}

Test(sessions, a_clock_that_was_behind_at_the_start_ends_nothing)
{
    leave_session(10000);
    restart(1.8e9 - 1e9);
    cr_expect_eq(sessions_poll(sessions), 10000);
    pass(9999, 3e9);
    cr_expect_eq(sessions_poll(sessions), 1);
    expect_alive("it counts as used at the start");
    pass(1, 1);
    expect_end();
}

Test(sessions, after_its_first_use_a_session_has_nothing_to_do_with_the_wall_clock)
{
    struct api_error err = {0};
    const struct session *seen;
    leave_session(10000);
    restart(1.8e9 + 1e9);
    cr_assert(sessions_peek(sessions, "me", "it", 10, &seen, &err) == 0 && seen);
    pass(9999, -1e9);
    cr_expect_eq(sessions_poll(sessions), 1);
    pass(1, 0);
    expect_end();
}

Test(sessions, of_two_rows_of_a_name_the_older_goes)
{
    double now = (double)time(NULL);
    const struct session *seen;
    struct api_error err = {0};
    make_directory(directory);
    open_all();
    leave_row("a", now - 1000, 10, (time_t)now - 1000);
    leave_row("b", now - 500, 20, (time_t)now - 500);
    leave_row("c", now - 800, 30, (time_t)now - 800);
    close_all();
    open_all();
    cr_assert(sessions_peek(sessions, "me", "it", 20, &seen, &err) == 0 && seen);
    store_finish(store);
    cr_expect_eq(session_database_number(directory, "SELECT count(*) FROM session"), 1);
    cr_assert(sessions_remove(sessions, "me", "it", nothing, NULL, &err) == 0);
    close_all();
    open_all();
    cr_expect(used() < 0, "what was deleted is gone");
    close_all();
    remove_directory(directory);
}

/* Another writer has the database, and keeps it. */
static void block(bool blocked)
{
    static sqlite3 *other;
    char path[100];
    snprintf(path, sizeof path, "%s/sessions.db", directory);
    if (blocked) {
        cr_assert(sqlite3_open(path, &other) == SQLITE_OK);
        cr_assert(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK);
    } else {
        cr_assert(sqlite3_close(other) == SQLITE_OK);
    }
}

static void note_error(void *context, const struct api_error *err)
{
    *(struct api_error *)context = err ? *err : (struct api_error){0};
}

/* Deletes "it"; what its client is told. */
static struct api_error delete_session(void)
{
    struct api_error told = {.code = API_INTERNAL, .message = "nothing"}, err = {0};
    cr_assert(sessions_remove(sessions, "me", "it", note_error, &told, &err) == 0, "%s",
              err.message);
    store_finish(store);
    return told;
}

Test(sessions, what_cannot_be_deleted_stays_and_is_deleted_again)
{
    begin(0);
    block(true);
    struct api_error told = delete_session();
    cr_expect_eq(told.code, API_STORE_FAILED);
    cr_expect(strstr(told.message, "is as it was"), "%s", told.message);
    cr_expect(used() > 0, "it is there");
    block(false);
    cr_expect(sessions_poll(sessions) >= 0, "it is tried whether the disk takes commits again");
    close_all();
    open_all();
    cr_expect(used() > 0, "and after a restart");
    told = delete_session();
    cr_expect_eq(told.code, API_OK, "%s", told.message);
    cr_expect(used() < 0);
    close_all();
    open_all();
    cr_expect(used() < 0, "what was deleted is gone");
    close_all();
    remove_directory(directory);
}

Test(sessions, what_has_lived_its_time_and_cannot_be_removed_is_removed_later)
{
    begin(500);
    block(true);
    pass(500, 500);
    double due = sessions_poll(sessions);
    expect_alive("its row cannot be removed");
    cr_expect(due > 0 && due < 10, "%g", due);
    block(false);
    pass(due, due);
    expect_end();
}

/* Gives "it" a turn of so many tokens more; what its client is told. */
static struct api_error claimed_turn(int64_t count, const struct store_reply *claim)
{
    struct api_error told = {.code = API_INTERNAL, .message = "nothing"}, err = {0};
    struct session *session;
    int32_t *some = malloc(LONG * sizeof *some);
    make_text(some, LONG, 1, 0);
    cr_assert(sessions_bind(sessions, "me", "it", -1, &session, &err) == 0, "%s", err.message);
    sessions_settle(session, &(struct session_content){.tokens = some, .count = count}, claim,
                    note_error, &told);
    store_finish(store);
    return told;
}

static struct api_error turn(int64_t count)
{
    return claimed_turn(count, NULL);
}

static int64_t position(void)
{
    struct api_error err = {0};
    struct session_view view;
    struct session *session = sessions_find(sessions, "me", "it", &err);
    if (!session)
        return -1;
    session_view(sessions, session, &view);
    return view.position;
}

Test(sessions, a_turn_that_cannot_be_committed_was_not_made)
{
    begin(0);
    block(true);
    struct api_error told = turn(20), err = {0};
    cr_expect_eq(told.code, API_STORE_FAILED);
    cr_expect_eq(position(), 10);
    struct store_report state;
    store_report(store, &state);
    cr_expect(state.failing);
    cr_assert(sessions_rewind(sessions, "me", "it", 5, note_error, &told, &err) == 0);
    store_finish(store);
    cr_assert(sessions_fork(sessions, "me", "it", "other", nothing, NULL, &err) == 0);
    store_finish(store);
    cr_expect_eq(told.code, API_STORE_FAILED);
    cr_expect_eq(position(), 10);
    cr_expect_null(sessions_find(sessions, "me", "other", NULL));
    block(false);
    cr_expect_eq(turn(30).code, API_OK);
    close_all();
    open_all();
    cr_expect_eq(position(), 30);
    close_all();
    remove_directory(directory);
}

Test(sessions, with_memory_a_turn_is_told_at_once_and_written_later)
{
    memory_only = true;
    begin(0);
    block(true);
    cr_expect_eq(turn(20).code, API_OK);
    cr_expect_eq(position(), 20);
    cr_expect_eq(sessions_unsaved(sessions), 1);
    sessions_save_all(sessions, clock_seconds() + 3);
    cr_expect_eq(sessions_unsaved(sessions), 1, "and it says so");
    block(false);
    cr_expect_eq(turn(25).code, API_OK);
    sessions_save_all(sessions, clock_seconds() + 10);
    cr_expect_eq(sessions_unsaved(sessions), 0);
    close_all();
    open_all();
    cr_expect_eq(position(), 25);
    close_all();
    remove_directory(directory);
}

/* The store has the turn and whose it was together, when it has it; and knows nothing of it once
 * the session is gone. */
Test(sessions, with_memory_a_turn_comes_with_its_claim)
{
    struct store_reply claims[2];
    memory_only = true;
    begin(0);
    for (int i = 0; i < 2; i++)
        claims[i] = (struct store_reply){.name = i ? "second" : "first",
                                         .name_length = i ? 6 : 5,
                                         .error = "",
                                         .expires_ns = INT64_MAX};
    block(true);
    cr_expect_eq(claimed_turn(20, &claims[0]).code, API_OK);
    cr_expect_eq(claimed_turn(22, &claims[1]).code, API_OK);
    block(false);
    sessions_save_all(sessions, clock_seconds() + 10);
    cr_expect_eq(session_database_number(directory,
                                         "SELECT count(*) FROM reply WHERE status = 0 AND session ="
                                         " (SELECT name FROM session)"),
                 2);
    block(true);
    cr_expect_eq(turn(25).code, API_OK);
    cr_expect_eq(sessions_unsaved(sessions), 1);
    block(false);
    cr_expect_eq(delete_session().code, API_OK);
    cr_expect_eq(
        session_database_number(directory, "SELECT count(*) FROM reply WHERE session = 'deleted'"),
        2);
    close_all();
    remove_directory(directory);
}

static int64_t log_bytes(void)
{
    char path[100];
    struct stat status;
    snprintf(path, sizeof path, "%s/sessions.db-wal", directory);
    return stat(path, &status) == 0 ? (int64_t)status.st_size : 0;
}

/* Fewer tokens and then more, before the store has either: what it had leaves its log, too. */
Test(sessions, with_memory_what_a_rewind_took_back_leaves_the_log)
{
    struct api_error told = {0}, err = {0};
    memory_only = true;
    begin(0);
    cr_expect_eq(turn(30).code, API_OK);
    cr_expect(log_bytes() > 0);
    block(true);
    cr_assert(sessions_rewind(sessions, "me", "it", 5, note_error, &told, &err) == 0);
    cr_expect_eq(turn(40).code, API_OK);
    block(false);
    sessions_save_all(sessions, clock_seconds() + 10);
    cr_expect_eq(sessions_unsaved(sessions), 0);
    cr_expect_eq(log_bytes(), 0);
    close_all();
    remove_directory(directory);
}

Test(sessions, who_waits_for_a_disk_that_does_not_answer_is_told)
{
    struct api_error told = {0}, drains = {0}, err = {0};
    struct session *session;
    int32_t *some = malloc(LONG * sizeof *some);
    api_error_set(&drains, API_DRAINING, NULL, "the end");
    make_text(some, LONG, 1, 0);
    begin(0);
    block(true);
    cr_assert(sessions_bind(sessions, "me", "it", -1, &session, &err) == 0);
    sessions_settle(session, &(struct session_content){.tokens = some, .count = 20}, NULL,
                    note_error, &told);
    cr_expect_eq(told.code, API_OK, "it waits");
    cr_expect_eq(sessions_unsaved(sessions), 1);
    sessions_give_up(sessions, &drains);
    cr_expect_eq(told.code, API_DRAINING);
    block(false);
    store_finish(store);
    cr_expect_eq(position(), 20, "it was made after all");
    close_all();
    remove_directory(directory);
}
