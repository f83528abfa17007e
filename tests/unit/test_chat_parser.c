/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of chats taken apart: 50 replies of each format, made by a generator that knows what is
 * in them, whole, cut in two at every byte, and byte by byte; replies that are no calls; reasoning;
 * white space; what is held back. */
#include "api/chat_parser.h"

#include "api/chat_calls.h"
#include "api/strbuf.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(chat_parser);

static const struct chat_syntax SYNTAXES[] = {
    {.reasoning = {"<think>", "</think>"},
     .calls = {"<tool_call>", "</tool_call>"},
     .format = CHAT_CALLS_JSON},
    {.calls = {"<|tool_call|>", ""}, .format = CHAT_CALLS_JSON},
    {.calls = {"<TOOLCALL>", "</TOOLCALL>"}, .format = CHAT_CALLS_JSON},
    {.reasoning = {"<think>", "</think>"},
     .calls = {"<tool_call>", "</tool_call>"},
     .format = CHAT_CALLS_XML},
    {.calls = {"<|tool_call_start|>", "<|tool_call_end|>"}, .format = CHAT_CALLS_PYTHON},
    {.calls = {"<function_calls>", "</function_calls>"}, .format = CHAT_CALLS_PYTHON},
};
enum { HERMES, GRANITE, NEMOTRON, QWEN, LFM, OLMO, NUM_SYNTAXES };

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

/* Taking apart. */

struct result {
    struct chat_output output;
    int64_t reasoning_ends;
};

/* The text in pieces: of `piece` bytes, but the first has `first`. */
static struct result parse(const struct chat_rules *rules, const char *text, size_t length,
                           size_t first, size_t piece)
{
    struct result result = {0};
    struct chat_parser parser = {.rules = rules};
    for (size_t at = 0, size; at < length; at += size) {
        size = at == 0 ? first : piece;
        size = size > length - at ? length - at : size;
        chat_parser_push(&parser, text + at, size, &result.output);
    }
    chat_parser_finish(&parser, &result.output);
    cr_assert_not(result.output.failed);
    cr_assert_eq(parser.num_calls, result.output.calls.count);
    result.reasoning_ends = parser.reasoning_ends;
    chat_parser_clear(&parser);
    return result;
}

static bool same_text(const struct strbuf *a, const struct strbuf *b)
{
    return a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, a->length) == 0);
}

static void check_same(const struct result *a, const struct result *b, const char *text,
                       size_t first, size_t piece)
{
    const struct chat_calls *x = &a->output.calls, *y = &b->output.calls;
    bool same = same_text(&a->output.content, &b->output.content) &&
                same_text(&a->output.reasoning, &b->output.reasoning) && x->count == y->count &&
                a->reasoning_ends == b->reasoning_ends;
    for (size_t i = 0; i < x->count && same; i++)
        same = strcmp(x->items[i].name, y->items[i].name) == 0 &&
               strcmp(x->items[i].arguments, y->items[i].arguments) == 0;
    cr_assert(same, "differs when cut after %zu, then every %zu: %s", first, piece, text);
}

/* The whole; it is the same however the text comes. */
static struct result parse_all_ways(const struct chat_rules *rules, const char *text, size_t length)
{
    struct result whole = parse(rules, text, length, length, length);
    for (size_t first = 0; first <= length; first++) {
        struct result cut = parse(rules, text, length, first ? first : 1, first ? length : 1);
        check_same(&whole, &cut, text, first, first ? length : 1);
        chat_output_clear(&cut.output);
    }
    return whole;
}

static void expect_text(const struct strbuf *got, const char *wanted, const char *text)
{
    cr_assert(got->length == strlen(wanted) &&
                  memcmp(got->data ? got->data : "", wanted, got->length) == 0,
              "expected \"%s\", got \"%.*s\" of: %s", wanted, (int)got->length,
              got->data ? got->data : "", text);
}

static void expect(const struct chat_rules *rules, const char *text, const char *reasoning,
                   const char *content, const json_t *calls)
{
    struct result result = parse_all_ways(rules, text, strlen(text));
    expect_text(&result.output.reasoning, reasoning, text);
    expect_text(&result.output.content, content, text);
    cr_assert_eq(result.output.calls.count, json_array_size(calls), "%zu calls in: %s",
                 result.output.calls.count, text);
    cr_assert_geq(chat_calls_most(rules->syntax->format, text, strlen(text)),
                  result.output.calls.count);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const struct chat_call *call = &result.output.calls.items[i];
        json_t *wanted = json_array_get(calls, i);
        json_t *got = json_loads(call->arguments, JSON_REJECT_DUPLICATES, NULL);
        cr_assert_str_eq(call->name, json_string_value(json_array_get(wanted, 0)));
        cr_assert(got && json_equal(got, json_array_get(wanted, 1)), "arguments %s of: %s",
                  call->arguments, text);
        json_decref(got);
    }
    chat_output_clear(&result.output);
}

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
    for (int syntax = 0; syntax < NUM_SYNTAXES; syntax++)
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

/* Rules of a request with these tools. */
static struct chat_rules rules_of(int syntax, const char *tools)
{
    struct chat_rules rules = {.syntax = &SYNTAXES[syntax], .calls = true};
    struct api_error err = {0};
    json_t *list = json_loads(tools, 0, NULL);
    cr_assert(list);
    cr_assert_eq(chat_types_take(&rules.types, list, &err), 0);
    json_decref(list);
    return rules;
}

Test(chat_parser, functions_of_tools_need_no_markers)
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
        {"<function=f> <parameter=a>1", "<function=f> <parameter=a>1", "[]"},
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

Test(chat_parser, values_of_xml_are_of_the_types_that_the_tools_have)
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

Test(chat_parser, values_have_the_types_that_the_tools_ask_for)
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
    cr_expect_eq(result.output.calls.count, 0, "one key twice");
    chat_output_clear(&result.output);
    static const char ONE[] =
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\":12345678901234567890,"
        "\"i\":\"5\"}}</tool_call>";
    result = parse(&rules, ONE, sizeof ONE - 1, sizeof ONE, 1);
    cr_assert_eq(result.output.calls.count, 1);
    cr_expect_str_eq(result.output.calls.items[0].arguments,
                     "{\"x\": 12345678901234567890, \"i\": 5}");
    chat_output_clear(&result.output);
    chat_types_clear(&rules.types);
    rules = rules_of(LFM, TOOL);
    json_t *calls =
        json_loads("[[\"f\", {\"i\": 5, \"s\": \"7\"}], [\"g\", {\"i\": \"5\"}]]", 0, NULL);
    expect(&rules, "<|tool_call_start|>[f(i='5', s=7), g(i='5')]<|tool_call_end|>", "", "", calls);
    json_decref(calls);
    chat_types_clear(&rules.types);
}

Test(chat_parser, white_space_before_python_is_looked_at_once)
{
    static const char BODY[] = "          \n  [f(a=1)]";
    struct chat_scan scan = {0};
    size_t used;
    for (size_t length = 0; length <= strcspn(BODY, "["); length++) {
        cr_expect_eq(chat_scan_push(&scan, CHAT_CALLS_PYTHON, "</c>", BODY, length, false, &used),
                     CHAT_SCAN_OPEN);
        cr_expect_eq(scan.at, length);
    }
    cr_expect_eq(
        chat_scan_push(&scan, CHAT_CALLS_PYTHON, "</c>", BODY, sizeof BODY - 1, true, &used),
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

/* Where calls are demanded, one that the end of the text cut is told as far as it goes; one that is
 * too long is content, cut or not. */
Test(chat_parser, demanded_calls_that_are_cut_off)
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

Test(chat_parser, what_there_is_of_demanded_calls_that_are_cut_off)
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
                     "{\"type\": [\"integer\", \"array\"]}, \"s\": {\"type\": \"string\"}}}}}]");
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
