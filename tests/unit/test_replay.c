/* SPDX-License-Identifier: Apache-2.0 */
/* Replies kept for who repeats a request with an Idempotency-Key. */
#include "lib/base/clock.h"
#include "server/endpoints/replay.h"

#include <criterion/criterion.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

static struct replay *create(int64_t bytes, double lifetime_s)
{
    struct replay *replay;
    struct error err = ERROR_INIT;
    cr_assert_eq(replay_create(&replay, bytes, lifetime_s, &err), 0);
    return replay;
}

static int begin(struct replay *replay, const char *owner, const char *path, const char *key,
                 const char *body, struct replay_entry **entry, struct replay_reply **kept,
                 struct api_error *err)
{
    struct replay_request request = {
        .owner = owner, .path = path, .key = key, .body = body, .length = strlen(body)};
    *err = (struct api_error){0};
    return replay_begin(replay, &request, entry, kept, err);
}

static struct replay_entry *begin_new(struct replay *replay, const char *key, const char *body)
{
    struct replay_entry *entry;
    struct replay_reply *kept;
    struct api_error err;
    cr_assert_eq(begin(replay, "o", "/p", key, body, &entry, &kept, &err), 0, "%s", err.message);
    cr_assert_not_null(entry, "key %s is known", key);
    cr_assert_null(kept);
    return entry;
}

static bool is_kept(struct replay *replay, const char *key, const char *body)
{
    struct replay_entry *entry;
    struct replay_reply *kept;
    struct api_error err;
    cr_assert_eq(begin(replay, "o", "/p", key, body, &entry, &kept, &err), 0, "%s", err.message);
    if (entry)
        replay_drop(replay, entry, NULL, NULL);
    if (kept)
        replay_reply_release(kept);
    return kept != NULL;
}

Test(replay, gives_the_reply_again)
{
    struct replay *replay = create(1 << 20, 60);
    struct replay_entry *entry = begin_new(replay, "k", "body"), *again;
    struct replay_reply *kept;
    struct api_error err;
    cr_expect_eq(begin(replay, "o", "/p", "k", "body", &again, &kept, &err), -1);
    cr_expect_eq(err.code, API_KEY_IN_FLIGHT);
    cr_expect_eq(begin(replay, "o", "/p", "k", "other", &again, &kept, &err), -1);
    cr_expect_eq(err.code, API_KEY_MISMATCH);
    replay_keep(replay, entry, 201, true, "re\0ply", 6, NULL, NULL);
    cr_expect_gt(replay_bytes(replay), 6);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(begin(replay, "o", "/p", "k", "body", &again, &kept, &err), 0);
        cr_expect_null(again);
        cr_assert_not_null(kept);
        cr_expect_eq(kept->status, 201);
        cr_expect(kept->stream);
        cr_expect_eq(kept->length, 6);
        cr_expect_arr_eq(kept->data, "re\0ply", 6);
        replay_reply_release(kept);
    }
    cr_expect_eq(begin(replay, "o", "/p", "k", "other", &again, &kept, &err), -1);
    cr_expect_eq(err.code, API_KEY_MISMATCH);
    replay_free(replay);
}

Test(replay, owner_path_and_key_tell_apart)
{
    struct replay *replay = create(1 << 20, 60);
    const char *names[][3] = {{"o", "/p", "k"}, {"p", "/p", "k"}, {"o", "/q", "k"},
                              {"o", "/p", "l"}, {"o/p", "", "k"}, {"", "o/p", "k"}};
    struct replay_entry *entries[6];
    struct replay_reply *kept;
    struct api_error err;
    for (size_t i = 0; i < 6; i++) {
        cr_assert_eq(
            begin(replay, names[i][0], names[i][1], names[i][2], "", &entries[i], &kept, &err), 0);
        cr_expect_not_null(entries[i], "%zu", i);
    }
    for (size_t i = 0; i < 6; i++)
        replay_drop(replay, entries[i], NULL, NULL);
    cr_expect_eq(replay_bytes(replay), 0);
    replay_free(replay);
}

Test(replay, a_dropped_request_is_new_again)
{
    struct replay *replay = create(1 << 20, 60);
    replay_drop(replay, begin_new(replay, "k", "a"), NULL, NULL);
    replay_drop(replay, begin_new(replay, "k", "b"), NULL, NULL);
    replay_free(replay);
}

Test(replay, keeps_errors_that_would_come_again)
{
    const struct {
        enum api_code code;
        bool kept;
    } cases[] = {
        {API_INVALID_VALUE, true},  {API_SESSION_NOT_FOUND, true}, {API_POSITION_MISMATCH, true},
        {API_SESSION_EXISTS, true}, {API_CANCELLED, true},         {API_SESSION_BUSY, false},
        {API_QUEUE_FULL, false},    {API_SESSION_QUOTA, false},    {API_INTERNAL, false},
        {API_OUT_OF_MEMORY, false}, {API_DRAINING, false},         {API_ENGINE_FAILED, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct replay *replay = create(1 << 20, 60);
        struct api_error error = {0};
        api_error_set(&error, cases[i].code, NULL, "why");
        replay_keep_error(replay, begin_new(replay, "k", "a"), &error, NULL, NULL, NULL);
        cr_expect_eq(is_kept(replay, "k", "a"), cases[i].kept, "code %d", (int)cases[i].code);
        replay_free(replay);
    }
}

Test(replay, is_bounded_and_forgets_the_least_recently_used)
{
    struct replay *replay = create(3000, 60);
    char data[700] = {0};
    struct replay_entry *at_work = begin_new(replay, "at work", "a");
    replay_keep(replay, begin_new(replay, "1", "a"), 200, false, data, sizeof data, NULL, NULL);
    replay_keep(replay, begin_new(replay, "2", "a"), 200, false, data, sizeof data, NULL, NULL);
    replay_keep(replay, begin_new(replay, "3", "a"), 200, false, data, sizeof data, NULL, NULL);
    cr_expect(is_kept(replay, "1", "a"));
    replay_keep(replay, begin_new(replay, "4", "a"), 200, false, data, sizeof data, NULL, NULL);
    cr_expect_leq(replay_bytes(replay), 3000);
    cr_expect_not(is_kept(replay, "2", "a"));
    cr_expect(is_kept(replay, "1", "a"));
    cr_expect(is_kept(replay, "4", "a"));
    /* One that can never fit takes nobody's place, and who is at work keeps its own. */
    char huge[4000] = {0};
    replay_keep(replay, begin_new(replay, "huge", "a"), 200, false, huge, sizeof huge, NULL, NULL);
    cr_expect_not(is_kept(replay, "huge", "a"));
    cr_expect(is_kept(replay, "1", "a"));
    struct replay_entry *entry;
    struct replay_reply *kept;
    struct api_error err;
    cr_expect_eq(begin(replay, "o", "/p", "at work", "a", &entry, &kept, &err), -1);
    cr_expect_eq(err.code, API_KEY_IN_FLIGHT);
    replay_drop(replay, at_work, NULL, NULL);
    replay_free(replay);
}

Test(replay, expires)
{
    struct replay *replay = create(1 << 20, 0.001);
    replay_keep(replay, begin_new(replay, "k", "a"), 200, false, "x", 1, NULL, NULL);
    struct timespec pause = {0, 5000000};
    nanosleep(&pause, NULL);
    cr_expect_not(is_kept(replay, "k", "a"));
    cr_expect_eq(replay_bytes(replay), 0);
    replay_free(replay);
}

Test(replay, keys)
{
    struct replay *replay = create(1 << 20, 60);
    struct replay_entry *entry;
    struct replay_reply *kept;
    struct api_error err;
    char key[258];
    memset(key, 'k', sizeof key);
    key[255] = 0;
    replay_drop(replay, begin_new(replay, key, ""), NULL, NULL);
    key[255] = 'k';
    key[256] = 0;
    const char *wrong[] = {"", key, "a\tb", "\x7f", "caf\xc3\xa9"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_expect_eq(begin(replay, "o", "/p", wrong[i], "", &entry, &kept, &err), -1, "%zu", i);
        cr_expect_eq(err.code, API_INVALID_VALUE);
        cr_expect_str_eq(err.param, "Idempotency-Key");
    }
    replay_free(replay);
}

/* As the store of an earlier server tells it. */
static struct store_reply told(const char *name, size_t length, int status, double seconds)
{
    return (struct store_reply){.name = name,
                                .name_length = length,
                                .status = status,
                                .error = "",
                                .expires_ns =
                                    clock_nanos(CLOCK_REALTIME) + (int64_t)(seconds * 1e9),
                                .data = "reply",
                                .length = status ? 5 : 0};
}

Test(replay, what_an_earlier_server_kept_is_given_again)
{
    static const char whole[] = "me\0/v1/completions\0whole", lost[] = "me\0/v1/completions\0lost",
                      old[] = "me\0/v1/completions\0old";
    struct replay *replay = create(1 << 20, 600);
    struct replay_entry *entry;
    struct replay_reply *kept;
    struct api_error err = {0};
    struct replay_request request = {
        .owner = "me", .path = "/v1/completions", .body = "", .length = 0};
    XXH128_hash_t hash = XXH3_128bits("", 0);
    struct store_reply replies[] = {told(whole, sizeof whole, 200, 100),
                                    told(lost, sizeof lost, 0, 100),
                                    told(old, sizeof old, 200, -1)};
    for (size_t i = 0; i < 3; i++) {
        memcpy(replies[i].body, &hash, sizeof hash);
        replay_found(replay, &replies[i]);
    }
    request.key = "whole";
    cr_assert(replay_begin(replay, &request, &entry, &kept, &err) == 0 && kept);
    cr_expect(kept->status == 200 && kept->length == 5 && memcmp(kept->data, "reply", 5) == 0);
    replay_reply_release(kept);
    request.key = "lost";
    cr_expect(replay_begin(replay, &request, &entry, &kept, &err) == -1);
    cr_expect_eq(err.code, API_KEY_LOST);
    request.key = "old";
    api_error_clear(&err);
    cr_assert(replay_begin(replay, &request, &entry, &kept, &err) == 0 && entry && !kept);
    struct store_reply claim = replay_claim(replay, entry);
    cr_expect(claim.status == 0 && claim.name_length == sizeof old &&
              memcmp(claim.name, old, sizeof old) == 0);
    replay_drop(replay, entry, NULL, NULL);
    replay_free(replay);
}

/* What it made has a name of its own, by which it is found. */
Test(replay, a_lost_reply_is_looked_for)
{
    static const char lost[] = "me\0/v1/responses\0lost";
    struct replay *replay = create(1 << 20, 600);
    struct replay_entry *entry, *other;
    struct replay_reply *kept;
    struct api_error err = {0};
    struct replay_request request = {
        .owner = "me", .path = "/v1/responses", .key = "lost", .body = "", .found_again = true};
    XXH128_hash_t hash = XXH3_128bits("", 0);
    struct store_reply reply = told(lost, sizeof lost, 0, 100);
    char name[REPLAY_NAME_SIZE], another[REPLAY_NAME_SIZE];
    memcpy(reply.body, &hash, sizeof hash);
    replay_found(replay, &reply);
    int64_t bytes = replay_bytes(replay);
    for (int i = 0; i < 2; i++) {
        cr_assert(replay_begin(replay, &request, &entry, &kept, &err) == 0 && entry && !kept);
        cr_expect(replay_has_worked(replay, entry));
        replay_name(entry, name);
        cr_expect_eq(strlen(name), REPLAY_NAME_SIZE - 1);
        cr_expect(replay_begin(replay, &request, &other, &kept, &err) == -1);
        cr_expect_eq(err.code, API_KEY_IN_FLIGHT);
        api_error_clear(&err);
        replay_drop(replay, entry, NULL, NULL);
        cr_expect_eq(replay_bytes(replay), bytes);
    }
    request.found_again = false;
    cr_expect(replay_begin(replay, &request, &entry, &kept, &err) == -1);
    cr_expect_eq(err.code, API_KEY_LOST);
    api_error_clear(&err);
    request.key = "new";
    cr_assert(replay_begin(replay, &request, &entry, &kept, &err) == 0 && entry && !kept);
    cr_expect(!replay_has_worked(replay, entry));
    replay_name(entry, another);
    cr_expect_str_neq(name, another);
    replay_drop(replay, entry, NULL, NULL);
    replay_free(replay);
}

static void expect_lost(struct replay *replay, const char *key)
{
    struct replay_entry *entry;
    struct replay_reply *kept;
    struct api_error err;
    cr_expect_eq(begin(replay, "o", "/p", key, "a", &entry, &kept, &err), -1, "%s", key);
    cr_expect_eq(err.code, API_KEY_LOST, "%s", key);
    if (entry)
        replay_drop(replay, entry, NULL, NULL);
}

/* However the reply is lost, what has been done is not done again. */
Test(replay, what_has_been_done_is_not_new_again)
{
    struct replay *replay = create(3000, 60);
    struct api_error failed = {0};
    char huge[4000] = {0};
    api_error_set(&failed, API_OUT_OF_MEMORY, NULL, "for the reply");
    struct replay_entry *entries[3];
    const char *keys[] = {"dropped", "failed", "huge"};
    for (int i = 0; i < 3; i++) {
        entries[i] = begin_new(replay, keys[i], "a");
        replay_worked(replay, entries[i]);
    }
    replay_drop(replay, entries[0], NULL, NULL);
    replay_keep_error(replay, entries[1], &failed, NULL, NULL, NULL);
    replay_keep(replay, entries[2], 200, false, huge, sizeof huge, NULL, NULL);
    for (int i = 0; i < 3; i++)
        expect_lost(replay, keys[i]);
    replay_free(replay);
}

Test(replay, a_kept_reply_that_is_too_large_now_is_lost)
{
    static const char name[] = "o\0/p\0large";
    struct replay *replay = create(1000, 600);
    char huge[4000] = {0};
    struct store_reply reply = told(name, sizeof name, 200, 100);
    XXH128_hash_t hash = XXH3_128bits("a", 1);
    memcpy(reply.body, &hash, sizeof hash);
    reply.data = huge;
    reply.length = sizeof huge;
    replay_found(replay, &reply);
    expect_lost(replay, "large");
    replay_free(replay);
}
