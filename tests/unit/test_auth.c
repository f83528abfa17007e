/* SPDX-License-Identifier: Apache-2.0 */
/* Who is let in, that a key is the same one after keys have been replaced, how keys are written,
 * and what a check costs. */
#include "server/http/auth.h"

#include "lib/base/clock.h"

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct names list(const char *text)
{
    struct names names = {0};
    struct error err = ERROR_INIT;
    cr_assert_eq(auth_read(&names, &text, 1, NULL, &err), 0, "%s", err.message);
    return names;
}

static void learn(struct auth *auth, const char *text, const char *expected)
{
    struct names keys = list(text), fresh = {0};
    struct error err = ERROR_INIT;
    char told[256] = "";
    cr_assert_eq(auth_learn(auth, &keys, &fresh, &err), 0, "%s", err.message);
    for (size_t i = 0; i < fresh.count; i++) {
        strcat(told, i ? "," : "");
        strcat(told, fresh.items[i]);
    }
    cr_expect_str_eq(told, expected);
    names_wipe(&fresh);
    names_wipe(&keys);
}

static void allow(struct auth *auth, const struct names *keys)
{
    struct error err = ERROR_INIT;
    cr_assert_eq(auth_allow(auth, keys, &err), 0, "%s", err.message);
}

/* expected: those that are new, in the order of their indices. */
static void replace(struct auth *auth, const char *text, const char *expected)
{
    struct names keys = list(text);
    learn(auth, text, expected);
    allow(auth, &keys);
    names_wipe(&keys);
}

static void begin(struct auth *auth)
{
    struct error err = ERROR_INIT;
    cr_assert_eq(auth_init(auth, &err), 0, "%s", err.message);
}

Test(auth, without_keys_everybody_is_let_in)
{
    struct auth auth;
    begin(&auth);
    cr_expect_eq(auth_check(&auth, NULL, NULL), 0);
    cr_expect_eq(auth_check(&auth, "Bearer any", NULL), 0);
    auth_clear(&auth);
}

Test(auth, headers_that_bear_a_key)
{
    struct auth auth;
    begin(&auth);
    replace(&auth, "one,two", "one,two");
    cr_expect_eq(auth_check(&auth, NULL, NULL), -1);
    cr_expect_eq(auth_check(&auth, "Bearer one", NULL), 0);
    cr_expect_eq(auth_check(&auth, "bearer   two \t", NULL), 1);
    cr_expect_eq(auth_check(&auth, NULL, "two"), 1);
    cr_expect_eq(auth_check(&auth, "Basic one", "two"), -1);
    cr_expect_eq(auth_check(&auth, "Bearer tw", NULL), -1);
    cr_expect_eq(auth_check(&auth, "Bearer twoo", NULL), -1);
    cr_expect_eq(auth_check(&auth, "Bearer ", NULL), -1);
    auth_clear(&auth);
}

Test(auth, a_key_keeps_its_index_while_others_come_and_go)
{
    struct auth auth;
    begin(&auth);
    replace(&auth, "one,two,one", "one,two");
    cr_expect_eq(auth_count(&auth), 2, "one is one");
    replace(&auth, "three,two", "three");
    cr_expect_eq(auth_check(&auth, NULL, "one"), -1);
    cr_expect_eq(auth_check(&auth, NULL, "two"), 1);
    cr_expect_eq(auth_check(&auth, NULL, "three"), 2);
    replace(&auth, "one", "");
    cr_expect_eq(auth_check(&auth, NULL, "one"), 0);
    cr_expect_eq(auth_check(&auth, NULL, "three"), -1);
    auth_clear(&auth);
}

Test(auth, what_is_only_known_is_not_let_in)
{
    struct auth auth;
    begin(&auth);
    replace(&auth, "one", "one");
    learn(&auth, "two", "two");
    cr_expect_eq(auth_check(&auth, NULL, "two"), -1);
    cr_expect_eq(auth_check(&auth, NULL, "one"), 0);
    learn(&auth, "two,three", "three");
    replace(&auth, "three,two", "");
    cr_expect_eq(auth_check(&auth, NULL, "two"), 1);
    cr_expect_eq(auth_check(&auth, NULL, "three"), 2);
    cr_expect_eq(auth_check(&auth, NULL, "one"), -1);
    auth_clear(&auth);
}

/* ---- how keys are written ---- */

static int read_lists(struct names *keys, const char *text, struct error *err)
{
    error_clear(err);
    return auth_read(keys, &text, 1, NULL, err);
}

static int read_file(struct names *keys, const char *text, size_t length, struct error *err)
{
    char path[] = "/tmp/regla-keys-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, length) == (ssize_t)length);
    error_clear(err);
    int result = auth_read(keys, NULL, 0, path, err);
    close(fd);
    unlink(path);
    return result;
}

static void expect_keys(struct names *keys, const char *expected)
{
    char told[256] = "";
    for (size_t i = 0; i < keys->count; i++) {
        strcat(told, i ? "|" : "");
        strcat(told, keys->items[i]);
    }
    cr_expect_str_eq(told, expected);
    names_wipe(keys);
}

#define MARK "\xef\xbb\xbf"

Test(auth, what_stands_around_a_key_is_no_part_of_it)
{
    struct names keys = {0};
    struct error err = ERROR_INIT;
    static const char file[] =
        MARK "# ours\r\n\r\n one \r\n\t two" MARK "\n  # not: three\nfour five";
    cr_expect_eq(read_file(&keys, file, sizeof file - 1, &err), 0, "%s", err.message);
    expect_keys(&keys, "one|two|four five");
    cr_expect_eq(read_lists(&keys, MARK " one\r\n,\v, two\n", &err), 0, "%s", err.message);
    expect_keys(&keys, "one|two");
}

static void expect_told(const char *text, size_t length, const char *place, const char *what)
{
    struct names keys = {0};
    struct error err = ERROR_INIT;
    cr_expect_eq(read_file(&keys, text, length, &err), -1);
    cr_expect(strstr(err.message, place) && strstr(err.message, what), "%s", err.message);
    names_wipe(&keys);
}

Test(auth, what_no_request_can_bear_is_told)
{
    static char longest[AUTH_KEY_BYTES + 1];
    struct names keys = {0};
    struct error err = ERROR_INIT;
    memset(longest, 'k', sizeof longest);
    cr_expect_eq(read_file(&keys, longest, sizeof longest - 1, &err), 0, "%s", err.message);
    names_wipe(&keys);
    expect_told(longest, sizeof longest, "line 1", "4096 bytes, got 4097");
    expect_told("one\ntwo\rthree\r", 14, "line 2", "byte 0x0d");
    expect_told("\xff\xfeo\0n\0e\0\n", 9, "line 1", "byte 0x00"); /* UTF-16 */
    expect_told(MARK "\r\n", 5, "--api-key-file", "got none");
    cr_expect_eq(read_lists(&keys, "one,two\nthree", &err), -1);
    cr_expect(strstr(err.message, "key 2: an API key has no line breaks"), "%s", err.message);
    names_wipe(&keys);
    cr_expect_eq(read_lists(&keys, MARK "\n", &err), -1);
    cr_expect(strstr(err.message, "got an empty text"), "%s", err.message);
    names_wipe(&keys);
}

/* ---- what it costs ---- */

static double fastest(struct auth *auth, const char *key)
{
    double best = 1e9;
    for (int i = 0; i < 2000; i++) { /* one of them is not interrupted */
        double begin = clock_seconds();
        cr_assert_eq(auth_check(auth, NULL, key), -1);
        double took = clock_seconds() - begin;
        best = took < best ? took : best;
    }
    return best * 1e6;
}

Test(auth, a_long_key_against_many_costs_little)
{
    enum { KEYS = 10000, MOST = 1 << 20 };
    static char long_key[MOST + 1], text[KEYS * 24];
    struct auth auth;
    size_t length = 0;
    begin(&auth);
    for (int i = 0; i < KEYS; i++)
        length += (size_t)sprintf(text + length, "sk-%06d-abcdef,", i);
    struct names keys = list(text), fresh = {0};
    struct error err = ERROR_INIT;
    double start = clock_seconds();
    cr_assert_eq(auth_learn(&auth, &keys, &fresh, &err), 0);
    allow(&auth, &keys);
    cr_log_info("%d keys are in place after %.1f ms", KEYS, (clock_seconds() - start) * 1e3);
    cr_expect_eq(fresh.count, KEYS);
    for (int i = 0; i < KEYS; i += 997)
        cr_expect_eq(auth_check(&auth, NULL, keys.items[i]), i);
    memset(long_key, 'x', MOST);
    double worst = 0;
    static const int lengths[] = {10, 40, 1000, AUTH_KEY_BYTES, 30000, MOST};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        long_key[MOST] = long_key[lengths[i]] = 0;
        double took = fastest(&auth, long_key);
        long_key[lengths[i]] = 'x';
        cr_log_info("a wrong key of %d bytes against %d keys: %.2f us", lengths[i], KEYS, took);
        worst = lengths[i] <= 30000 && took > worst ? took : worst;
    }
    /* What a header can hold. Sanitizers look at every byte. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_expect_lt(worst, 400);
#else
    cr_expect_lt(worst, 20);
#endif
    names_wipe(&fresh);
    names_wipe(&keys);
    auth_clear(&auth);
}
