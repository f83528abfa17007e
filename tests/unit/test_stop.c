/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings: the automaton against a plain search, whatever pieces the text comes in. */
#include "server/schedule/stop.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct stop_set *make(const char *const *texts, size_t count)
{
    struct stop_string strings[16];
    struct stop_set *set = NULL;
    struct error err = ERROR_INIT;
    for (size_t i = 0; i < count; i++)
        strings[i] = (struct stop_string){texts[i], strlen(texts[i])};
    cr_assert_eq(stop_set_create(&set, strings, count, &err), 0, "%s", err.message);
    return set;
}

Test(stop, first_end_wins_and_of_these_the_longest)
{
    struct stop_set *set = make((const char *[]){"abcd", "bc", "zbc"}, 3);
    struct stop_scan scan = {0};
    struct stop_match match;
    cr_assert_eq(stop_scan_push(set, &scan, "zzbcabcd", 8, &match), 1);
    cr_assert_eq(match.end, 4);
    cr_assert_eq(match.length, 3);
    cr_assert_eq(match.index, 2);
    scan = (struct stop_scan){0};
    cr_assert_eq(stop_scan_push(set, &scan, "xabcd", 5, &match), 1);
    cr_assert_eq(match.index, 1);
    cr_assert_eq(match.end, 4);
    stop_set_free(set);
}

Test(stop, held_is_what_may_still_become_one)
{
    struct stop_set *set = make((const char *[]){"STOP", "TOT"}, 2);
    struct stop_scan scan = {0};
    struct stop_match match;
    cr_assert_eq(stop_scan_push(set, &scan, "xST", 3, &match), 0);
    cr_assert_eq(stop_scan_held(set, &scan), 2);
    cr_assert_eq(stop_scan_push(set, &scan, "O", 1, &match), 0);
    cr_assert_eq(stop_scan_held(set, &scan), 3);
    /* "STOT": the longer beginning failed, but "TOT" is in it. */
    cr_assert_eq(stop_scan_push(set, &scan, "T", 1, &match), 1);
    cr_assert_eq(match.length, 3);
    scan = (struct stop_scan){0};
    cr_assert_eq(stop_scan_push(set, &scan, "STx", 3, &match), 0);
    cr_assert_eq(stop_scan_held(set, &scan), 0);
    stop_set_free(set);
}

Test(stop, the_same_string_twice_is_the_first)
{
    struct stop_set *set = make((const char *[]){"aa", "aa"}, 2);
    struct stop_scan scan = {0};
    struct stop_match match;
    cr_assert_eq(stop_scan_push(set, &scan, "baa", 3, &match), 1);
    cr_assert_eq(match.index, 0);
    stop_set_free(set);
}

/* Where the first stop string ends in text, by trying them all; 0: nowhere. */
static size_t plain_search(const char *text, size_t length, const char *const *stops, size_t count,
                           size_t *longest)
{
    for (size_t end = 1; end <= length; end++) {
        *longest = 0;
        for (size_t i = 0; i < count; i++) {
            size_t size = strlen(stops[i]);
            if (size <= end && size > *longest && memcmp(text + end - size, stops[i], size) == 0)
                *longest = size;
        }
        if (*longest)
            return end;
    }
    return 0;
}

/* The longest end of text that begins a stop string. */
static size_t plain_held(const char *text, size_t length, const char *const *stops, size_t count)
{
    size_t held = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t size = 1; size < strlen(stops[i]) && size <= length; size++)
            if (size > held && memcmp(text + length - size, stops[i], size) == 0)
                held = size;
    return held;
}

Test(stop, random_texts_in_random_pieces)
{
    unsigned seed = 7;
    for (int round = 0; round < 3000; round++) {
        char words[4][8];
        const char *stops[4];
        for (int i = 0; i < 4; i++) {
            int length = 1 + rand_r(&seed) % 6;
            for (int j = 0; j < length; j++)
                words[i][j] = (char)('a' + rand_r(&seed) % 2);
            words[i][length] = 0;
            stops[i] = words[i];
        }
        char text[40];
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = (char)('a' + rand_r(&seed) % 3);
        struct stop_set *set = make(stops, 4);
        size_t longest = 0, end = plain_search(text, sizeof text, stops, 4, &longest);
        struct stop_scan scan = {0};
        struct stop_match match;
        size_t at = 0;
        int found = 0;
        while (at < sizeof text && !found) {
            size_t size = 1 + (size_t)rand_r(&seed) % 5;
            if (size > sizeof text - at)
                size = sizeof text - at;
            found = stop_scan_push(set, &scan, text + at, size, &match);
            if (found) {
                cr_assert_eq(at + match.end, end);
                cr_assert_eq(match.length, longest);
            } else {
                cr_assert_eq(stop_scan_held(set, &scan), plain_held(text, at + size, stops, 4));
            }
            at += size;
        }
        cr_assert_eq(found, end > 0);
        stop_set_free(set);
    }
}
