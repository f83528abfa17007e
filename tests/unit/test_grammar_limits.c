/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile constraints: each is refused, or compiled, in bounded time. */
#include "lib/base/clock.h"
#include "tests/unit/grammar_texts.h"

#include <stdio.h>
#include <stdlib.h>

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

/* Generous: what the limits are for would take minutes or hours. */
static const double MOST_SECONDS = 60;

/* Compiles in bounded time. message: NULL if it is compiled, else how the refusal begins. */
static void expect_bounded(const struct grammar_texts *texts, enum grammar_kind kind, json_t *spec,
                           const char *message)
{
    struct error err = ERROR_INIT;
    double start = clock_seconds();
    struct grammar *grammar = compile(texts, kind, spec, &err);
    cr_assert_lt(clock_seconds() - start, MOST_SECONDS);
    cr_assert_eq(grammar != NULL, message == NULL, "%s", err.message);
    grammar_release(grammar);
    if (!message)
        return;
    cr_assert_eq(err.code, ERROR_UNSUPPORTED);
    cr_assert(strncmp(err.message, message, strlen(message)) == 0, "expected \"%s\", got \"%s\"",
              message, err.message);
}

static json_t *reference(int to)
{
    return json_pack("{s:o}", "$ref", json_sprintf("#/$defs/%d", to));
}

/* Definitions 0 to `count`, of which each has `key`: the one behind it, twice. */
static json_t *doubling(const char *key, int count)
{
    json_t *definitions = json_object();
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        json_object_set_new(definitions, name,
                            json_pack("{s:[o,o]}", key, reference(i + 1), reference(i + 1)));
    }
    char last[16];
    snprintf(last, sizeof last, "%d", count);
    json_object_set_new(definitions, last, json_pack("{s:s}", "type", "string"));
    return definitions;
}

/* Each choice below a list or an object is tried by itself. */
Test(grammar_limits, choices_of_choices)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA,
                   json_pack("{s:[[i]],s:o,s:o}", "enum", 1, "items", reference(0), "$defs",
                             doubling("anyOf", 50)),
                   "$....");
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA,
                   json_pack("{s:o,s:o}", "items", reference(0), "$defs", doubling("allOf", 25)),
                   "$....");
    grammar_texts_close(&texts);
}

/* Patterns that split names in 2^count ways. */
static json_t *overlapping(int count, json_t *schema)
{
    json_t *patterns = json_object();
    for (int i = 0; i < count; i++) {
        char pattern[16];
        snprintf(pattern, sizeof pattern, "%c", 'a' + i);
        json_object_set(patterns, pattern, schema);
    }
    json_decref(schema);
    return json_pack("{s:o,s:b}", "patternProperties", patterns, "additionalProperties", 1);
}

Test(grammar_limits, patterns_that_overlap)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA, overlapping(16, json_false()), NULL);
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA, overlapping(8, json_pack("{s:[b]}", "allOf", 0)),
                   "$.patternProperties: expected patterns that overlap in at most 64 ways");
    grammar_texts_close(&texts);
}

static json_t *values(int count, const char *format)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_sprintf(format, i));
    return list;
}

Test(grammar_limits, expressions_for_many_values)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    json_t *same = json_array();
    for (int i = 0; i < 100000; i++)
        json_array_append_new(same, json_string("ab"));
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA,
                   json_pack("{s:o,s:s}", "enum", same, "pattern", "^(a|b)*b(a|b){0,12}$"), NULL);
    json_t *properties = json_object();
    for (int i = 0; i < 3000; i++) {
        char name[16], pattern[64];
        snprintf(name, sizeof name, "p%d", i);
        snprintf(pattern, sizeof pattern, "^(a|b)*a(a|b){12}%d$", i);
        json_object_set_new(properties, name,
                            json_pack("{s:s,s:[s]}", "pattern", pattern, "enum", "a"));
    }
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA, json_pack("{s:o}", "properties", properties),
                   "$.properties.p");
    /* Its sets of states would take 512 MB. */
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA, json_pack("{s:s}", "pattern", "a.{0,9000}b"),
                   "$.pattern: expected an expression that an automaton");
    grammar_texts_close(&texts);
}

Test(grammar_limits, schemas_that_are_looked_at_again)
{
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    json_t *properties = json_object(), *branches = json_array();
    for (int i = 0; i < 50000; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(properties, name, json_true());
    }
    for (int i = 0; i < 10000; i++)
        json_array_append_new(branches, json_pack("{s:s}", "$ref", "#/$defs/x"));
    expect_bounded(
        &texts, GRAMMAR_JSON_SCHEMA,
        json_pack("{s:o,s:{s:{s:o}}}", "anyOf", branches, "$defs", "x", "properties", properties),
        "$.anyOf[");
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA,
                   json_pack("{s:[{s:o},{s:o}]}", "allOf", "enum", values(100000, "a%d"), "enum",
                             values(100000, "b%d")),
                   "$.allOf[1]: expected what takes at most");
    grammar_texts_close(&texts);
}

Test(grammar_limits, items_that_are_read_again)
{
    struct grammar_texts texts;
    enum { LENGTH = 250000 };
    static char text[LENGTH + 64] = "root ::= [";
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    memset(text + strlen(text), 'a', LENGTH);
    strcat(text, "]{16384}");
    expect_bounded(&texts, GRAMMAR_GBNF, json_string(text),
                   "line 1, column 10: expected what takes at most");
    memcpy(text, "root ::= (#", 11);
    text[LENGTH] = '\n';
    strcpy(text + LENGTH + 1, "\"a\"){16384}");
    expect_bounded(&texts, GRAMMAR_GBNF, json_string(text),
                   "line 1, column 10: expected what takes at most");
    grammar_texts_close(&texts);
}

/* Limits of automata and of the builder name the schema or the line too. */
Test(grammar_limits, refusals_name_the_place)
{
    struct grammar_texts texts;
    enum { LENGTH = 100000, STRINGS = 6, NAMES = 1100 };
    static char text[LENGTH + 1];
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA,
                   json_pack("{s:{s:s,s:i}}", "items", "pattern", "^a*$", "maxLength", 70000),
                   "$.items: expected an expression that an automaton of 65536 states");
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA,
                   json_pack("{s:{s:[{s:s},{s:s}]}}", "items", "allOf", "pattern",
                             "^[a-d]*[ab][a-d]{8}$", "pattern", "^[a-d]*[ac][a-d]{8}$"),
                   "$.items.allOf[1]: expected an expression that an automaton of 65536 states");
    json_t *list = json_array(), *names = json_object();
    memset(text, 'a', LENGTH);
    for (int i = 0; i < STRINGS; i++) {
        text[0] = (char)('a' + i);
        json_array_append_new(list, json_string(text));
    }
    expect_bounded(&texts, GRAMMAR_JSON_SCHEMA,
                   json_pack("{s:{s:{s:o}}}", "properties", "x", "enum", list),
                   "$.properties.x: expected a grammar of at most 524288 states");
    for (int i = 0; i < NAMES; i++) {
        char name[] = {(char)(0xE4 + i / 4096), (char)(0x80 + i / 64 % 64), (char)(0x80 + i % 64),
                       0};
        json_object_set_new(names, name, json_true());
    }
    expect_bounded(
        &texts, GRAMMAR_JSON_SCHEMA,
        json_pack("{s:{s:o,s:b}}", "items", "properties", names, "additionalProperties", 1),
        "$.items.properties: expected an expression that tells at most 1024 kinds");
    expect_bounded(&texts, GRAMMAR_GBNF,
                   json_string("root ::= \"a\"\nx ::= (\"b\"{16384}){16384}\n"), "line 2, column ");
    grammar_texts_close(&texts);
}
