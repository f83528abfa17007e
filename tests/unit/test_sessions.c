/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions over a store: what a restart knows of them. */
#include "engine/base/clock.h"
#include "server/states/session_meta.h"
#include "server/states/sessions.h"
#include "tests/unit/state_trees.h"

#include <fcntl.h>
#include <sys/stat.h>

static struct sessions *sessions;
static char directory[64];
static double ttl_s;
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

static void nothing(void *context, const struct error *err)
{
    (void)context;
    (void)err;
}

/* A file as an earlier server would have left it. */
static void on_done(struct store_op *op)
{
    cr_assert(op->error.code == ERROR_NONE, "%s", op->error.message);
}

static void leave_file(const char *name, double used, int64_t tokens, time_t modified)
{
    struct session_meta meta = {.owner = "me", .id = "it", .created = used, .used = used};
    char text[SESSION_META_SIZE], command[200];
    int32_t some[LONG];
    make_text(some, LONG, 1, 0);
    struct store_op op = {.done = on_done,
                          .kind = STORE_SESSION,
                          .meta = text,
                          .meta_length = session_meta_encode(&meta, text),
                          .tokens = some,
                          .count = tokens};
    snprintf(op.name, sizeof op.name, "%s", name);
    store_write(store, &op);
    store_finish(store);
    snprintf(command, sizeof command, "find %s -name %s.session -exec touch -d @%lld {} +",
             directory, name, (long long)modified);
    cr_assert(system(command) == 0);
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
    leave_file("a", now - 1000, 10, (time_t)now - 1000);
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

Test(sessions, a_clock_that_goes_back_prolongs_nothing)
{
    double now = (double)time(NULL);
    make_directory(directory);
    open_all();
    leave_file("a", now + 5000, 10, (time_t)now + 4999);
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
    sessions_settle(session, some, count, nothing, NULL);
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

Test(sessions, of_two_files_the_older_goes)
{
    double now = (double)time(NULL);
    const struct session *seen;
    struct api_error err = {0};
    make_directory(directory);
    open_all();
    leave_file("a", now - 1000, 10, (time_t)now - 1000);
    leave_file("b", now - 500, 20, (time_t)now - 500);
    leave_file("c", now - 800, 30, (time_t)now - 800);
    close_all();
    open_all();
    cr_assert(sessions_peek(sessions, "me", "it", 20, &seen, &err) == 0 && seen);
    store_finish(store);
    cr_expect_eq(count_files(directory, ".session"), 1);
    cr_assert(sessions_remove(sessions, "me", "it", nothing, NULL, &err) == 0);
    close_all();
    open_all();
    cr_expect(used() < 0, "what was deleted is gone");
    close_all();
    remove_directory(directory);
}

/* A directory in the place of the session's file, which nobody can unlink or write over; and what
 * the file was again. */
static void block_file(bool blocked)
{
    char command[300];
    snprintf(command, sizeof command,
             blocked ? "cd %s/*/sessions && f=$(ls) && mv $f ../kept && mkdir -p $f/in"
                     : "cd %s/*/sessions && f=$(ls) && rm -r $f && mv ../kept $f",
             directory);
    cr_assert(system(command) == 0);
}

static void note_error(void *context, const struct error *err)
{
    *(struct error *)context = err ? *err : (struct error)ERROR_INIT;
}

/* Deletes "it"; what its client is told. */
static struct error delete_session(void)
{
    struct error told = {.code = ERROR_INTERNAL, .message = "nothing"};
    struct api_error err = {0};
    cr_assert(sessions_remove(sessions, "me", "it", note_error, &told, &err) == 0, "%s",
              err.message);
    store_finish(store);
    return told;
}

Test(sessions, what_cannot_be_deleted_stays_and_is_deleted_again)
{
    begin(0);
    block_file(true);
    struct error told = delete_session();
    cr_expect_eq(told.code, ERROR_IO);
    cr_expect(strstr(told.message, "cannot remove"), "%s", told.message);
    cr_expect(used() > 0, "it is there");
    block_file(false);
    cr_expect(sessions_poll(sessions) >= 0, "as its file may not be there, it is written again");
    close_all();
    open_all();
    cr_expect(used() > 0, "and after a restart");
    told = delete_session();
    cr_expect_eq(told.code, ERROR_NONE, "%s", told.message);
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
    block_file(true);
    pass(500, 500);
    double due = sessions_poll(sessions);
    expect_alive("its file cannot be removed");
    cr_expect(due > 0 && due < 10, "%g", due);
    block_file(false);
    pass(due, due);
    expect_end();
}
