/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile constraints: each is refused, or compiled, in bounded time. */
#include "tests/unit/grammar_texts.h"

/* Compiles a value that it takes over. NULL: *err says why. */
static struct grammar *compile(const struct grammar_texts *texts, enum grammar_kind kind,
                               json_t *spec, struct error *err)
{
    struct grammar *grammar = NULL;
    cr_assert_not_null(spec);
    int failed = grammar_compile(&grammar, kind, spec, texts->vocabulary, err);
    json_decref(spec);
    return failed ? NULL : grammar;
}

static void expect_refused(const struct grammar_texts *texts, enum grammar_kind kind, json_t *spec,
                           const char *message)
{
    struct error err = ERROR_INIT;
    cr_assert_null(compile(texts, kind, spec, &err), "%s", message);
    cr_assert_eq(err.code, ERROR_UNSUPPORTED);
    cr_assert(strncmp(err.message, message, strlen(message)) == 0, "expected \"%s\", got \"%s\"",
              message, err.message);
}

/* U+0000 behind a backslash is that character; no text of ours has it. */
Test(grammar_limits, null_characters)
{
    struct grammar_texts texts;
    struct error err = ERROR_INIT;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    struct grammar *grammar =
        compile(&texts, GRAMMAR_REGEX, json_stringn("a|\\\0|[\\\0-\\\x01]", 12), &err);
    cr_assert_not_null(grammar, "%s", err.message);
    cr_assert(grammar_texts_allow(&texts, grammar, "a"));
    cr_assert(grammar_texts_allow(&texts, grammar, "\x01"));
    cr_assert(!grammar_texts_allow(&texts, grammar, "b"));
    grammar_release(grammar);
    expect_refused(&texts, GRAMMAR_JSON_SCHEMA, json_pack("{s:s%}", "pattern", "^a\0b$", 5),
                   "$.pattern: expected no U+0000, got one");
    expect_refused(&texts, GRAMMAR_JSON_SCHEMA, json_pack("{s:[s%]}", "required", "a\0b", 3),
                   "$.required: expected no U+0000, got one");
    expect_refused(&texts, GRAMMAR_JSON_SCHEMA, json_pack("{s:s%}", "type", "null\0x", 6),
                   "$.type: expected no U+0000, got one");
    grammar_texts_close(&texts);
}
