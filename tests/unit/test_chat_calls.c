/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a request's tools in replies: without markers, with values of the types that the tools
 * ask for, and demanded ones that are cut off. */
#include "tests/unit/chat_replies.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(chat_calls);

Test(chat_calls, functions_of_tools_need_no_markers)
{
#define F "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"
#define G "<function=g>\n</function>"
    static const struct {
        const char *text, *content, *calls;
    } CASES[] = {
        {F, "", "[[\"f\", {\"a\": 1}]]"},
        {F "\n</tool_call>", "", "[[\"f\", {\"a\": 1}]]"},
        {F "\n</tool_", "", "[[\"f\", {\"a\": 1}]]"},
        {"So.\n\n" F "\nDone.", "So.\nDone.", "[[\"f\", {\"a\": 1}]]"},
        {F "\n" G "\n</tool_call>", "", "[[\"f\", {\"a\": 1}], [\"g\", {}]]"},
        {"<tool_call>\n" F "\n" G "\n</tool_call>", "", "[[\"f\", {\"a\": 1}], [\"g\", {}]]"},
        {"<tool_call>\n" F " x", "x", "[[\"f\", {\"a\": 1}]]"},
        {F "\n</tool_call>\n<tool_call>\n" G "\n</tool_call>\n", "",
         "[[\"f\", {\"a\": 1}], [\"g\", {}]]"},
        {"<tool_call> call it: " F, "<tool_call> call it:", "[[\"f\", {\"a\": 1}]]"},
        {"<function=h> <function=<function=f</function>" G,
         "<function=h> <function=<function=f</function>", "[[\"g\", {}]]"},
        {"<function=h<tool_call>" G "</tool_call>", "<function=h", "[[\"g\", {}]]"},
        {"<function=h>\n</function>\n</tool_call>", "<function=h>\n</function>\n</tool_call>",
         "[]"},
        {"Write <function=f> to call it.", "Write <function=f> to call it.", "[]"},
        {"<function=f> <parameter=", "<function=f> <parameter=", "[]"},
        {"<tool_call>\n<function=h>\n</function>\n", "", "[[\"h\", {}]]"},
        {"<function=", "<function=", "[]"},
        {"<function=f", "<function=f", "[]"},
    };
    struct chat_rules rules =
        rules_of(QWEN, "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": "
                       "{\"type\": \"integer\"}}}}}, {\"function\": {\"name\": \"g\"}}]");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        json_t *calls = json_loads(CASES[i].calls, 0, NULL);
        expect(&rules, CASES[i].text, "", CASES[i].content, calls);
        json_decref(calls);
    }
    chat_types_clear(&rules.types);
}

Test(chat_calls, values_of_xml_are_of_the_types_that_the_tools_have)
{
    static const char SCHEMA[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"s\": {\"type\": \"string\"}, \"i\": {\"type\": "
        "\"integer\"}, \"l\": {\"type\": \"array\"}, \"n\": {\"type\": \"number\"}, \"b\": "
        "{\"type\": \"boolean\"}, \"o\": "
        "{\"type\": [\"object\", \"null\"]}, \"e\": {\"enum\": [1, \"two\"]}, \"r\": {\"$ref\": "
        "\"#/x\"}, \"k\": {\"$ref\": \"#/$defs/I\"}, \"y\": {\"anyOf\": [{\"$ref\": "
        "\"#/$defs/I\"}, {\"type\": \"null\"}]}, \"u\": {}}, "
        "\"$defs\": {\"I\": {\"type\": \"integer\", \"enum\": [1, 2]}}}}}, {\"type\": \"odd\"}, "
        "{\"function\": {\"name\": 5}}]";
    static const struct {
        const char *key, *value, *expected;
    } CASES[] = {
        {"s", "12", "\"12\""},
        {"s", "null", "\"null\""},
        {"i", "12", "12"},
        {"i", "1.5", "\"1.5\""},
        {"i", "5.0", "5"},
        {"l", "['a', None]", "[\"a\", null]"},
        {"i", " 7 ", "7"},
        {"i", "007", "\"007\""},
        {"n", "1.5", "1.5"},
        {"n", "2", "2"},
        {"n", "NaN", "\"NaN\""},
        {"b", "True", "true"},
        {"b", "false", "false"},
        {"b", "yes", "\"yes\""},
        {"o", "{\"a\": [1]}", "{\"a\": [1]}"},
        {"o", "None", "null"},
        {"o", "[1]", "\"[1]\""},
        {"o", "{\"a\": 1, \"a\": 2}", "\"{\\\"a\\\": 1, \\\"a\\\": 2}\""},
        {"e", "1", "1"},
        {"e", "two", "\"two\""},
        {"r", "[1]", "[1]"},
        {"r", "1", "\"1\""},
        {"k", "1", "1"},
        {"k", "x", "\"x\""},
        {"y", "2", "2"},
        {"y", "null", "null"},
        {"u", "1", "\"1\""},
        {"absent", "{}", "\"{}\""},
        {"i", "1}, \"x\": {2", "\"1}, \\\"x\\\": {2\""},
    };
    struct chat_rules rules = rules_of(QWEN, SCHEMA);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=f>\n<parameter=%s>\n%s\n</parameter>\n</function>\n"
                 "</tool_call>",
                 CASES[i].key, CASES[i].value);
        json_t *value = json_loads(CASES[i].expected, JSON_DECODE_ANY, NULL);
        json_t *calls = json_pack("[[s,{s:o}]]", "f", CASES[i].key, value);
        expect(&rules, text, "", "", calls);
        json_decref(calls);
    }
    chat_types_clear(&rules.types);
}

Test(chat_calls, values_have_the_types_that_the_tools_ask_for)
{
    static const char TOOL[] = "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
                               "{\"s\": {\"type\": \"string\"}, "
                               "\"i\": {\"type\": \"integer\"}, \"n\": {\"type\": \"number\"}, "
                               "\"b\": {\"type\": \"boolean\"}, "
                               "\"l\": {\"type\": \"array\"}, \"o\": {\"type\": [\"object\", "
                               "\"null\"]}, \"si\": {\"type\": "
                               "[\"string\", \"integer\"]}, \"any\": {}, \"some\": {\"anyOf\": "
                               "[{}, {\"type\": \"null\"}]}}}}}]";
    static const struct {
        const char *key, *value, *expected;
    } CASES[] = {
        {"i", "\"5\"", "5"},
        {"i", "\" -7 \"", "-7"},
        {"i", "5.0", "5"},
        {"i", "\"5.0\"", "5"},
        {"i", "\"5.5\"", "\"5.5\""},
        {"i", "5.5", "5.5"},
        {"i", "1e300", "1e300"},
        {"i", "\"five\"", "\"five\""},
        {"i", "\"\"", "\"\""},
        {"i", "\"5 6\"", "\"5 6\""},
        {"i", "true", "true"},
        {"n", "\"2.50\"", "2.50"},
        {"n", "\"3\"", "3"},
        {"n", "3", "3"},
        {"b", "\"True\"", "true"},
        {"b", "\"false\"", "false"},
        {"b", "1", "1"},
        {"l", "\"['a', True]\"", "[\"a\", true]"},
        {"l", "\"[1, 2]\"", "[1, 2]"},
        {"l", "\"{}\"", "\"{}\""},
        {"l", "[\"5\"]", "[\"5\"]"},
        {"o", "\"{\\\"a\\\": 1}\"", "{\"a\": 1}"},
        {"o", "\"{\\\"a\\\": 1, \\\"a\\\": 2}\"", "\"{\\\"a\\\": 1, \\\"a\\\": 2}\""},
        {"o", "\"None\"", "null"},
        {"s", "5", "\"5\""},
        {"s", "1.50", "\"1.50\""},
        {"s", "true", "\"true\""},
        {"s", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
        {"s", "null", "null"},
        {"s", "\"5\"", "\"5\""},
        {"si", "\"5\"", "\"5\""},
        {"si", "5.0", "5"},
        {"si", "[]", "\"[]\""},
        {"any", "5", "5"},
        {"any", "\"5\"", "\"5\""},
        {"some", "5", "5"},
        {"other", "\"5\"", "\"5\""},
    };
    struct chat_rules rules = rules_of(HERMES, TOOL);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1, \"%s\": %s}}</tool_call>",
                 CASES[i].key, CASES[i].value);
        json_t *value = json_loads(CASES[i].expected, JSON_DECODE_ANY, NULL);
        json_t *calls = json_pack("[[s,{s:i,s:o}]]", "f", "x", 1, CASES[i].key, value);
        expect(&rules, text, "", "", calls);
        json_decref(calls);
    }
    /* The others stay as they were written. */
    static const char BIG[] =
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 12345678901234567890,"
        "\"i\":\"5\", \"\\u0069\": \"6\"}}</tool_call>";
    struct result result = parse(&rules, BIG, sizeof BIG - 1, sizeof BIG, 1);
    cr_assert_eq(result.output.calls.count, 1);
    cr_expect_str_eq(result.output.calls.items[0].arguments,
                     "{\"x\": 12345678901234567890,\"i\":5, \"\\u0069\": \"6\"}");
    chat_output_clear(&result.output);
    static const char ONE[] =
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\":12345678901234567890,"
        "\"i\":\"5\"}}</tool_call>";
    result = parse(&rules, ONE, sizeof ONE - 1, sizeof ONE, 1);
    cr_assert_eq(result.output.calls.count, 1);
    cr_expect_str_eq(result.output.calls.items[0].arguments,
                     "{\"x\":12345678901234567890,\"i\":5}");
    chat_output_clear(&result.output);
    chat_types_clear(&rules.types);
    rules = rules_of(LFM, TOOL);
    json_t *calls =
        json_loads("[[\"f\", {\"i\": 5, \"s\": \"7\"}], [\"g\", {\"i\": \"5\"}]]", 0, NULL);
    expect(&rules, "<|tool_call_start|>[f(i='5', s=7), g(i='5')]<|tool_call_end|>", "", "", calls);
    json_decref(calls);
    chat_types_clear(&rules.types);
}

/* Where calls are demanded, one that the end of the text cut is told as far as it goes; one that is
 * too long is content, cut or not. */
Test(chat_calls, demanded_calls_that_are_cut_off)
{
    static char calls[] = "[]";
    struct chat_rules rules = {.syntax = &SYNTAXES[HERMES], .calls = true, .demand.calls = calls};
    struct strbuf text = {0};
    for (size_t length = 10; length < 1000000; length *= 1000) {
        strbuf_reset(&text);
        strbuf_puts(&text, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"");
        for (size_t i = 0; i < length * 20; i++)
            strbuf_puts(&text, "x");
        strbuf_puts(&text, "\"}}\n</tool_call>");
        bool is_long = text.length > 128 << 10;
        for (size_t cut = 0; cut < 30; cut++)
            for (size_t piece = 500; piece < 10000000; piece *= 100) {
                size_t left = text.length - cut;
                struct result result = parse(&rules, text.data, left, piece, piece);
                cr_expect_eq(result.output.calls.count, !is_long);
                cr_expect_eq(result.output.content.length, is_long ? left : 0, "%zu of %zu: %zu",
                             left, text.length, result.output.content.length);
                chat_output_clear(&result.output);
            }
        for (size_t left = 0; left < 60; left++) { /* the first marker is cut too */
            struct result result = parse(&rules, text.data, left, 1, 1);
            const struct chat_calls *told = &result.output.calls;
            size_t named = strlen("<tool_call>\n{\"name\": \"f\"");
            size_t arguments = strlen("<tool_call>\n{\"name\": \"f\", \"arguments\": ");
            cr_expect_eq(result.output.content.length, 0);
            cr_assert_eq(told->count, left >= named, "%zu", left);
            cr_expect(told->count == 0 ||
                      told->items[0].arguments_length == (left > arguments ? left - arguments : 0));
            chat_output_clear(&result.output);
        }
    }
    strbuf_clear(&text);
}

Test(chat_calls, what_there_is_of_demanded_calls_that_are_cut_off)
{
    static const struct {
        int syntax;
        const char *text, *calls; /* name and arguments of each */
    } CASES[] = {
        {NEMOTRON,
         "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
         "\"arguments\": {\"b\": \"x",
         "f{\"a\": 1}g{\"b\": \"x"},
        {NEMOTRON, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g", "f{}"},
        {NEMOTRON, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLC", "f{}"},
        {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, 2", "f{\"a\": [1, 2"},
        {HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\", \"arg",
         "f{}g"},
        {HERMES, "<tool_call>{\"na", ""},
        {HERMES, "<tool_call>{\"name\":", ""},
        {HERMES, "<tool_call>{\"name\": \"\\u0041\"", "A"},
        {QWEN,
         "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\nx "
         "\"y\"\n</para",
         "f{\"a\": 1, \"s\": \"x \\\"y\\\""},
        {QWEN, "<tool_call>\n<function=f>\n<parameter=a>\n12", "f{\"a\": 12"},
        {QWEN, "<tool_call>\n<function=f>\n<parameter=s>", "f{\"s\": \""},
        {QWEN, "<tool_call>\n<function=f>\n<parameter=s", "f{"},
        {QWEN, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</func", "f{\"a\": 1"},
        {QWEN, "<tool_call>\n<function=f", ""},
        {LFM, "<|tool_call_start|>[f(a=1, b=['x', {'c': 'y",
         "f{\"a\": 1, \"b\": [\"x\", {\"c\": \"y"},
        {LFM, "<|tool_call_start|>[f(a=1), g(b=", "f{\"a\": 1}g{"},
        {LFM, "<|tool_call_start|>[f(a=1), g", "f{\"a\": 1}"},
        {LFM, "<|tool_call_start|>[f(a=1)]<|tool_call_", "f{\"a\": 1}"},
        {LFM, "<|tool_call_start|>[f(a=[[1], [2]", "f{\"a\": [[1], [2]"},
        {LFM, "<|tool_call_start|>[", ""},
        {OLMO, "<function_calls>f(a=1)\ng(b=\"x\\", "f{\"a\": 1}g{\"b\": \"x"},
        {OLMO, "<function_calls>f(a=1)\n</functio", "f{\"a\": 1}"},
    };
    static char demanded[] = "[]";
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct chat_rules rules =
            rules_of(CASES[i].syntax,
                     "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": "
                     "{\"type\": [\"integer\", \"array\"]}, \"s\": {\"type\": \"string\"}}}}}, "
                     "{\"function\": {\"name\": \"g\"}}]");
        rules.demand.calls = demanded;
        struct result result = parse_all_ways(&rules, CASES[i].text, strlen(CASES[i].text));
        struct strbuf told = {0};
        for (size_t j = 0; j < result.output.calls.count; j++)
            strbuf_printf(&told, "%s%s", result.output.calls.items[j].name,
                          result.output.calls.items[j].arguments);
        expect_text(&told, CASES[i].calls, CASES[i].text);
        expect_text(&result.output.content, "", CASES[i].text);
        strbuf_clear(&told);
        chat_output_clear(&result.output);
        chat_types_clear(&rules.types);
    }
}
