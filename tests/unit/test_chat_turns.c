/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_turns.h"
#include "api/request.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static void write(struct strbuf *out, int64_t position, const char *messages, const char *reply)
{
    struct api_error err = {0};
    json_t *list = json_loads(messages, JSON_ALLOW_NUL, NULL);
    const struct chat_turn turn = {position, 7, 0xfeedbeefu};
    const struct chat_turn_reply said = {.text = reply, .length = reply ? strlen(reply) : 0};
    cr_assert(chat_turns_write(out, &turn, list, &said, &err) == 0, "%s", err.message);
    json_decref(list);
}

static void two_turns(struct strbuf *out)
{
    write(out, 10, "[{\"role\":\"user\",\"content\":\"a\\u0000\\n\"}]", "b \"quoted\"\n");
    write(out, 25, "[{\"role\":\"user\",\"content\":\"c\"}]", NULL);
}

Test(chat_turns, are_lines)
{
    struct strbuf turns = {0};
    struct chat_turn last;
    cr_expect(chat_turns_last(NULL, 0, &last) == 0 && last.position == 0 && last.text_length == 0);
    two_turns(&turns);
    cr_expect(chat_turns_last(turns.data, turns.length, &last) == 0);
    cr_expect(last.position == 25 && last.text_length == 7 && last.text_hash == 0xfeedbeefu);
    cr_expect_eq(chat_turns_until(turns.data, turns.length, 9), 0);
    size_t first = chat_turns_until(turns.data, turns.length, 10);
    cr_expect(first > 0 && first < turns.length && turns.data[first - 1] == '\n');
    cr_expect_eq(chat_turns_until(turns.data, turns.length, 24), first);
    cr_expect_eq(chat_turns_until(turns.data, turns.length, 25), turns.length);
    strbuf_clear(&turns);
}

Test(chat_turns, give_their_messages_back)
{
    struct strbuf turns = {0};
    struct api_error err = {0};
    two_turns(&turns);
    json_t *messages = chat_turns_messages(turns.data, turns.length, NULL, &err);
    json_t *expected = json_loads("[{\"role\":\"user\",\"content\":\"a\\u0000\\n\"},"
                                  "{\"role\":\"assistant\",\"content\":\"b \\\"quoted\\\"\\n\"},"
                                  "{\"role\":\"user\",\"content\":\"c\"}]",
                                  JSON_ALLOW_NUL, NULL);
    cr_expect(messages && json_equal(messages, expected), "%s", err.message);
    json_decref(messages);
    json_decref(expected);
    strbuf_clear(&turns);
}

Test(chat_turns, know_the_special_tokens_of_replies)
{
    struct text_span spans[] = {{0, 3}, {3, 6}, {8, 9}};
    const struct chat_turn_reply reply = {"<a><b>xyc", 9, {spans, 3, 3}};
    const struct chat_turn turn = {30, 7, 1};
    struct chat_specials specials = {0};
    struct strbuf turns = {0};
    struct api_error err = {0};
    json_t *none = json_array();
    two_turns(&turns);
    cr_assert_eq(chat_turns_write(&turns, &turn, none, &reply, &err), 0);
    json_t *messages = chat_turns_messages(turns.data, turns.length, &specials, &err);
    cr_assert(messages, "%s", err.message);
    cr_assert(json_array_size(messages) == 4 && specials.count == 3);
    for (size_t i = 0; i < 3; i++)
        cr_expect(specials.items[i].message == 3 &&
                  specials.items[i].bytes.start == spans[i].start &&
                  specials.items[i].bytes.end == spans[i].end);
    chat_specials_clear(&specials);
    json_decref(messages);
    json_decref(none);
    strbuf_clear(&turns);
}

Test(chat_turns, refuse_special_tokens_that_no_reply_can_have)
{
    static const char *const BAD[] = {"[0,4]",  "[1,1]",     "[2,1]",
                                      "[-1,1]", "[0,2,1,3]", "[0,9223372036854775807]"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct chat_specials specials = {0};
        struct api_error err = {0};
        char line[128];
        int length =
            snprintf(line, sizeof line,
                     "3 3 1 {\"messages\":[{\"content\":\"abc\"}],\"special\":%s}\n", BAD[i]);
        cr_expect_null(chat_turns_messages(line, (size_t)length, &specials, &err), "%s", BAD[i]);
        cr_expect_eq(err.code, API_INTERNAL);
        chat_specials_clear(&specials);
    }
}

/* A request may have as many arrays and objects as can be read; the reply is one more. */
Test(chat_turns, give_the_largest_messages_back)
{
    enum { MOST = 65536, OTHERS = 4 }; /* the request, its list, the message, and its own list */
    struct strbuf turns = {0}, messages = {0}, request = {0};
    struct api_error err = {0};
    strbuf_puts(&messages, "[{\"role\":\"user\",\"content\":\"a\",\"x\":[[]");
    for (size_t i = 1; i < MOST - OTHERS; i++)
        strbuf_puts(&messages, ",[]");
    strbuf_puts(&messages, "]}]");
    strbuf_append(&messages, "", 1);
    strbuf_printf(&request, "{\"messages\":%s}", messages.data);
    json_t *fields = request_load(request.data, request.length, &err);
    cr_assert(fields, "%s", err.message);
    json_decref(fields);
    write(&turns, 10, messages.data, "b");
    json_t *read = chat_turns_messages(turns.data, turns.length, NULL, &err);
    cr_expect(read && json_array_size(read) == 2, "%s", err.message);
    json_decref(read);
    strbuf_clear(&turns);
    strbuf_clear(&messages);
    strbuf_clear(&request);
}

Test(chat_turns, move)
{
    struct strbuf turns = {0}, moved = {0};
    struct chat_turn last;
    two_turns(&turns);
    size_t first = chat_turns_until(turns.data, turns.length, 10);
    strbuf_append(&moved, turns.data, first);
    chat_turns_move(&moved, turns.data, turns.length, first, 12345);
    cr_expect(chat_turns_last(moved.data, moved.length, &last) == 0 && last.position == 12345);
    cr_expect_eq(chat_turns_until(moved.data, moved.length, 12344), first);
    strbuf_clear(&turns);
    strbuf_clear(&moved);
}

Test(chat_turns, hash_a_text_in_two_parts_as_in_one)
{
    cr_expect_eq(chat_turns_hash("ab", 2, "cd", 2), chat_turns_hash("abcd", 4, NULL, 0));
    cr_expect_neq(chat_turns_hash("ab", 2, "cd", 2), chat_turns_hash("abce", 4, NULL, 0));
}

/* They come from a database, whose checksums are right: no more than that is known of them. */
Test(chat_turns, damaged_ones_are_refused)
{
    static const char *const BAD[] = {
        "x",
        "\n",
        "1 2\n",
        "1 2 3",
        "-1 2 3 {}\n",
        "1 2 3 {\"messages\":1}\n",
        "1 2 3 {}\n",
        "1 2 3 [\n",
        "99999999999999999999999999999999999999999999999999999999999999999999 1 1 {}\n",
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct chat_turn last;
        struct api_error err = {0};
        size_t length = strlen(BAD[i]);
        int read = chat_turns_last(BAD[i], length, &last);
        json_t *messages = chat_turns_messages(BAD[i], length, NULL, &err);
        cr_expect(!messages && err.code != API_OK, "%zu", i);
        cr_expect(read == 0 || chat_turns_until(BAD[i], length, INT64_MAX) == 0, "%zu", i);
        json_decref(messages);
    }
}
