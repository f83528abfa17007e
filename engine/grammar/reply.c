/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/reply.h"

#include "engine/grammar/dfa_emit.h"
#include "engine/grammar/grammar_vocabulary.h"
#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema.h"
#include "engine/grammar/schema_value.h"
#include "engine/text/buffer.h"
#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Calls within calls: so many that no call nests deeper than its reader allows, which is 60, with
 * the list and the object of the call around its arguments. */
enum { MOST_DEPTH = 56 };

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* --- Markers --- */

/* The bytes of the special token that the marker is; false: it is none. */
static bool special_of(const struct trie *trie, const char *marker, struct text_buffer *bytes,
                       struct error *err)
{
    static const char lead = (char)VOCABULARY_SPECIAL;
    return text_buffer_append(bytes, &lead, 1, err) == 0 &&
           text_buffer_append(bytes, marker, strlen(marker), err) == 0 &&
           trie_has(trie, bytes->data, bytes->length);
}

static void add_marker(struct builder *builder, const struct trie *trie, uint32_t from, uint32_t to,
                       const char *marker)
{
    struct text_buffer bytes = {0};
    if (special_of(trie, marker, &bytes, builder->err))
        builder_text(builder, from, to, bytes.data, bytes.length);
    else
        builder_text(builder, from, to, marker, strlen(marker));
    text_buffer_clear(&bytes);
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
    struct text_buffer bytes = {0};
    struct dfa dfa;
    bool special = special_of(trie, close, &bytes, builder->err);
    text_buffer_clear(&bytes);
    if (builder_failed(builder) || texts_up_to(&dfa, close, &builder->work, builder->err))
        return;
    cut(&dfa, special);
    uint32_t text_end = special ? builder_state(builder) : to;
    dfa_emit(builder, from, text_end, &dfa, DFA_UTF8);
    if (special)
        add_marker(builder, trie, text_end, to, close);
    dfa_clear(&dfa);
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
        add_marker(builder, trie, rule.start, inside, text_of(reasoning, "open"));
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
static int append_name(enum schema_call_syntax syntax, const json_t *tool, struct text_buffer *out,
                       struct error *err)
{
    const char *name = text_of(tool, "name");
    if (!schema_call_name(syntax, name, strlen(name)))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s.name: expected a name that this model's calls can have, got \"%.60s\"",
                         text_of(tool, "place"), name);
    if (syntax == SCHEMA_CALL_JSON)
        return schema_value_string(name, strlen(name), false, out, err);
    return text_buffer_append(out, name, strlen(name), err) ||
                   text_buffer_append(out, syntax == SCHEMA_CALL_XML ? ">" : "(", 1, err)
               ? -1
               : 0;
}

int reply_name_tool(const struct reply_tools *tools, size_t index, struct error *err)
{
    return error_prefix(err, "%s.parameters", text_of(json_array_get(tools->list, index), "place"));
}

/* The arguments of a tool, from behind its name to behind themselves. */
static int add_arguments(struct builder *builder, enum schema_call_syntax syntax,
                         const struct reply_tools *tools, size_t index, uint32_t from, uint32_t to)
{
    const json_t *tool = json_array_get(tools->list, index);
    struct schema_call call = {syntax, json_object_get(tool, "types")};
    uint32_t arguments, at = from;
    if (schema_compile_call(builder, json_object_get(tool, "parameters"), &call, &arguments))
        return reply_name_tool(tools, index, builder->err);
    tools->rules[index] = arguments;
    if (syntax == SCHEMA_CALL_JSON) {
        const char *key = tools->tool_names ? "\"parameters\"" : "\"arguments\"";
        uint32_t comma = builder_state(builder), begun = builder_state(builder);
        uint32_t named = builder_state(builder);
        at = builder_state(builder);
        builder_byte(builder, from, comma, ',');
        json_rules_space(builder, comma, begun);
        builder_text(builder, begun, named, key, strlen(key));
        json_rules_colon(builder, named, at);
    } else if (syntax == SCHEMA_CALL_XML) {
        at = builder_state(builder);
        json_rules_space(builder, from, at);
    }
    json_rules_call(builder, at, to, arguments);
    return builder_failed(builder) ? -1 : 0;
}

/* Names and arguments of all tools, from one state to another. */
static int add_tools(struct builder *builder, enum schema_call_syntax syntax,
                     struct reply_tools *tools, uint32_t from, uint32_t to)
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
        failed = append_name(syntax, json_array_get(tools->list, i), &text, builder->err);
        words[i].length = text.length - start;
        words[i].to = builder_state(builder);
        failed = failed || add_arguments(builder, syntax, tools, i, words[i].to, to);
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
static int add_call(struct builder *builder, enum schema_call_syntax syntax,
                    struct reply_tools *tools, uint32_t *call)
{
    *call = builder_rule(builder);
    uint32_t name = builder_state(builder), done = builder_state(builder);
    if (builder_failed(builder))
        return -1;
    const struct builder_rule rule = builder->rules[*call];
    if (syntax == SCHEMA_CALL_JSON) {
        uint32_t open = builder_state(builder), key = builder_state(builder);
        uint32_t named = builder_state(builder), close = builder_state(builder);
        add_word(builder, rule.start, open, "{");
        json_rules_space(builder, open, key);
        add_word(builder, key, named, tools->tool_names ? "\"tool_name\"" : "\"name\"");
        json_rules_colon(builder, named, name);
        json_rules_space(builder, done, close);
        add_word(builder, close, rule.final, "}");
    } else {
        bool xml = syntax == SCHEMA_CALL_XML;
        add_word(builder, rule.start, name, xml ? "<function=" : "");
        add_word(builder, done, rule.final, xml ? "</function>" : ")");
    }
    return add_tools(builder, syntax, tools, name, done);
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

/* The rule of what stands between two markers, with these. */
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
    bool python = json_integer_value(json_object_get(calls, "syntax")) == SCHEMA_CALL_PYTHON;
    add_marker(builder, trie, rule.start, open, text_of(calls, "open"));
    json_rules_space(builder, open, begun);
    if (json_is_true(json_object_get(calls, "list"))) {
        uint32_t bracket = builder_state(builder), first = builder_state(builder);
        uint32_t last = builder_state(builder), end = builder_state(builder);
        add_word(builder, begun, bracket, "[");
        json_rules_space(builder, bracket, first);
        repeat(builder, first, last, call, ",", most);
        json_rules_space(builder, last, end);
        add_word(builder, end, done, "]");
    } else {
        repeat(builder, begun, done, call, python ? "\n" : "", python ? most : 1);
    }
    if (*marker) {
        json_rules_space(builder, done, close);
        add_marker(builder, trie, close, rule.final, marker);
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
    size_t most = (size_t)json_integer_value(json_object_get(calls, "most"));
    bool together = json_is_true(json_object_get(calls, "list")) || syntax == SCHEMA_CALL_PYTHON;
    uint32_t call;
    builder->tame = syntax != SCHEMA_CALL_JSON;
    builder->most_depth = MOST_DEPTH;
    tools->list = json_object_get(calls, "tools");
    tools->tool_names = json_is_true(json_object_get(calls, "tool_names"));
    if (add_call(builder, syntax, tools, &call))
        return -1;
    uint32_t block = add_block(builder, trie, calls, call, together ? most : 1);
    *rule = builder_rule(builder);
    if (builder_failed(builder))
        return -1;
    const struct builder_rule whole = builder->rules[*rule];
    repeat(builder, whole.start, whole.final, block, "", together ? 1 : most);
    return builder_failed(builder) ? -1 : 0;
}
