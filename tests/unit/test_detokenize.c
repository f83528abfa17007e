/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming decode: whole characters, nothing lost, nothing retracted. */
#include "lib/text/detokenize.h"
#include "lib/text/unicode.h"
#include "tests/unit/token_id.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define DATA REGLA_SOURCE_DIR "/tests/data/tokenizer/"

static struct tokenizer *open_tokenizer(const char *path)
{
    struct error err = ERROR_INIT;
    struct tokenizer *tokenizer;
    cr_assert_eq(tokenizer_open(&tokenizer, path, &err), 0, "%s", err.message);
    return tokenizer;
}

static void expect_push(struct detokenizer *stream, int32_t id, const char *expected,
                        size_t pending)
{
    struct error err = ERROR_INIT;
    const char *text;
    size_t length;
    cr_assert_eq(detokenizer_push(stream, id, &text, &length, &err), 0);
    cr_assert(length == strlen(expected) && memcmp(text, expected, length) == 0,
              "id %d: expected \"%s\", got \"%.*s\"", id, expected, (int)length, text);
    cr_assert_eq(detokenizer_pending(stream), pending);
}

static void expect_finish(struct detokenizer *stream, const char *expected)
{
    struct error err = ERROR_INIT;
    const char *text;
    size_t length;
    cr_assert_eq(detokenizer_finish(stream, &text, &length, &err), 0);
    cr_assert(length == strlen(expected) && memcmp(text, expected, length) == 0,
              "expected \"%s\", got \"%.*s\"", expected, (int)length, text);
    cr_assert_eq(detokenizer_pending(stream), 0);
}

/* The id of the byte-level token of one byte. */
static int32_t byte_id(const struct tokenizer *tokenizer, unsigned char byte)
{
    char content[5] = {0};
    utf8_encode(byte_level_character(byte), content);
    int32_t id = token_id(tokenizer, content);
    cr_assert_geq(id, 0);
    return id;
}

Test(detokenize, byte_level_holds_back_unfinished_characters)
{
    struct tokenizer *tokenizer = open_tokenizer(DATA "neox.json");
    struct error err = ERROR_INIT;
    struct detokenizer *stream;
    cr_assert_eq(detokenizer_create(&stream, tokenizer, false, &err), 0);
    expect_push(stream, byte_id(tokenizer, 'a'), "a", 0);
    expect_push(stream, byte_id(tokenizer, 0xF0), "", 1);
    expect_push(stream, byte_id(tokenizer, 0x9F), "", 2);
    expect_push(stream, byte_id(tokenizer, 0x98), "", 3);
    expect_push(stream, byte_id(tokenizer, 0x80), "\xF0\x9F\x98\x80", 0);
    /* A character that breaks off becomes U+FFFD as soon as that is sure. */
    expect_push(stream, byte_id(tokenizer, 0xE2), "", 1);
    expect_push(stream, byte_id(tokenizer, 0x82), "", 2);
    expect_push(stream, byte_id(tokenizer, 'b'),
                "\xEF\xBF\xBD"
                "b",
                0);
    expect_push(stream, byte_id(tokenizer, 0x80), "\xEF\xBF\xBD", 0);
    /* A surrogate is three broken bytes. */
    expect_push(stream, byte_id(tokenizer, 0xED), "", 1);
    expect_push(stream, byte_id(tokenizer, 0xA0), "\xEF\xBF\xBD\xEF\xBF\xBD", 0);
    expect_push(stream, byte_id(tokenizer, 0x80), "\xEF\xBF\xBD", 0);
    expect_push(stream, byte_id(tokenizer, 0xC3), "", 1);
    /* Nobody's ids are nothing; a special token ends what was unfinished. */
    expect_push(stream, -1, "", 1);
    expect_push(stream, 1 << 30, "", 1);
    expect_push(stream, token_id(tokenizer, "<|endoftext|>"), "\xEF\xBF\xBD<|endoftext|>", 0);
    expect_push(stream, byte_id(tokenizer, 0xC3), "", 1);
    expect_finish(stream, "\xEF\xBF\xBD");
    detokenizer_free(stream);
    tokenizer_free(tokenizer);
}

Test(detokenize, skipped_special_tokens_do_not_split_characters)
{
    struct tokenizer *tokenizer = open_tokenizer(DATA "neox.json");
    struct error err = ERROR_INIT;
    struct detokenizer *stream;
    cr_assert_eq(detokenizer_create(&stream, tokenizer, true, &err), 0);
    expect_push(stream, byte_id(tokenizer, 0xC3), "", 1);
    expect_push(stream, token_id(tokenizer, "<|endoftext|>"), "", 1);
    expect_push(stream, byte_id(tokenizer, 0xA9), "\xC3\xA9", 0);
    expect_finish(stream, "");
    detokenizer_free(stream);
    tokenizer_free(tokenizer);
}

Test(detokenize, byte_fallback_holds_back_a_run_until_it_ends)
{
    struct tokenizer *tokenizer = open_tokenizer(DATA "llama.json");
    struct error err = ERROR_INIT;
    struct detokenizer *stream;
    cr_assert_eq(detokenizer_create(&stream, tokenizer, true, &err), 0);
    int32_t a = token_id(tokenizer, "a");
    int32_t space_a = token_id(tokenizer, "\xE2\x96\x81"
                                          "a");
    int32_t c3 = token_id(tokenizer, "<0xC3>");
    int32_t a9 = token_id(tokenizer, "<0xA9>");
    cr_assert(a >= 0 && space_a >= 0 && c3 >= 0 && a9 >= 0);
    expect_push(stream, token_id(tokenizer, "<s>"), "", 0);
    expect_push(stream, space_a, "a", 0);  /* Strip takes one space off the start, ... */
    expect_push(stream, space_a, " a", 0); /* ... and only there */
    /* One byte more may still turn the whole run into U+FFFD, so it waits. */
    expect_push(stream, c3, "", 1);
    expect_push(stream, a9, "", 2);
    expect_push(stream, a,
                "\xC3\xA9"
                "a",
                0);
    expect_push(stream, c3, "", 1);
    expect_push(stream, a9, "", 2);
    expect_push(stream, c3, "", 3);
    expect_push(stream, a,
                "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                "a",
                0);
    expect_push(stream, c3, "", 1);
    expect_finish(stream, "\xEF\xBF\xBD");
    detokenizer_free(stream);
    tokenizer_free(tokenizer);
}

/* What the stream gives for ids [count], and at their end, is text [length], in whole characters.
 */
static void expect_rest(struct detokenizer *stream, const int32_t *ids, size_t count,
                        const char *text, size_t length)
{
    struct error err = ERROR_INIT;
    size_t at = 0;
    for (size_t i = 0; i <= count; i++) {
        const char *part;
        size_t bytes;
        int failed = i < count ? detokenizer_push(stream, ids[i], &part, &bytes, &err)
                               : detokenizer_finish(stream, &part, &bytes, &err);
        cr_assert_eq(failed, 0);
        cr_assert_eq(utf8_valid_length(part, bytes), bytes);
        cr_assert(at + bytes <= length && memcmp(text + at, part, bytes) == 0);
        at += bytes;
    }
    cr_assert_eq(at, length);
}

/* Any ids at all: the stream equals the whole, in whole characters. */
static void check_random_ids(const char *path)
{
    struct tokenizer *tokenizer = open_tokenizer(path);
    struct error err = ERROR_INIT;
    uint64_t random = 20261121;
    int32_t size = tokenizer_size(tokenizer);
    for (int round = 0; round < 400; round++) {
        int32_t ids[64];
        for (int i = 0; i < 64; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            /* Mostly single bytes, which is where characters break. */
            int32_t range = round % 4 ? 300 : size + 2;
            ids[i] = (int32_t)((random >> 33) % (uint64_t)range);
        }
        char *whole;
        size_t length;
        bool skip = round % 2;
        cr_assert_eq(tokenizer_decode(tokenizer, ids, 64, skip, &whole, &length, &err), 0);
        cr_assert_eq(utf8_valid_length(whole, length), length);
        struct detokenizer *stream;
        cr_assert_eq(detokenizer_create(&stream, tokenizer, skip, &err), 0);
        expect_rest(stream, ids, 64, whole, length);
        detokenizer_free(stream);
        free(whole);
    }
    tokenizer_free(tokenizer);
}

Test(detokenize, any_ids_stream_as_they_decode)
{
    check_random_ids(DATA "neox.json");
    check_random_ids(DATA "llama.json");
    check_random_ids(DATA "llama3.json");
}

/* Primed with a text that ends on a character, the stream is what the whole has more. */
static void check_priming(const char *path, const char *ordinary)
{
    struct tokenizer *tokenizer = open_tokenizer(path);
    struct error err = ERROR_INIT;
    uint64_t random = 20261123;
    int32_t last = token_id(tokenizer, ordinary);
    cr_assert_geq(last, 0);
    for (int round = 0; round < 400; round++) {
        int32_t ids[32];
        for (int i = 0; i < 32; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int32_t)((random >> 33) % 300);
        }
        size_t primed = (size_t)(random >> 60) + 1;
        ids[primed - 1] = last;
        bool skip = round % 2;
        char *whole, *before;
        size_t length, at;
        cr_assert_eq(tokenizer_decode(tokenizer, ids, 32, skip, &whole, &length, &err), 0);
        cr_assert_eq(tokenizer_decode(tokenizer, ids, primed, skip, &before, &at, &err), 0);
        struct detokenizer *stream;
        cr_assert_eq(detokenizer_create(&stream, tokenizer, skip, &err), 0);
        cr_assert_eq(detokenizer_prime(stream, ids, primed, &err), 0);
        cr_assert_leq(at, length);
        expect_rest(stream, ids + primed, 32 - primed, whole + at, length - at);
        detokenizer_free(stream);
        free(whole);
        free(before);
    }
    tokenizer_free(tokenizer);
}

Test(detokenize, goes_on_behind_a_text_that_was_told)
{
    check_priming(DATA "neox.json", "a");
    check_priming(DATA "llama.json", "a");
    check_priming(DATA "llama3.json", "a");
}

Test(detokenize, empty_text)
{
    struct tokenizer *tokenizer = open_tokenizer(DATA "llama.json");
    struct error err = ERROR_INIT;
    char *text;
    size_t length;
    cr_assert_eq(tokenizer_decode(tokenizer, NULL, 0, true, &text, &length, &err), 0);
    cr_assert_str_eq(text, "");
    cr_assert_eq(length, 0);
    free(text);
    tokenizer_free(tokenizer);
}
