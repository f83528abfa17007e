/* SPDX-License-Identifier: Apache-2.0 */
/* Replies in channels taken apart, however the text is cut: thoughts, content, calls; what is left
 * out, cut off, or no head at all. */
#include "tests/unit/chat_replies.h"

#include "api/chat_past.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(chat_channels);

static const char TOOLS[] =
    "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": "
    "\"string\"}}}}}, {\"function\": {\"name\": \"g\"}}]";

static const struct chat_syntax SYNTAX = {
    .reasoning = {"<|channel|>analysis<|message|>", "<|end|><|start|>assistant"},
    .calls = {"<|channel|>commentary to=functions.", ""},
    .format = CHAT_CALLS_CHANNELS,
    .channels = true};

/* reasoning, content, calls */
struct wanted {
    const char *text, *reasoning, *content, *calls;
};

static void expect_all(const struct wanted *cases, size_t count, struct chat_rules rules)
{
    struct api_error err = {0};
    json_t *tools = json_loads(TOOLS, 0, NULL);
    rules.syntax = &SYNTAX;
    cr_assert_eq(chat_types_take(&rules.types, tools, &err), 0);
    for (size_t i = 0; i < count; i++) {
        json_t *calls = json_loads(cases[i].calls ? cases[i].calls : "[]", 0, NULL);
        expect(&rules, cases[i].text, cases[i].reasoning, cases[i].content, calls);
        json_decref(calls);
    }
    chat_types_clear(&rules.types);
    json_decref(tools);
}
#define EXPECT(cases, ...) \
    expect_all(cases, sizeof cases / sizeof *cases, (struct chat_rules){__VA_ARGS__})

#define THOUGHT "<|channel|>analysis<|message|>Hm, \xe4\xb8\x96.<|end|>"
#define NEXT "<|start|>assistant"
#define FINAL "<|channel|>final<|message|>"
#define TO_F "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
#define F "[[\"f\", {\"s\": \"a<b\"}]]"
#define HM "Hm, \xe4\xb8\x96."

Test(chat_channels, messages)
{
    static const struct wanted cases[] = {
        {THOUGHT NEXT FINAL "Yes.", HM, "Yes.", NULL},
        {THOUGHT "\n" NEXT FINAL "Yes.<|return|>", HM, "Yes.", NULL},
        {FINAL " Two\n\nlines <b> \n", "", " Two\n\nlines <b> \n", NULL},
        {FINAL, "", "", NULL},
        {"<|channel|>final <|constrain|>json<|message|>{\"a\": 1}", "", "{\"a\": 1}", NULL},
        {THOUGHT NEXT "<|channel|>commentary<|message|>First.<|end|>" NEXT FINAL "Then.", HM,
         "First.\n\nThen.", NULL},
        {THOUGHT NEXT THOUGHT NEXT FINAL "x", HM "\n\n" HM, "x", NULL},
        {"<|message|>Yes.", "", "Yes.", NULL},
        /* What ends a message may be missing. */
        {"<|channel|>analysis<|message|>a" NEXT FINAL "b", "a", "b", NULL},
        {"<|channel|>analysis<|message|>a" FINAL "b", "a", "b", NULL},
        {"", "", "", NULL},
    };
    EXPECT(cases, .reasoning = true, .calls = true);
}

Test(chat_channels, calls)
{
    static const struct wanted cases[] = {
        {TO_F "{\"s\": \"a<b\"}", "", "", F},
        {THOUGHT NEXT TO_F "{\"s\": \"a<b\"}<|call|>", HM, "", F},
        {THOUGHT NEXT " to=functions.f<|channel|>commentary json<|message|>{\"s\": \"a<b\"}", HM,
         "", F},
        {" to=f<|channel|>commentary<|message|> {\"s\": \"a<b\"} ", "", "", F},
        {"<|channel|>analysis to=functions.f code<|message|>{\"s\": \"a<b\"}", "", "", F},
        {THOUGHT NEXT "<|channel|>commentary<|message|>I look.<|end|>" NEXT TO_F "{\"s\": \"a<b\"}",
         HM, "I look.", F},
        {TO_F "{\"s\": \"a<b\"}<|end|>" NEXT "<|channel|>commentary to=functions.g<|message|>{}",
         "", "", "[[\"f\", {\"s\": \"a<b\"}], [\"g\", {}]]"},
        /* A function that no tool has; a body that is no object. */
        {"<|channel|>commentary to=functions.no<|message|>{\"a\": [1]}", "", "",
         "[[\"no\", {\"a\": [1]}]]"},
        {TO_F "I cannot.", "", "I cannot.", NULL},
        {"<|channel|>commentary to=functions.no json<|message|>[1]", "", "[1]", NULL},
        /* Somebody else: nobody here reads it. */
        {"<|channel|>analysis to=python code<|message|>print(1)<|call|>", "print(1)", "", NULL},
        {"<|channel|>commentary to=browser.search<|message|>{}", "{}", "", NULL},
    };
    EXPECT(cases, .reasoning = true, .calls = true);
}

Test(chat_channels, cut_off)
{
    static const struct wanted cases[] = {
        {"<|chan", "", "", NULL},
        {"<|channel|>ana", "", "", NULL},
        {"<|channel|>analysis<|message|>Hm", "Hm", "", NULL},
        {THOUGHT, HM, "", NULL},
        {THOUGHT "<|start|>assis", HM, "", NULL},
        {THOUGHT NEXT "<|channel|>commentary to=functions.f", HM, "", NULL},
        {FINAL "Yes <|e", "", "Yes <|e", NULL},
    };
    static const char text[] = TO_F "{\"s\": \"a";
    EXPECT(cases, .reasoning = true, .calls = true);
    struct chat_rules rules = {.syntax = &SYNTAX, .reasoning = true, .calls = true};
    struct api_error err = {0};
    json_t *tools = json_loads(TOOLS, 0, NULL);
    cr_assert_eq(chat_types_take(&rules.types, tools, &err), 0);
    struct result result = parse_all_ways(&rules, text, strlen(text));
    cr_assert_eq(result.output.calls.count, 1);
    cr_assert(result.output.calls.items[0].cut);
    cr_assert_str_eq(result.output.calls.items[0].arguments, "{\"s\": \"a");
    chat_output_clear(&result.output);
    chat_types_clear(&rules.types);
    json_decref(tools);
}

/* A model that does not keep to it. */
Test(chat_channels, no_heads)
{
    static char head[700] = "<|channel|>";
    static const struct wanted cases[] = {
        {"Yes.", "", "Yes.", NULL},
        {"  to be", "", "  to be", NULL},
        {"t", "", "t", NULL},
        {"<b>Yes</b> <|x|>", "", "<b>Yes</b> <|x|>", NULL},
        {"Yes.<|end|>" NEXT FINAL "No.", "", "Yes.\n\nNo.", NULL},
        {head, "", head, NULL},
        {TO_F "{\"s\": \"a<b\"}<|end|>Yes.", "", "Yes.", F},
        {THOUGHT "<|end|> <|call|>\n<|end|>" NEXT FINAL "Yes.", HM, "Yes.", NULL},
        {FINAL "Yes.<|end|> \n <|end|> ", "", "Yes.", NULL},
    };
    memset(head + strlen(head), 'a', sizeof head - strlen(head) - 1);
    EXPECT(cases, .reasoning = true, .calls = true);
}

Test(chat_channels, as_they_are)
{
    static const struct wanted cases[] = {
        {THOUGHT NEXT FINAL "Yes.", "", THOUGHT "\n\nYes.", NULL},
        {TO_F "{}", "", "{}", NULL}, /* no tools may be called */
    };
    EXPECT(cases, .reasoning = false, .calls = false);
}

Test(chat_channels, goes_on)
{
    static const struct wanted answer[] = {{"es.<|return|>", "", "es.", NULL}},
                               thought[] = {{"m.<|end|>" NEXT FINAL "Yes.", "m.", "Yes.", NULL}};
    EXPECT(answer, .reasoning = true, .answering = true);
    EXPECT(thought, .reasoning = true, .inside = true);
}

/* As sessions keep replies. */
Test(chat_channels, of_the_past)
{
    struct chat_special items[] = {{1, {0, 11}}, {1, {19, 30}}};
    struct chat_specials specials = {.items = items, .count = 2};
    struct api_error err = {0};
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", FINAL, "role",
                                 "assistant", "content", THOUGHT NEXT TO_F "{\"s\": \"\"}");
    json_t *wanted = json_pack("[{s:s,s:s},{s:s,s:s,s:s,s:[{s:s,s:s,s:{s:s,s:s}}]}]", "role",
                               "user", "content", FINAL, "role", "assistant", "content", "",
                               "reasoning_content", HM, "tool_calls", "id", "call_0", "type",
                               "function", "function", "name", "f", "arguments", "{\"s\": \"\"}");
    cr_assert_eq(chat_past_split(messages, &specials, &SYNTAX, &err), 0);
    cr_assert_eq(specials.count, 0);
    cr_assert(json_equal(messages, wanted));
    json_decref(messages);
    json_decref(wanted);
}
