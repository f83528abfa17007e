/* SPDX-License-Identifier: Apache-2.0 */
/* RWKV's World vocabulary: files that are refused and what the refusal says, and the tokens that a
 * text, its end and bytes that are no text become. test_tokenizer.c compares ids with PyPI's rwkv.
 */
#include "lib/text/detokenize.h"
#include "lib/text/tokenizer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, AFTER = BYTES + 1 /* the next id */ };

/* A vocabulary of all bytes, and then `more`. The caller frees it. */
static char *vocabulary(const char *more)
{
    char *text = malloc(BYTES * 16 + strlen(more) + 1);
    size_t length = 0;
    for (int byte = 0; byte < BYTES; byte++)
        length += (size_t)sprintf(text + length, "%d %s'\\x%02x' 1\n", byte + 1,
                                  byte < 0x80 ? "" : "b", (unsigned)byte);
    strcpy(text + length, more);
    return text;
}

static int load(struct tokenizer **tokenizer, const char *more, struct error *err)
{
    char *text = vocabulary(more);
    int failed = tokenizer_load_world(tokenizer, text, strlen(text), "world.txt", err);
    free(text);
    return failed;
}

static void expect_refused(const char *more, const char *message)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(load(&tokenizer, more, &err), -1, "%s is accepted", more);
    cr_expect(strstr(err.message, message), "%s: expected \"%s\", got \"%s\"", more, message,
              err.message);
    error_clear(&err);
}

Test(world, refuses_ids_that_are_missing_doubled_or_too_large)
{
    expect_refused("258 'ab' 2\n", "world.txt: line 257: expected id 257, got 258: those between");
    expect_refused("256 'ab' 2\n", "world.txt: line 257: expected id 257, got 256: it is there");
    expect_refused("99999999999 'ab' 2\n", "world.txt: line 257: expected an id below 4194304");
    expect_refused("'ab' 2\n", "world.txt: line 257: expected an id");
    expect_refused("\n", "world.txt: line 257: expected an id");
    expect_refused("257 'ab' 2\n258 'ab' 2\n",
                   "world.txt: line 258: expected another token, got that of id 257");
}

Test(world, refuses_literals_that_are_cut_off_or_say_another_length)
{
    expect_refused("257 'ab", "world.txt: line 257: the token is cut off: expected '");
    expect_refused("257 'ab\\", "world.txt: line 257: the token is cut off");
    expect_refused("257 'ab\\' 2\n", "world.txt: line 257: the token is cut off");
    expect_refused("257 'ab'\n", "world.txt: line 257: expected a space and the token's number");
    expect_refused("257 'ab' 2 \n", "world.txt: line 257: expected a space and the token's number");
    expect_refused("257 'ab' 3\n",
                   "world.txt: line 257: expected 3 bytes, as the line says, got 2");
    expect_refused("257 '' 0\n", "world.txt: line 257: expected a token of 1 to 512 bytes, got 0");
    expect_refused("257 ab 2\n", "world.txt: line 257: expected a token in quotes");
    expect_refused("257 '\\q' 1\n", "world.txt: line 257: expected \\\\");
    expect_refused("257 'a\\x4' 2\n", "world.txt: line 257: expected \\\\");
    expect_refused("257 '\\ud800' 3\n", "world.txt: line 257: expected a character");
    expect_refused("257 '\\U00110000' 4\n", "world.txt: line 257: expected a character");
}

Test(world, refuses_bytes_in_place_of_text)
{
    expect_refused("257 b'ab' 2\n", "world.txt: line 257: expected text, got bytes that are UTF-8");
    expect_refused("257 'a\xFF' 2\n",
                   "world.txt: line 257: expected UTF-8, got byte 0xFF in column 7");
    expect_refused("257 b'\u00e9' 2\n", "world.txt: line 257: expected ASCII and escapes in bytes");
    expect_refused("257 b'\\u00e9' 2\n", "world.txt: line 257: expected \\\\");
}

Test(world, refuses_a_token_that_is_too_long_and_a_vocabulary_without_each_byte)
{
    char line[600];
    snprintf(line, sizeof line, "257 '%0513d' 513\n", 0);
    expect_refused(line, "world.txt: line 257: expected a token of 1 to 512 bytes, got 513");
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(tokenizer_load_world(&tokenizer, "1 'a' 1\n", 8, "world.txt", &err), -1);
    cr_expect_str_eq(err.message, "world.txt: expected a token for each byte, got none for 0x00");
    error_clear(&err);
}

static void expect_ids(const struct tokenizer *tokenizer, const char *text, const int32_t *expected)
{
    struct error err = ERROR_INIT;
    struct token_list ids = {0};
    cr_assert_eq(tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &err), 0, "%s",
                 err.message);
    size_t count = 0;
    while (expected[count] >= 0)
        count++;
    cr_assert_eq(ids.count, count, "%s: expected %zu ids, got %zu", text, count, ids.count);
    if (count > 0) /* else there is no array */
        cr_expect_arr_eq(ids.ids, expected, count * sizeof *expected, "%s", text);
    token_list_clear(&ids);
}

Test(world, takes_the_longest_token_with_either_line_end_and_quote)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(load(&tokenizer,
                      "257 'ab' 2\r\n258 \"a'\" 2\n259 'abcd' 4\n260 '\\n\\n' 2\n"
                      "261 '\\x80' 2\n262 b'\\xe4\\xb8' 2\n263 '\\u4e16' 3",
                      &err),
                 0, "%s", err.message);
    expect_ids(tokenizer, "", (int32_t[]){-1});
    expect_ids(tokenizer, "abca'", (int32_t[]){AFTER, 'c' + 1, AFTER + 1, -1});
    expect_ids(tokenizer, "abcd\n\n\n", (int32_t[]){AFTER + 2, AFTER + 3, '\n' + 1, -1});
    expect_ids(tokenizer, "\xC2\x80\xE4\xB8\x96\xE4\xB8\xAD",
               (int32_t[]){AFTER + 4, AFTER + 6, AFTER + 5, 0xAD + 1, -1});
    expect_ids(tokenizer, "a<|rwkv_tokenizer_end_of_text|>b", (int32_t[]){'a' + 1, 0, 'b' + 1, -1});
    cr_expect(tokenizer_is_special(tokenizer, 0));
    size_t length;
    const char *bytes = tokenizer_token_bytes(tokenizer, AFTER + 5, &length);
    cr_expect(length == 2 && memcmp(bytes, "\xE4\xB8", 2) == 0);
    cr_expect(!tokenizer_is_special(tokenizer, 1));
    tokenizer_free(tokenizer);
}

Test(world, what_is_no_text_decodes_to_replacement_characters)
{
    static const int32_t ids[] = {'a' + 1, 0xE4 + 1, 0xB8 + 1, 'b' + 1, 0, 0xFF + 1, 0xC3 + 1};
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    char *text;
    size_t length;
    cr_assert_eq(load(&tokenizer, "", &err), 0, "%s", err.message);
    cr_assert_eq(tokenizer_decode(tokenizer, ids, 7, true, &text, &length, &err), 0);
    cr_expect_str_eq(text, "a\uFFFDb\uFFFD\uFFFD");
    free(text);
    tokenizer_free(tokenizer);
}
