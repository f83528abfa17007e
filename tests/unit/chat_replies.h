/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of chats taken apart in tests: whole, cut in two at every byte, and byte by byte. */
#ifndef TESTS_UNIT_CHAT_REPLIES_H
#define TESTS_UNIT_CHAT_REPLIES_H

#include "api/chat_calls.h"
#include "api/chat_parser.h"

#include <criterion/criterion.h>
#include <string.h>

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
    {.calls = {"<|python_tag|>", ""}, .format = CHAT_CALLS_JSON, .bare = true},
    {.calls = {"<|python_start|>", "<|python_end|>"}, .format = CHAT_CALLS_PYTHON, .bare = true},
};
/* The first of these, then the formats of the table that have markers of their own. */
enum { HERMES, GRANITE, NEMOTRON, QWEN, LFM, OLMO, LLAMA, LLAMA4, NUM_SYNTAXES };
enum {
    GLM = NUM_SYNTAXES,
    MINIMAX,
    GEMMA,
    DEEPSEEK,
    FENCED,
    KIMI,
    MISTRAL,
    MISTRAL_IDS,
    DSML,
};

static inline const struct chat_syntax *syntax_of(int syntax)
{
    static struct chat_syntax of_table[CHAT_CALLS_COUNT];
    if (syntax < NUM_SYNTAXES)
        return &SYNTAXES[syntax];
    struct chat_syntax *made = &of_table[syntax - NUM_SYNTAXES];
    chat_syntax_take(made, (enum chat_calls_format)(CHAT_CALLS_GLM + syntax - NUM_SYNTAXES));
    return made;
}

struct result {
    struct chat_output output;
    int64_t reasoning_ends;
};

/* The text in pieces: of `piece` bytes, but the first has `first`. */
static inline struct result parse(const struct chat_rules *rules, const char *text, size_t length,
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

static inline bool same_text(const struct strbuf *a, const struct strbuf *b)
{
    return a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, a->length) == 0);
}

static inline bool same_id(const struct chat_call *a, const struct chat_call *b)
{
    return a->id && b->id ? strcmp(a->id, b->id) == 0 : a->id == b->id;
}

static inline void check_same(const struct result *a, const struct result *b, const char *text,
                              size_t first, size_t piece)
{
    const struct chat_calls *x = &a->output.calls, *y = &b->output.calls;
    bool same = same_text(&a->output.content, &b->output.content) &&
                same_text(&a->output.reasoning, &b->output.reasoning) && x->count == y->count &&
                a->reasoning_ends == b->reasoning_ends;
    for (size_t i = 0; i < x->count && same; i++)
        same = strcmp(x->items[i].name, y->items[i].name) == 0 &&
               strcmp(x->items[i].arguments, y->items[i].arguments) == 0 &&
               x->items[i].cut == y->items[i].cut && same_id(&x->items[i], &y->items[i]);
    cr_assert(same, "differs when cut after %zu, then every %zu: %s", first, piece, text);
}

/* The whole; it is the same however the text comes. */
static inline struct result parse_all_ways(const struct chat_rules *rules, const char *text,
                                           size_t length)
{
    struct result whole = parse(rules, text, length, length, length);
    for (size_t first = 0; first <= length; first++) {
        struct result cut = parse(rules, text, length, first ? first : 1, first ? length : 1);
        check_same(&whole, &cut, text, first, first ? length : 1);
        chat_output_clear(&cut.output);
    }
    return whole;
}

static inline void expect_text(const struct strbuf *got, const char *wanted, const char *text)
{
    cr_assert(got->length == strlen(wanted) &&
                  memcmp(got->data ? got->data : "", wanted, got->length) == 0,
              "expected \"%s\", got \"%.*s\" of: %s", wanted, (int)got->length,
              got->data ? got->data : "", text);
}

static inline void expect(const struct chat_rules *rules, const char *text, const char *reasoning,
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

/* Rules of a request with these tools. */
static inline struct chat_rules rules_of(int syntax, const char *tools)
{
    struct chat_rules rules = {.syntax = syntax_of(syntax), .calls = true};
    struct api_error err = {0};
    json_t *list = json_loads(tools, 0, NULL);
    cr_assert(list);
    cr_assert_eq(chat_types_take(&rules.types, list, &err), 0);
    json_decref(list);
    return rules;
}

#endif
