/* SPDX-License-Identifier: Apache-2.0 */
/* Calls told in parts: what each push brings, parts that add up to the whole however the text is
 * cut, and calls that go wrong after they were begun. */
#include "tests/unit/chat_replies.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(chat_parts);

static const char TOOLS[] =
    "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": "
    "\"string\"}, \"i\": {\"type\": \"integer\"}, \"l\": {\"type\": \"array\"}}}}}, {\"function\": "
    "{\"name\": \"g\"}}]";

/* Name and arguments of all calls, "!" behind one that is cut off and "|" between parts. */
static void put_calls(struct strbuf *out, const struct chat_calls *calls, const char *between)
{
    for (size_t i = 0; i < calls->count; i++) {
        const struct chat_call *call = &calls->items[i];
        strbuf_puts(out, call->name ? call->name : between);
        strbuf_append(out, call->arguments, call->arguments_length);
        strbuf_puts(out, call->cut ? "!" : "");
    }
}

/* As a stream has them: what each piece brings is taken and forgotten. */
static void put_stream(struct strbuf *out, struct strbuf *content, const struct chat_rules *rules,
                       const char *text, size_t piece, const char *between)
{
    struct chat_parser parser = {.rules = rules};
    struct chat_output output = {0};
    size_t length = strlen(text);
    for (size_t at = 0; at <= length; at += piece) {
        chat_output_reset(&output);
        if (at < length)
            chat_parser_push(&parser, text + at, piece < length - at ? piece : length - at,
                             &output);
        if (at + piece > length)
            chat_parser_finish(&parser, &output);
        cr_assert_not(output.failed);
        put_calls(out, &output.calls, between);
        strbuf_append(content, output.content.data, output.content.length);
    }
    cr_assert_eq(parser.num_begun >= parser.num_calls, true);
    chat_output_clear(&output);
    chat_parser_clear(&parser);
}

static void expect_parts(int syntax, const char *text, const char *calls, const char *content)
{
    struct chat_rules rules = rules_of(syntax, TOOLS);
    struct result whole = parse_all_ways(&rules, text, strlen(text));
    struct strbuf told = {0};
    put_calls(&told, &whole.output.calls, "?");
    expect_text(&told, calls, text);
    expect_text(&whole.output.content, content, text);
    for (size_t piece = 1; piece < 20; piece++) {
        struct strbuf parts = {0}, rest = {0};
        put_stream(&parts, &rest, &rules, text, piece, "");
        expect_text(&parts, calls, text);
        expect_text(&rest, content, text);
        strbuf_clear(&parts);
        strbuf_clear(&rest);
    }
    strbuf_clear(&told);
    chat_output_clear(&whole.output);
    chat_types_clear(&rules.types);
}

#define J(rest) "<tool_call>{\"name\": \"f\", \"arguments\": " rest
#define X(rest) "<tool_call>\n<function=f>\n" rest
#define P "<parameter=s>\n"
#define E "\n</parameter>\n"

Test(chat_parts, parts_add_up_to_the_whole)
{
    static const struct {
        int syntax;
        const char *text, *calls, *content;
    } CASES[] = {
        {HERMES, J("{ \"s\" :\"a\\\"b\\u00e9\\ud83d\\ude42\" , \"i\":5 }}</tool_call>"),
         "f{ \"s\" :\"a\\\"b\\u00e9\\ud83d\\ude42\" , \"i\":5 }", ""},
        {HERMES, J("{\"i\": \"5\", \"s\": 5, \"l\": [1, {\"x\": \"]\"}]}}</tool_call>"),
         "f{\"i\": 5, \"s\": \"5\", \"l\": [1, {\"x\": \"]\"}]}", ""},
        {HERMES, J("{}, \"id\": \"x\"}\n</tool_call>\n") J("{}}</tool_call>"), "f{}f{}", ""},
        {HERMES, "<tool_call>{\"name\": \"\\u0067\", \"parameters\": {\"q\": [1e3]}}</tool_call>",
         "g{\"q\": [1e3]}", ""},
        {HERMES, "<tool_call>{\"arguments\": {\"a\":1}, \"name\": \"g\"}</tool_call>", "g{\"a\":1}",
         ""},
        {NEMOTRON,
         "a<TOOLCALL>[{\"name\": \"g\", \"arguments\": {\"a\": {}}}, {\"name\": \"h\"}, "
         "{\"arguments\": {\"i\": \"5\"}, \"name\": \"f\"}, {\"name\": \"f\", \"arguments\": {}}]"
         "</TOOLCALL>b",
         "g{\"a\": {}}h{}f{\"i\": 5}f{}", "ab"},
        {QWEN,
         X(P "two\nlines, 世界 \"q\"\n" E "<parameter=i>\n5.0" E "<parameter=l>\n['x']" E
             "</function>\n</tool_call>"),
         "f{\"s\": \"two\\nlines, 世界 \\\"q\\\"\\n\", \"i\": 5, \"l\": [\"x\"]}", ""},
        {QWEN, X(P "\n" E P "" E P E "</function>"), "f{\"s\": \"\\n\", \"s\": \"\", \"s\": \"\"}",
         ""},
        {QWEN, X("</function>\n</tool_call>"), "f{}", ""},
        {LFM,
         "<|tool_call_start|>[f(s='a, (b', i='7',), g(), f(l=[1, {'k': \")\"}])]"
         "<|tool_call_end|>.",
         "f{\"s\": \"a, (b\", \"i\": 7}g{}f{\"l\": [1, {\"k\": \")\"}]}", "."},
        {OLMO, "<function_calls>\nf( s = \"x\" )\ng(a=None)\n</function_calls>",
         "f{\"s\": \"x\"}g{\"a\": null}", ""},
        {LLAMA,
         "{\"name\": \"f\", \"parameters\": {\"s\": \"x\", \"i\": \"5\"}}; {\"name\": \"g\"}",
         "f{\"s\": \"x\", \"i\": 5}g{}", ""},
        {LLAMA4, "[f(s='a]', i='7'), g()].", "f{\"s\": \"a]\", \"i\": 7}g{}", "."},
        {GLM, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x\ny</arg_value>\n</tool_call>",
         "f{\"s\": \"x\\ny\"}", ""},
        {MINIMAX,
         "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter "
         "name=\"i\">5</parameter>\n</invoke>\n"
         "<invoke name=\"g\"></invoke></minimax:tool_call>",
         "f{\"i\": 5}g{}", ""},
        {GEMMA, "<|tool_call>call:f{l:[<|\"|>]<|\"|>],s:<|\"|>}<|\"|>}<tool_call|>",
         "f{\"l\": [\"]\"], \"s\": \"}\"}", ""},
        {KIMI,
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
         "{\"i\": \"5\"}<|tool_call_end|><|tool_calls_section_end|>.",
         "f{\"i\": 5}", "."},
        {MISTRAL, "[TOOL_CALLS]f[ARGS]{\"s\": 5}[TOOL_CALLS]g[ARGS]{}", "f{\"s\": \"5\"}g{}", ""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        expect_parts(CASES[i].syntax, CASES[i].text, CASES[i].calls, CASES[i].content);
}

Test(chat_parts, calls_that_go_wrong_are_cut_off_there)
{
    static const struct {
        int syntax;
        const char *text, *calls, *content;
    } CASES[] = {
        {HERMES, J("{\"s\": \"a\"b\"}}</tool_call>"), "f{\"s\": \"a\"!", "b\"}}</tool_call>"},
        {HERMES, J("{\"i\": 01}}</tool_call>"), "f{\"i\": 01!", "}}</tool_call>"},
        {HERMES, J("{\"l\": [nul]}}</tool_call>"), "f{\"l\": [nul!", "]}}</tool_call>"},
        {HERMES, J("{\"s\": \"\\q\"}}</tool_call>"), "f{\"s\": \"\\!", "q\"}}</tool_call>"},
        {HERMES, J("{\"s\": \"\\ud83d x\"}}"), "f{\"s\": \"\\ud83d!", "x\"}}"},
        {HERMES, J("{\"i\": 1e999}}"), "f{\"i\": 1e999!", "}}"},
        {HERMES, J("{\"s\": \"x\ny\"}}"), "f{\"s\": \"x!", "y\"}}"},
        /* The last brace waits for the closing marker. */
        {HERMES, J("{\"i\": 1}} x</tool_call>"), "f{\"i\": 1!", "x</tool_call>"},
        {HERMES, J("{\"i\": 1}}}</tool_call>"), "f{\"i\": 1!", "}</tool_call>"},
        {HERMES, J("{\"i\": 1}"), "f{\"i\": 1!", ""},
        {HERMES, J("{\"i\": 1"), "f{\"i\": 1!", ""},
        {HERMES, J("{\"i\": \"1"), "f{\"i\": \"1!", ""},
        {HERMES, J("{"), "f{!", ""},
        {HERMES, J("{\"i\": 1}}</tool"), "f{\"i\": 1}", ""},
        {HERMES, J("{") "\n" J("{}}</tool_call>"), "f{\n!f{}", ""},
        {NEMOTRON, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}, 5]</TOOLCALL>", "f{}",
         ", 5]</TOOLCALL>"},
        {QWEN, X(P "x\n</para"), "f{\"s\": \"x!", ""},
        {QWEN, X(P "x" E), "f{\"s\": \"x\"!", ""},
        {QWEN, X("<parameter=i>\n12"), "f{\"i\": 12!", ""},
        {QWEN, X(P "x" E "y</function>\n</tool_call>"),
         "f{\"s\": \"x\\n</parameter>\\ny</function>\\n</tool_call>!", ""},
        {LFM, "<|tool_call_start|>[f(i=1, s='it's')]<|tool_call_end|>", "f{\"i\": 1!",
         "s='it's')]<|tool_call_end|>"},
        {LFM, "<|tool_call_start|>[f(i=1, x)]<|tool_call_end|>", "f{\"i\": 1!",
         "x)]<|tool_call_end|>"},
        {LFM, "<|tool_call_start|>[f(i=1, s='ab", "f{\"i\": 1, \"s\": \"ab!", ""},
        {LFM, "<|tool_call_start|>[g(), f(i=1, ", "g{}f{\"i\": 1!", ""},
        {LFM, "<|tool_call_start|>[g()]<|tool_ca", "g{}", ""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        expect_parts(CASES[i].syntax, CASES[i].text, CASES[i].calls, CASES[i].content);
}

/* What each piece of ten bytes brings; "|" before what goes on. */
Test(chat_parts, parts_come_as_the_text_does)
{
    static const struct {
        int syntax;
        const char *text, *parts;
    } CASES[] = {
        {HERMES, J("{\"s\": \"one two three four\", \"i\": 12345678901234567}}</tool_call>"),
         "f{\"|s\": \"one t|wo three f|our\", \"i\":| |12345678901234567|}"},
        {QWEN, X(P "one two three four five six seven" E "</function>\n</tool_call>"),
         "f{\"s\": \"|one two t|hree four |five six s|even|\"|}"},
        {LFM, "<|tool_call_start|>[f(s='one two three', i=5)]<|tool_call_end|>",
         "f{|\"s\": \"one two three\"|, \"i\": 5}"},
        {MISTRAL, "[TOOL_CALLS]f[ARGS]{\"s\": \"one two three four\"}",
         "f{|\"s\": \"one |two three |four\"}"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct chat_rules rules = rules_of(CASES[i].syntax, TOOLS);
        struct strbuf parts = {0}, rest = {0};
        put_stream(&parts, &rest, &rules, CASES[i].text, 10, "|");
        expect_text(&parts, CASES[i].parts, CASES[i].text);
        strbuf_clear(&parts);
        strbuf_clear(&rest);
        chat_types_clear(&rules.types);
    }
}

Test(chat_parts, one_call_of_several)
{
    static const char TEXT[] = J("{\"i\": 1}}</tool_call>") J("{\"i\": 2}}</tool_call>");
    struct chat_rules rules = rules_of(HERMES, TOOLS);
    rules.one_call = true;
    for (size_t piece = 1; piece < sizeof TEXT; piece++) {
        struct strbuf parts = {0}, rest = {0};
        put_stream(&parts, &rest, &rules, TEXT, piece, "");
        expect_text(&parts, "f{\"i\": 1}", TEXT);
        expect_text(&rest, "", TEXT);
        strbuf_clear(&parts);
        strbuf_clear(&rest);
    }
    chat_types_clear(&rules.types);
}

/* A file that a tool is to write may be longer than a call that is held back. */
Test(chat_parts, long_calls_in_time_that_grows_with_them)
{
    static const struct {
        int syntax;
        const char *begin, *unit, *end;
    } CASES[] = {
        {HERMES, J("{\"s\": \""), "x \\n", "\"}}</tool_call>"},
        {HERMES, J("{\"l\": [1"), ", 12", "]}}</tool_call>"},
        {QWEN, X(P), "</b>", E "</function>\n</tool_call>"},
        {QWEN, X("<parameter=l>\n[1"), ", 12", "]" E "</function>\n</tool_call>"},
        {LFM, "<|tool_call_start|>[f(s='", "x, y", "')]<|tool_call_end|>"},
        {LLAMA, "{\"name\": \"f\", \"parameters\": {\"s\": \"", "x \\n", "\"}}"},
        {LLAMA4, "[f(s='", "x, y", "')]"},
        {GLM, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>", "</b>",
         "</arg_value>\n</tool_call>"},
        {GEMMA, "<|tool_call>call:f{s:<|\"|>", "x, <y", "<|\"|>}<tool_call|>"},
        {KIMI, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\": \"", "x \\n",
         "\"}<|tool_call_end|>"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct chat_rules rules = rules_of(CASES[i].syntax, TOOLS);
        struct strbuf text = {0};
        strbuf_puts(&text, CASES[i].begin);
        while (text.length < 1000000)
            strbuf_puts(&text, CASES[i].unit);
        strbuf_puts(&text, CASES[i].end);
        for (size_t piece = 3; piece < 10000000; piece *= 1000) {
            struct result result = parse(&rules, text.data, text.length, piece, piece);
            cr_assert_eq(result.output.calls.count, 1);
            cr_expect_not(result.output.calls.items[0].cut, "%zu", i);
            cr_expect_gt(result.output.calls.items[0].arguments_length, 999000);
            chat_output_clear(&result.output);
        }
        strbuf_clear(&text);
        chat_types_clear(&rules.types);
    }
}
