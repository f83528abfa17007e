/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of chats taken apart: 50 replies of each format, made by a generator that knows what is
 * in them, whole, cut in two at every byte, and byte by byte; replies that are no calls; reasoning;
 * white space; what is held back. */
#include "tests/unit/chat_replies.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(chat_parser);

static uint32_t dice = 1;

static uint32_t roll(uint32_t below)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % below;
}

/* What a reply is to be. */
struct expected {
    char *reasoning, *content;
    json_t *calls; /* [[name, arguments], ...] */
};

/* The generator. */

static const char *const WORDS[] = {
    "Oslo",
    "",
    "a \"quoted\" word",
    "two\nlines",
    "back\\slash",
    "世界 – Zürich",
    "it's <b>",
    "{\"a\": 1",
    "</function>",
    "x = [1, 2)",
    "\t tab ",
    "None",
    "🙂 </think>",
    "true",
    "<tool_call>\n{}",
    "</tool_call>",
    "12",
    "a,b;c",
};
enum { NUM_WORDS = sizeof WORDS / sizeof *WORDS };

static json_t *random_value(int depth)
{
    switch (roll(depth > 0 ? 8 : 6)) {
    case 0:
        return json_integer((json_int_t)roll(2000) - 1000);
    case 1:
        return json_real(((double)roll(2000) - 1000) / 8);
    case 2:
        return json_boolean(roll(2));
    case 3:
        return json_null();
    case 6: {
        json_t *list = json_array();
        for (uint32_t i = roll(4); i > 0; i--)
            json_array_append_new(list, random_value(depth - 1));
        return list;
    }
    case 7: {
        json_t *object = json_object();
        for (uint32_t i = roll(4); i > 0; i--)
            json_object_set_new(object, WORDS[roll(NUM_WORDS)], random_value(depth - 1));
        return object;
    }
    default:
        return json_string(WORDS[roll(NUM_WORDS)]);
    }
}

static json_t *random_arguments(void)
{
    static const char *const KEYS[] = {"city", "limit", "deep", "flag", "note_2"};
    json_t *arguments = json_object();
    for (uint32_t i = roll(5); i > 0; i--)
        json_object_set_new(arguments, KEYS[roll(5)], random_value(2));
    return arguments;
}

static void put_json(struct strbuf *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | (roll(2) ? JSON_COMPACT : 0) |
                                       (roll(2) ? JSON_ENSURE_ASCII : 0));
    strbuf_puts(out, text);
    free(text);
}

static void put_python_string(struct strbuf *out, const char *text)
{
    char quote = roll(2) ? '"' : '\'';
    strbuf_printf(out, "%c", quote);
    for (; *text; text++)
        if (*text == quote || *text == '\\')
            strbuf_printf(out, "\\%c", *text);
        else if (*text == '\n')
            strbuf_puts(out, "\\n");
        else
            strbuf_append(out, text, 1);
    strbuf_printf(out, "%c", quote);
}

static void put_python(struct strbuf *out, json_t *value)
{
    const char *key, *separator = "";
    json_t *item;
    size_t i;
    if (json_is_string(value)) {
        put_python_string(out, json_string_value(value));
    } else if (json_is_array(value)) {
        strbuf_puts(out, "[");
        json_array_foreach(value, i, item)
        {
            strbuf_puts(out, i ? ", " : "");
            put_python(out, item);
        }
        strbuf_puts(out, "]");
    } else if (json_is_object(value)) {
        strbuf_puts(out, "{");
        json_object_foreach(value, key, item)
        {
            strbuf_puts(out, separator);
            put_python_string(out, key);
            strbuf_puts(out, ": ");
            put_python(out, item);
            separator = ", ";
        }
        strbuf_puts(out, "}");
    } else if (json_is_boolean(value)) {
        strbuf_puts(out, json_is_true(value) ? "True" : "False");
    } else if (json_is_null(value)) {
        strbuf_puts(out, "None");
    } else {
        put_json(out, value);
    }
}

/* The tools of the XML calls: each function has its own types of the parameters. */
static void put_schema(json_t *tools, const char *name, json_t *arguments)
{
    json_t *properties = json_object(), *value;
    const char *key;
    json_object_foreach(arguments, key, value)
    {
        const char *type = json_is_string(value)    ? "string"
                           : json_is_integer(value) ? "integer"
                           : json_is_real(value)    ? "number"
                           : json_is_boolean(value) ? "boolean"
                           : json_is_null(value)    ? "null"
                           : json_is_array(value)   ? "array"
                                                    : "object";
        json_object_set_new(
            properties, key,
            roll(2) ? json_pack("{s:s}", "type", type)
                    : json_pack("{s:[{s:s},{s:s}]}", "anyOf", "type", type, "type", type));
    }
    json_array_append_new(tools, json_pack("{s:s,s:{s:s,s:{s:s,s:o}}}", "type", "function",
                                           "function", "name", name, "parameters", "type", "object",
                                           "properties", properties));
}

static void put_xml(struct strbuf *out, const char *name, json_t *arguments)
{
    const char *key;
    json_t *value;
    strbuf_printf(out, "<function=%s>\n", name);
    json_object_foreach(arguments, key, value)
    {
        strbuf_printf(out, "<parameter=%s>\n", key);
        if (json_is_string(value))
            strbuf_puts(out, json_string_value(value));
        else if (json_is_boolean(value) || json_is_null(value))
            put_python(out, value);
        else
            put_json(out, value);
        strbuf_puts(out, "\n</parameter>\n");
    }
    strbuf_puts(out, "</function>");
}

/* One call as the format has it, without markers. */
static void put_call(struct strbuf *out, int syntax, const char *name, json_t *arguments)
{
    const char *key, *separator = "";
    json_t *value;
    if (SYNTAXES[syntax].format == CHAT_CALLS_XML) {
        put_xml(out, name, arguments);
    } else if (SYNTAXES[syntax].format == CHAT_CALLS_JSON) {
        strbuf_printf(out, "{\"name\": \"%s\", \"%s\": ", name,
                      roll(4) ? "arguments" : "parameters");
        put_json(out, arguments);
        strbuf_puts(out, "}");
    } else {
        strbuf_printf(out, "%s(", name);
        json_object_foreach(arguments, key, value)
        {
            strbuf_printf(out, "%s%s=", separator, key);
            put_python(out, value);
            separator = ", ";
        }
        strbuf_puts(out, ")");
    }
}

/* Whether several calls share their markers. */
static bool listed(int syntax)
{
    return syntax != HERMES && syntax != QWEN;
}

static void put_calls(struct strbuf *out, int syntax, json_t *calls)
{
    const struct chat_markers *markers = &SYNTAXES[syntax].calls;
    bool brackets = listed(syntax) && syntax != OLMO;
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        bool first = i == 0 || !listed(syntax);
        bool last = i + 1 == json_array_size(calls) || !listed(syntax);
        strbuf_puts(out, first ? markers->open : syntax == OLMO ? "\n" : ", ");
        strbuf_puts(out, first && brackets ? "[" : listed(syntax) ? "" : "\n");
        put_call(out, syntax, json_string_value(json_array_get(call, 0)), json_array_get(call, 1));
        strbuf_puts(out, last && brackets ? "]" : listed(syntax) ? "" : "\n");
        strbuf_puts(out, last ? markers->close : "");
        strbuf_puts(out, last && !listed(syntax) && i + 1 < json_array_size(calls) ? "\n" : "");
    }
}

/* A reply with text before or after its calls, or neither, and perhaps with reasoning. */
static void check_generated(int syntax, int number)
{
    static const char *const BEFORE[] = {"", "Let me see.", "I use <b>tools</b> <", "Gleich 世!"};
    static const char *const AFTER[] = {"", "Done.", "And > that's it"};
    char name[32];
    struct chat_rules rules = {.syntax = &SYNTAXES[syntax], .calls = true};
    struct strbuf text = {0}, content = {0};
    json_t *calls = json_array(), *tools = json_array();
    const char *before = BEFORE[roll(4)], *after = AFTER[roll(3)], *reasoning = "";
    for (uint32_t i = 0, count = 1 + roll(3); i < count; i++) {
        json_t *arguments = random_arguments();
        snprintf(name, sizeof name, "get_%d_%u", number, i);
        put_schema(tools, name, arguments);
        json_array_append_new(calls, json_pack("[s,o]", name, arguments));
    }
    rules.reasoning = *SYNTAXES[syntax].reasoning.open && roll(2);
    if (rules.reasoning) {
        reasoning = roll(2) ? "Hm <tool_call>?\n" : "\nSo…\n";
        rules.inside = roll(2);
        strbuf_puts(&text, rules.inside ? "" : "<think>");
        strbuf_puts(&text, reasoning);
        strbuf_puts(&text, "</think>\n\n");
    }
    strbuf_puts(&text, before);
    strbuf_puts(&text, *before ? "\n\n" : "");
    put_calls(&text, syntax, calls);
    strbuf_puts(&text, *after ? "\n" : "\n ");
    strbuf_puts(&text, after);
    strbuf_printf(&content, "%s%s%s", before, *before && *after ? "\n" : "", after);
    strbuf_append(&text, "", 1);
    strbuf_append(&content, "", 1);
    struct api_error err = {0};
    cr_assert_eq(chat_types_take(&rules.types, tools, &err), 0);
    expect(&rules, text.data, reasoning, content.data, calls);
    chat_types_clear(&rules.types);
    json_decref(calls);
    json_decref(tools);
    strbuf_clear(&text);
    strbuf_clear(&content);
}

Test(chat_parser, generated_replies_whole_and_cut_anywhere)
{
    for (int syntax = 0; syntax <= OLMO; syntax++)
        for (int number = 0; number < 50; number++)
            check_generated(syntax, number);
}

/* What is no call. */

/* Replies of which every byte is content. */
static const struct {
    int syntax;
    const char *text;
} NO_CALLS[] = {
    {HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}"},
    {HERMES, "a <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b\"c\"}}\n</tool_call> b"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>"},
    {HERMES, "<tool_call>{\"arguments\": {}}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"a\": 2}}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": nul}}</tool_call>"},
    {HERMES, "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>"},
    {HERMES, "<tool_call></tool_call>"},
    {HERMES, "<tool_call>[]</tool_call>"},
    {HERMES, "<tool_call>[{\"name\": \"f\"}, 5]</tool_call>"},
    {HERMES, "<tool_call>f(a=1)</tool_call>"},
    {HERMES, "<tool_call"},
    {HERMES, "x  "},
    {HERMES, "</tool_call>"},
    {GRANITE, "<|tool_call|> and [1]"},
    {GRANITE, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": }}]"},
    {QWEN, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n<tool"},
    {QWEN, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n"},
    {QWEN, "<tool_call>\n<function=f>\n<parameter=a>\n1\n"},
    {QWEN, "<tool_call>\n<function=>\n</function>\n</tool_call>"},
    {QWEN, "<tool_call>\n<function=f\n></function>\n</tool_call>"},
    {QWEN, "<tool_call>\n<function=f>\nx</function>\n</tool_call>"},
    {QWEN, "<tool_call>\n<function=f>\n<parameter=a>1</parameter>\n<parameter=a>2</parameter>\n"
           "</function>\n</tool_call>"},
    {QWEN, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"},
    {LFM, "<|tool_call_start|>[f(1)]<|tool_call_end|>"},
    {LFM, "<|tool_call_start|>[f(a='it's')]<|tool_call_end|>"},
    {LFM, "<|tool_call_start|>[f(a=x)]<|tool_call_end|>"},
    {LFM, "<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>"},
    {LFM, "<|tool_call_start|>[f(a=1_000)]<|tool_call_end|>"},
    {LFM, "<|tool_call_start|>[f(a='\\ud83d')]<|tool_call_end|>"},
    {LFM, "<|tool_call_start|>[f(a=1), g]<|tool_call_end|>"},
    {LFM, "<|tool_call_start|>[f(a=1)"},
    {LFM, "<|tool_call_start|>[]<|tool_call_end|>"},
    {LFM, "<|tool_call_start|>7<|tool_call_end|>"},
    {OLMO, "<function_calls></function_calls>"},
};

Test(chat_parser, what_is_no_call_is_content_as_it_was_written)
{
    for (size_t i = 0; i < sizeof NO_CALLS / sizeof *NO_CALLS; i++) {
        struct chat_rules rules = {.syntax = &SYNTAXES[NO_CALLS[i].syntax], .calls = true};
        expect(&rules, NO_CALLS[i].text, "", NO_CALLS[i].text, NULL);
    }
}

static void expect_calls(int syntax, const char *text, const char *content, const char *calls)
{
    struct chat_rules rules = {.syntax = &SYNTAXES[syntax], .calls = true};
    json_t *list = json_loads(calls, 0, NULL);
    cr_assert(list);
    expect(&rules, text, "", content, list);
    json_decref(list);
}

Test(chat_parser, odd_calls_and_what_is_around_them)
{
    /* A text may end behind a call, or within its closing marker. */
    expect_calls(HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", "[[\"f\", {}]]");
    expect_calls(HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool", "",
                 "[[\"f\", {}]]");
    expect_calls(HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>", "", "[[\"f\", {}]]");
    expect_calls(HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "",
                 "[[\"f\", {}]]");
    expect_calls(HERMES,
                 "<tool_call>{\"arguments\": \"{\\\"a\\\": 1}\", \"name\": \"f\"}"
                 "</tool_call>",
                 "", "[[\"f\", {\"a\": 1}]]");
    /* One that is none, then one. */
    expect_calls(HERMES, "<tool_call>\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
                 "<tool_call>\n", "[[\"f\", {}]]");
    expect_calls(HERMES, "a <tool_call>{]</tool_call> <tool_call>{\"name\": \"f\"}</tool_call> b",
                 "a <tool_call>{]</tool_call> b", "[[\"f\", {}]]");
    expect_calls(HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{]", "<tool_call>{]",
                 "[[\"f\", {}]]");
    expect_calls(QWEN, "<tool_call><function=f></function></tool_call>", "", "[[\"f\", {}]]");
    expect_calls(QWEN,
                 "<tool_call>\n<function=f>\n<parameter=a>\nx</parameter>\ny\n\n"
                 "</parameter>\n</function>\n</tool_call>",
                 "", "[[\"f\", {\"a\": \"x</parameter>\\ny\\n\"}]]");
    expect_calls(GRANITE, "<|tool_call|> {\"name\": \"f\"} then text", "then text",
                 "[[\"f\", {}]]");
    expect_calls(LFM,
                 "<|tool_call_start|>[f(a='\\u00e9\\ud83d\\ude42\\x41\\q\\\n', b=[1, {'c': "
                 "None,},],), g.h()]<|tool_call_end|>",
                 "",
                 "[[\"f\", {\"a\": \"é🙂A\\\\q\", \"b\": [1, {\"c\": null}]}], [\"g.h\", {}]]");
}

Test(chat_parser, white_space_before_python_is_looked_at_once)
{
    static const char BODY[] = "          \n  [f(a=1)]";
    static const struct chat_types types;
    const struct chat_reading reading = {
        .words = chat_words(CHAT_CALLS_PYTHON), .close = "</c>", .types = &types};
    struct chat_scan scan = {0};
    size_t used;
    for (size_t length = 0; length <= strcspn(BODY, "["); length++) {
        cr_expect_eq(chat_scan_push(&scan, &reading, BODY, length, false, &used), CHAT_SCAN_OPEN);
        cr_expect_eq(scan.at, length);
    }
    cr_expect_eq(chat_scan_push(&scan, &reading, BODY, sizeof BODY - 1, true, &used),
                 CHAT_SCAN_CALL);
    chat_scan_clear(&scan);
}

Test(chat_parser, calls_are_counted_before_they_are_read)
{
    static const char TEXT[] = "[a(), b(x=1)] {\"name\": \"c\"} <function=d> </function>";
    cr_expect_eq(chat_calls_most(CHAT_CALLS_PYTHON, TEXT, sizeof TEXT - 1), 2);
    cr_expect_eq(chat_calls_most(CHAT_CALLS_JSON, TEXT, sizeof TEXT - 1), 1);
    cr_expect_eq(chat_calls_most(CHAT_CALLS_NONE, TEXT, sizeof TEXT - 1), 0);
    cr_expect_eq(chat_calls_most(CHAT_CALLS_PYTHON, NULL, 0), 0);
}

/* Reasoning. */

static const struct {
    bool inside;
    const char *text, *reasoning, *content;
} REASONED[] = {
    {false, "<think>a</think>b", "a", "b"},
    {false, " \n<think>\na\n</think>\n\n\n b\n", "\na\n", " b\n"},
    {false, "<think>a", "a", ""},
    {false, "<think>a</thin", "a</thin", ""},
    {false, "<think></think>b", "", "b"},
    {false, "a<think>b</think>", "", "a<think>b</think>"},
    {false, "<thin", "", "<thin"},
    {false, "  <thx", "", "  <thx"},
    {false, "", "", ""},
    {false, "a</think>b", "", "a</think>b"},
    {true, "a</think>b", "a", "b"},
    {true, "a", "a", ""},
    {true, "  ", "  ", ""},
    {true, "\n<think>a</think>b</think>", "a", "b</think>"},
    {true, "", "", ""},
    {true, "a<tool_call>{\"name\": \"f\"}</tool_call>", "a<tool_call>{\"name\": \"f\"}</tool_call>",
     ""},
};

Test(chat_parser, reasoning_is_split_off)
{
    for (int calls = 0; calls < 2; calls++)
        for (size_t i = 0; i < sizeof REASONED / sizeof *REASONED; i++) {
            struct chat_rules rules = {.syntax = &SYNTAXES[HERMES],
                                       .reasoning = true,
                                       .inside = REASONED[i].inside,
                                       .calls = calls};
            expect(&rules, REASONED[i].text, REASONED[i].reasoning, REASONED[i].content, NULL);
        }
}

Test(chat_parser, where_reasoning_ends_in_characters)
{
    struct chat_rules rules = {.syntax = &SYNTAXES[HERMES], .reasoning = true};
    static const struct {
        const char *text;
        int64_t ends;
    } CASES[] = {{"<think>世界</think>\nx", 17}, {"<think>世", INT64_MAX}, {"x", 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct result result = parse(&rules, CASES[i].text, strlen(CASES[i].text), 1000, 1000);
        cr_assert_eq(result.reasoning_ends, CASES[i].ends);
        chat_output_clear(&result.output);
    }
}

Test(chat_parser, one_call_of_several)
{
    struct chat_rules rules = {.syntax = &SYNTAXES[NEMOTRON], .calls = true, .one_call = true};
    json_t *first = json_pack("[[s,{}]]", "f");
    expect(&rules,
           "<TOOLCALL>[{\"name\": \"f\"}, {\"name\": \"g\"}]</TOOLCALL> <TOOLCALL>"
           "[{\"name\": \"h\"}]</TOOLCALL>",
           "", "", first);
    json_decref(first);
}

/* What is held back. */

static void expect_at_once(struct chat_parser *parser, const char *text, const char *content)
{
    struct chat_output output = {0};
    chat_parser_push(parser, text, strlen(text), &output);
    expect_text(&output.content, content, text);
    chat_output_clear(&output);
}

Test(chat_parser, nothing_is_held_back_but_what_may_be_a_marker)
{
    struct chat_rules rules = {.syntax = &SYNTAXES[HERMES], .calls = true};
    struct chat_parser parser = {.rules = &rules};
    expect_at_once(&parser, "a", "a");
    expect_at_once(&parser, " ", "");
    expect_at_once(&parser, "<", "");
    expect_at_once(&parser, "b>", " <b>");
    expect_at_once(&parser, "<tool_call", "");
    expect_at_once(&parser, ">x", "<tool_call>x");
    expect_at_once(&parser, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", "");
    expect_at_once(&parser, "b", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": b");
    chat_parser_clear(&parser);
}

/* Bounds. */

static void expect_content_length(const struct chat_rules *rules, const char *unit, size_t count,
                                  const char *begin, size_t piece)
{
    struct strbuf text = {0};
    strbuf_puts(&text, begin);
    for (size_t i = 0; i < count; i++)
        strbuf_puts(&text, unit);
    struct result result = parse(rules, text.data, text.length, piece, piece);
    cr_assert_eq(result.output.content.length + result.output.reasoning.length, text.length);
    cr_assert_eq(result.output.calls.count, 0);
    chat_output_clear(&result.output);
    strbuf_clear(&text);
}

/* All of it in time that grows with the length: else this takes minutes. */
Test(chat_parser, long_and_hostile_texts)
{
    static const struct {
        int syntax;
        const char *begin, *unit;
    } CASES[] = {
        {HERMES, "", " "},
        {HERMES, "", "<tool_call>"},
        {HERMES, "", "<tool_call>["},
        {HERMES, "", "<tool_call>{\""},
        {HERMES, "<tool_call>", "["},
        {HERMES, "<tool_call>[\"", "x"},
        {HERMES, "<tool_call>", " "},
        {HERMES, "<tool_call>[", "{\"name\": \"f\"}, "},
        {QWEN, "<tool_call><function=f><parameter=a>", "</parameter>"},
        {QWEN, "<tool_call><function=f>", "<parameter=a>x</parameter>"},
        {QWEN, "<tool_call><function=f><parameter=a>x</parameter>", " "},
        {QWEN, "<tool_call><function=", "f"},
        {LFM, "<|tool_call_start|>", "f("},
        {LFM, "<|tool_call_start|>f(a=", "["},
        {LFM, "", "<|tool_call_start|>f(<|tool_call_end|>"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct chat_rules rules = {.syntax = &SYNTAXES[CASES[i].syntax],
                                   .reasoning = *SYNTAXES[CASES[i].syntax].reasoning.open != 0,
                                   .calls = true};
        size_t count = 3000000 / strlen(CASES[i].unit);
        expect_content_length(&rules, CASES[i].unit, count, CASES[i].begin, 3000100);
        expect_content_length(&rules, CASES[i].unit, count / 8, CASES[i].begin, 3);
    }
}

Test(chat_parser, calls_too_long_or_too_deep_are_content)
{
    struct strbuf text = {0};
    struct chat_rules rules = {.syntax = &SYNTAXES[HERMES], .calls = true};
    for (size_t depth = 59; depth < 62; depth++) {
        strbuf_reset(&text);
        strbuf_puts(&text, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ");
        for (size_t i = 0; i < depth - 2; i++)
            strbuf_puts(&text, "[");
        for (size_t i = 0; i < depth - 2; i++)
            strbuf_puts(&text, "]");
        strbuf_puts(&text, "}}</tool_call>");
        struct result result = parse(&rules, text.data, text.length, 1, 1);
        cr_assert_eq(result.output.calls.count, depth <= 60);
        cr_assert_eq(result.output.content.length, depth <= 60 ? 0 : text.length);
        chat_output_clear(&result.output);
    }
    for (size_t length = 110000; length < 150000; length += 10000) {
        strbuf_reset(&text);
        strbuf_puts(&text, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"");
        for (size_t i = 0; i < length; i++)
            strbuf_puts(&text, "x");
        strbuf_puts(&text, "\"}}</tool_call>");
        for (size_t piece = 1000; piece < 10000000; piece *= 100) {
            struct result result = parse(&rules, text.data, text.length, piece, piece);
            cr_assert_eq(result.output.calls.count, length < 128 << 10);
            cr_assert_eq(result.output.content.length, length < 128 << 10 ? 0 : text.length);
            chat_output_clear(&result.output);
        }
    }
    strbuf_clear(&text);
}
