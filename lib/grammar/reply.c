/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/reply.h"

#include "lib/grammar/dfa_emit.h"
#include "lib/grammar/json_rules.h"
#include "lib/grammar/marker.h"
#include "lib/grammar/schema_value.h"
#include "lib/text/buffer.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Calls within calls: so many that no call nests deeper than its reader allows, which is 60, with
 * the list and the object of the call around its arguments. */
enum { MOST_DEPTH = 56 };

static const char *text_of(const json_t *object, const char *key)
{
    return schema_call_word(object, key);
}

/* --- Reasoning --- */

/* Texts that end with the marker. */
static int texts_up_to(struct dfa *out, const char *marker, struct work *work, struct error *err)
{
    struct nfa nfa;
    struct charset any = {0};
    size_t length = strlen(marker), used;
    uint32_t from = 0;
    int failed = nfa_begin(&nfa, work, err) || charset_add(&any, 0, CHARSET_LAST, err);
    charset_normalize(&any);
    int32_t all = -1;
    if (failed)
        charset_clear(&any);
    else
        all = nfa_set(&nfa, &any, err);
    failed = failed || all < 0 || nfa_edge(&nfa, 0, 0, all, err);
    for (size_t at = 0; at < length && !failed; at += used) {
        int32_t set = nfa_character(&nfa, utf8_decode(marker + at, &used), err);
        uint32_t to = at + used == length ? 1 : nfa_state(&nfa);
        failed = set < 0 || nfa_edge(&nfa, from, to, set, err);
        from = to;
    }
    failed = failed || dfa_make(out, &nfa, err);
    nfa_clear(&nfa);
    return failed ? -1 : 0;
}

/* Of these, the texts up to the first marker; with `before`, all that come before one. */
static void cut(struct dfa *dfa, bool before)
{
    for (uint32_t i = 0; i < dfa->num_states; i++)
        for (uint32_t k = 0; k < dfa->num_classes; k++) {
            uint32_t *next = &dfa->next[(size_t)i * dfa->num_classes + k];
            if (*next != DFA_DEAD && (before ? dfa->final[*next] : dfa->final[i]))
                *next = DFA_DEAD;
        }
    for (uint32_t i = 0; i < dfa->num_states && before; i++)
        dfa->final[i] = !dfa->final[i];
}

/* Any text, and the marker that ends it. */
static void add_reasoning(struct builder *builder, const struct trie *trie, uint32_t from,
                          uint32_t to, const char *close)
{
    struct dfa dfa;
    bool special = marker_begins_special(trie, close, builder->err);
    if (builder_failed(builder) || texts_up_to(&dfa, close, &builder->work, builder->err))
        return;
    cut(&dfa, special);
    uint32_t text_end = special ? builder_state(builder) : to;
    dfa_emit(builder, from, text_end, &dfa, DFA_UTF8);
    if (special)
        marker_add(builder, trie, text_end, to, close);
    dfa_clear(&dfa);
}

int reply_answer(struct builder *builder, const struct trie *trie, const char *word, uint32_t body,
                 uint32_t *rule)
{
    *rule = builder_rule(builder);
    uint32_t behind = builder_state(builder);
    if (builder_failed(builder))
        return -1;
    const struct builder_rule answer = builder->rules[*rule];
    marker_add(builder, trie, answer.start, behind, word);
    json_rules_call(builder, behind, answer.final, body);
    return builder_failed(builder) ? -1 : 0;
}

int reply_either(struct builder *builder, uint32_t a, uint32_t b, uint32_t *rule)
{
    *rule = builder_rule(builder);
    if (builder_failed(builder))
        return -1;
    const struct builder_rule either = builder->rules[*rule];
    json_rules_call(builder, either.start, either.final, a);
    json_rules_call(builder, either.start, either.final, b);
    return builder_failed(builder) ? -1 : 0;
}

int reply_reasoning(struct builder *builder, const struct trie *trie, const json_t *reasoning,
                    uint32_t body, uint32_t *root)
{
    if (builder_failed(builder))
        return -1;
    if (!reasoning) {
        *root = body;
        return 0;
    }
    *root = builder_rule(builder);
    uint32_t inside = builder_state(builder), closed = builder_state(builder);
    uint32_t line = builder_state(builder), behind = builder_state(builder);
    if (builder_failed(builder))
        return -1;
    const struct builder_rule rule = builder->rules[*root];
    if (json_is_true(json_object_get(reasoning, "begun"))) {
        builder_jump(builder, rule.start, inside);
    } else {
        builder_jump(builder, rule.start, behind);
        marker_add(builder, trie, rule.start, inside, text_of(reasoning, "open"));
    }
    add_reasoning(builder, trie, inside, closed, text_of(reasoning, "close"));
    /* Line breaks between reasoning and content belong to neither. */
    builder_byte(builder, closed, line, '\n');
    builder_jump(builder, closed, behind);
    builder_byte(builder, line, behind, '\n');
    builder_jump(builder, line, behind);
    json_rules_call(builder, behind, rule.final, body);
    return builder_failed(builder) ? -1 : 0;
}

/* --- Calls --- */

/* A tool's name as calls have it, with what ends it. */
static int append_name(const struct schema_call *call, const json_t *tool, struct text_buffer *out,
                       struct error *err)
{
    const char *name = text_of(tool, "name"), *id = text_of(call->words, "id");
    const char *behind = *id ? id : text_of(call->words, "behind");
    bool ends_at_space = *behind == '\n';
    if (!schema_call_name(call->syntax, name, strlen(name)) ||
        (ends_at_space && strpbrk(name, " \t\r\n{")))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s.name: expected a name that this model's calls can have, got \"%.60s\"",
                         text_of(tool, "place"), name);
    if (call->syntax == SCHEMA_CALL_JSON)
        return schema_value_string(name, strlen(name), false, out, err);
    if (text_buffer_append(out, name, strlen(name), err))
        return -1;
    /* A line may follow a name, or nothing. */
    return call->syntax == SCHEMA_CALL_XML && ends_at_space
               ? 0
               : marker_append(call->trie, behind, out, err);
}

/* An id behind its word, and what follows it: a number, or nine letters and digits. */
static uint32_t add_id(struct builder *builder, const struct schema_call *call, uint32_t from)
{
    enum { DIGITS = 4, LETTERS = 9 };
    bool counts = json_is_true(json_object_get(call->words, "counts"));
    uint32_t done = builder_state(builder), behind = builder_state(builder);
    for (int i = 0; i < (counts ? DIGITS : LETTERS); i++) {
        uint32_t next = builder_state(builder);
        builder_range(builder, from, next, '0', '9', 0);
        if (counts)
            builder_jump(builder, next, done);
        else
            builder_range(builder, from, next, 'a', 'z', 0);
        if (!counts)
            builder_range(builder, from, next, 'A', 'Z', 0);
        from = next;
    }
    if (!counts)
        builder_jump(builder, from, done);
    marker_add(builder, call->trie, done, behind, text_of(call->words, "behind"));
    return behind;
}

int reply_name_tool(const struct reply_tools *tools, size_t index, struct error *err)
{
    return error_prefix(err, "%s.parameters", text_of(json_array_get(tools->list, index), "place"));
}

/* The arguments of a tool, from behind its name to behind themselves. */
static int add_arguments(struct builder *builder, const struct reply_tools *tools, size_t index,
                         uint32_t from, uint32_t to)
{
    const json_t *tool = json_array_get(tools->list, index);
    struct schema_call call = tools->call;
    uint32_t arguments, at = from;
    call.types = json_object_get(tool, "types");
    if (schema_compile_call(builder, json_object_get(tool, "parameters"), &call, &arguments))
        return reply_name_tool(tools, index, builder->err);
    tools->rules[index] = arguments;
    if (call.syntax == SCHEMA_CALL_JSON) {
        const char *key = tools->parameters ? "\"parameters\"" : "\"arguments\"";
        uint32_t comma = builder_state(builder), begun = builder_state(builder);
        uint32_t named = builder_state(builder);
        at = builder_state(builder);
        builder_byte(builder, from, comma, ',');
        json_rules_space(builder, comma, begun);
        builder_text(builder, begun, named, key, strlen(key));
        json_rules_colon(builder, named, at);
    } else if (call.syntax == SCHEMA_CALL_XML) {
        at = builder_state(builder);
        json_rules_space(builder, from, at);
    } else if (*text_of(call.words, "id")) {
        at = add_id(builder, &call, from);
    }
    json_rules_call(builder, at, to, arguments);
    return builder_failed(builder) ? -1 : 0;
}

/* Names and arguments of all tools, from one state to another. */
static int add_tools(struct builder *builder, struct reply_tools *tools, uint32_t from, uint32_t to)
{
    size_t count = json_array_size(tools->list);
    struct text_buffer text = {0};
    struct builder_word *words = calloc(count + 1, sizeof *words);
    tools->rules = calloc(count + 1, sizeof *tools->rules);
    int failed = words && tools->rules
                     ? 0
                     : error_set(builder->err, ERROR_NO_MEMORY, "no memory for %zu tools", count);
    for (size_t i = 0; i < count && !failed; i++) {
        size_t start = text.length;
        failed = append_name(&tools->call, json_array_get(tools->list, i), &text, builder->err);
        words[i].length = text.length - start;
        words[i].to = builder_state(builder);
        failed = failed || add_arguments(builder, tools, i, words[i].to, to);
    }
    const char *at = text.data;
    for (size_t i = 0; i < count && !failed; i++) {
        words[i].bytes = at;
        at += words[i].length;
    }
    if (!failed)
        builder_words(builder, from, words, count);
    free(words);
    text_buffer_clear(&text);
    return failed || builder_failed(builder) ? -1 : 0;
}

static void add_word(struct builder *builder, uint32_t from, uint32_t to, const char *word)
{
    builder_text(builder, from, to, word, strlen(word));
}

/* The rule of one call. */
static int add_call(struct builder *builder, struct reply_tools *tools, uint32_t *call)
{
    *call = builder_rule(builder);
    uint32_t name = builder_state(builder), done = builder_state(builder);
    if (builder_failed(builder))
        return -1;
    const struct builder_rule rule = builder->rules[*call];
    const struct schema_call *how = &tools->call;
    if (how->syntax == SCHEMA_CALL_JSON) {
        uint32_t open = builder_state(builder), key = builder_state(builder);
        uint32_t named = builder_state(builder), close = builder_state(builder);
        add_word(builder, rule.start, open, "{");
        json_rules_space(builder, open, key);
        add_word(builder, key, named, tools->tool_names ? "\"tool_name\"" : "\"name\"");
        json_rules_colon(builder, named, name);
        json_rules_space(builder, done, close);
        add_word(builder, close, rule.final, "}");
    } else {
        marker_add(builder, how->trie, rule.start, name, text_of(how->words, "before"));
        marker_add(builder, how->trie, done, rule.final, text_of(how->words, "end"));
    }
    return add_tools(builder, tools, name, done);
}

/* One to `most` times the item, with this (of one byte, or none) and space between. */
static void repeat(struct builder *builder, uint32_t from, uint32_t to, uint32_t item,
                   const char *between, size_t most)
{
    for (size_t i = 0; i < most && !builder_failed(builder); i++) {
        uint32_t done = builder_state(builder), parted = builder_state(builder);
        uint32_t next = builder_state(builder);
        json_rules_call(builder, from, done, item);
        builder_jump(builder, done, to);
        if (i + 1 == most)
            break;
        add_word(builder, done, parted, between);
        json_rules_space(builder, parted, next);
        from = next;
    }
}

/* White space between words, where it may come. */
static void add_space(struct builder *builder, uint32_t from, uint32_t to, const json_t *calls)
{
    if (json_is_true(json_object_get(calls, "exact")))
        builder_jump(builder, from, to);
    else
        json_rules_space(builder, from, to);
}

/* The rule of what stands between two markers, with these. lines: calls in Python may stand on
 * some.
 */
static uint32_t add_block(struct builder *builder, const struct trie *trie, const json_t *calls,
                          uint32_t call, size_t most)
{
    uint32_t block = builder_rule(builder), open = builder_state(builder);
    uint32_t begun = builder_state(builder), done = builder_state(builder);
    uint32_t close = builder_state(builder);
    if (builder_failed(builder))
        return 0;
    const struct builder_rule rule = builder->rules[block];
    const char *marker = text_of(calls, "close");
    marker_add(builder, trie, rule.start, open, text_of(calls, "open"));
    if (*text_of(calls, "open"))
        add_space(builder, open, begun, calls);
    else
        builder_jump(builder, open, begun);
    if (json_is_true(json_object_get(calls, "list"))) {
        uint32_t bracket = builder_state(builder), first = builder_state(builder);
        uint32_t last = builder_state(builder), end = builder_state(builder);
        add_word(builder, begun, bracket, "[");
        json_rules_space(builder, bracket, first);
        repeat(builder, first, last, call, ",", most);
        json_rules_space(builder, last, end);
        add_word(builder, end, done, "]");
    } else {
        repeat(builder, begun, done, call, "\n", most);
    }
    if (*marker) {
        add_space(builder, done, close, calls);
        marker_add(builder, trie, close, rule.final, marker);
    } else {
        builder_jump(builder, done, rule.final);
    }
    return block;
}

int reply_calls(struct builder *builder, const struct trie *trie, const json_t *calls,
                struct reply_tools *tools, uint32_t *rule)
{
    enum schema_call_syntax syntax =
        (enum schema_call_syntax)json_integer_value(json_object_get(calls, "syntax"));
    const json_t *words = json_object_get(calls, "words");
    bool exact = json_is_true(json_object_get(calls, "exact"));
    size_t most = (size_t)json_integer_value(json_object_get(calls, "most"));
    bool together =
        json_is_true(json_object_get(calls, "list")) || (syntax == SCHEMA_CALL_PYTHON && !exact);
    uint32_t call;
    builder->tame = syntax == SCHEMA_CALL_PYTHON || syntax == SCHEMA_CALL_XML;
    builder->most_depth = MOST_DEPTH;
    tools->list = json_object_get(calls, "tools");
    tools->call = (struct schema_call){.syntax = syntax, .words = words, .trie = trie};
    tools->tool_names = json_is_true(json_object_get(calls, "tool_names"));
    tools->parameters = tools->tool_names || json_is_true(json_object_get(calls, "parameters"));
    if (add_call(builder, tools, &call))
        return -1;
    uint32_t block = add_block(builder, trie, calls, call, together ? most : 1);
    *rule = builder_rule(builder);
    if (builder_failed(builder))
        return -1;
    const struct builder_rule whole = builder->rules[*rule];
    const char *section = text_of(words, "section");
    uint32_t open = builder_state(builder), first = builder_state(builder);
    uint32_t last = builder_state(builder), close = builder_state(builder);
    marker_add(builder, trie, whole.start, open, section);
    repeat(builder, first, last, block, "", together ? 1 : most);
    marker_add(builder, trie, close, whole.final, text_of(words, "section_end"));
    if (*section) {
        json_rules_space(builder, open, first);
        json_rules_space(builder, last, close);
    } else {
        builder_jump(builder, open, first);
        builder_jump(builder, last, close);
    }
    return builder_failed(builder) ? -1 : 0;
}
