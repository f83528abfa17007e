/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/grammar.h"

#include "lib/base/fields.h"
#include "lib/grammar/builder_finish.h"
#include "lib/grammar/compiled.h"
#include "lib/grammar/dfa_emit.h"
#include "lib/grammar/gbnf.h"
#include "lib/grammar/json_rules.h"
#include "lib/grammar/regex.h"
#include "lib/grammar/reply.h"
#include "lib/grammar/schema.h"

#include <stdlib.h>

enum {
    CACHE_BYTES = 4 << 20,
    MOST_CHOICES = 1 << 14,
    MOST_DFA_RANGES = 1 << 17, /* a larger automaton is written with choices instead */
};

/* A rule of one of the texts of a list. */
static int compile_choice(struct builder *builder, const json_t *spec, uint32_t *root)
{
    size_t count = json_array_size(spec);
    if (!json_is_array(spec) || count == 0 || count > MOST_CHOICES)
        return error_set(builder->err, ERROR_INVALID,
                         "$: expected a list of 1 to %d strings, got %s of %zu", MOST_CHOICES,
                         json_is_array(spec) ? "one" : fields_kind(spec), count);
    struct builder_word *words = malloc(count * sizeof *words);
    if (!words)
        return error_set(builder->err, ERROR_NO_MEMORY, "no memory for %zu choices", count);
    for (size_t i = 0; i < count; i++) {
        const json_t *choice = json_array_get(spec, i);
        if (!json_is_string(choice)) {
            free(words);
            return error_set(builder->err, ERROR_INVALID, "$[%zu]: expected a string, got %s", i,
                             fields_kind(choice));
        }
        words[i] = (struct builder_word){json_string_value(choice), json_string_length(choice), 0};
    }
    *root = builder_rule(builder);
    for (size_t i = 0; i < count && !builder_failed(builder); i++)
        words[i].to = builder->rules[*root].final;
    if (!builder_failed(builder))
        builder_words(builder, builder->rules[*root].start, words, count);
    free(words);
    return builder_failed(builder) ? -1 : 0;
}

/* A rule of the texts that match from beginning to end. A deterministic automaton is read fastest;
 * where it would be too large, it stays one with choices. */
static int compile_regex(struct builder *builder, const json_t *spec, uint32_t *root)
{
    struct nfa nfa;
    struct dfa dfa;
    struct error large = ERROR_INIT;
    if (!json_is_string(spec))
        return error_set(builder->err, ERROR_INVALID, "$: expected a string, got %s",
                         fields_kind(spec));
    if (regex_read(&nfa, json_string_value(spec), json_string_length(spec), false, &builder->work,
                   builder->err))
        return -1;
    *root = builder_rule(builder);
    struct builder_rule rule = {0};
    if (!builder_failed(builder))
        rule = builder->rules[*root];
    int failed = dfa_make(&dfa, &nfa, &large);
    if (failed && large.code != ERROR_UNSUPPORTED)
        error_set(builder->err, large.code, "%s", large.message);
    else if (failed || (size_t)dfa.num_states * dfa.num_intervals > MOST_DFA_RANGES)
        dfa_emit_nfa(builder, rule.start, rule.final, &nfa);
    else
        dfa_emit(builder, rule.start, rule.final, &dfa, DFA_UTF8);
    if (!failed)
        dfa_clear(&dfa);
    nfa_clear(&nfa);
    return builder_failed(builder) ? -1 : 0;
}

/* What is compiled, and what its errors name. */
struct compiling {
    struct builder builder;
    const struct trie *trie;
    struct gbnf gbnf;
    struct reply_tools tools;
    uint32_t around; /* calls around a tool's arguments */
};

static int compile_kind(struct compiling *compiling, enum grammar_kind kind, const json_t *spec,
                        uint32_t *root);

static int compile_reply(struct compiling *compiling, const json_t *spec, uint32_t *root)
{
    struct builder *builder = &compiling->builder;
    const json_t *calls = json_object_get(spec, "calls");
    const json_t *kind = json_object_get(spec, "kind"), *inner = json_object_get(spec, "spec");
    uint32_t body, other;
    if ((!calls || kind) && (!json_is_integer(kind) || json_integer_value(kind) == GRAMMAR_REPLY))
        return error_set(builder->err, ERROR_INVALID, "$: expected calls or another kind");
    /* First: it sets what the form beside it is bound by too. */
    if (calls && reply_calls(builder, compiling->trie, calls, &compiling->tools, &body))
        return -1;
    if (kind && compile_kind(compiling, (enum grammar_kind)json_integer_value(kind), inner,
                             calls ? &other : &body))
        return -1;
    const char *answer = json_string_value(json_object_get(spec, "answer"));
    uint32_t *answered = calls ? &other : &body;
    if (kind && answer && reply_answer(builder, compiling->trie, answer, *answered, answered))
        return -1;
    if (calls && kind && reply_either(builder, body, other, &body))
        return -1;
    const json_t *reasoning = json_object_get(spec, "reasoning");
    compiling->around = REPLY_CALLS_AROUND + (reasoning != NULL) + (kind != NULL);
    return reply_reasoning(builder, compiling->trie, reasoning, body, root);
}

static int compile_kind(struct compiling *compiling, enum grammar_kind kind, const json_t *spec,
                        uint32_t *root)
{
    struct builder *builder = &compiling->builder;
    switch (kind) {
    case GRAMMAR_JSON:
        *root = RULE_OBJECT;
        return 0;
    case GRAMMAR_JSON_SCHEMA:
        return schema_compile(builder, spec, root);
    case GRAMMAR_REGEX:
        return compile_regex(builder, spec, root);
    case GRAMMAR_CHOICE:
        return compile_choice(builder, spec, root);
    case GRAMMAR_REPLY:
        return compile_reply(compiling, spec, root);
    case GRAMMAR_GBNF:
        if (json_is_string(spec))
            return gbnf_compile(&compiling->gbnf, builder, json_string_value(spec),
                                json_string_length(spec), root);
        return error_set(builder->err, ERROR_INVALID, "$: expected a string, got %s",
                         fields_kind(spec));
    }
    return error_set(builder->err, ERROR_INTERNAL, "grammar: no kind %d", kind);
}

/* Whether a text of the rule can come within `around` calls. */
static int check_can_end(const struct automaton *automaton, uint32_t rule, uint32_t around,
                         struct error *err)
{
    if (automaton->states[automaton->starts[rule]].need + around <= automaton->most_depth)
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "$: expected what some text can match, got what none can, with the bytes of "
                     "the model's tokens and at most %d levels of nesting",
                     (int)automaton->most_depth);
}

/* All of it, and the arguments of each tool. */
static int check_ends(const struct grammar *grammar, const struct compiling *compiling)
{
    struct error *err = compiling->builder.err;
    const struct reply_tools *tools = &compiling->tools;
    for (size_t i = 0; i < json_array_size(tools->list); i++)
        if (check_can_end(&grammar->automaton, tools->rules[i], compiling->around, err))
            return reply_name_tool(tools, i, err);
    return check_can_end(&grammar->automaton, grammar->root, 0, err);
}

static int check_recursion(uint32_t rule, const struct gbnf *gbnf, struct error *err)
{
    if (rule == UINT32_MAX)
        return 0;
    if (gbnf->count == 0)
        return error_set(err, ERROR_UNSUPPORTED,
                         "$: expected schemas that ask for something, got one that only leads to "
                         "itself");
    const struct gbnf_name *name = &gbnf->names[rule - gbnf->first];
    size_t line, column;
    gbnf_place(gbnf, name, &line, &column);
    return error_set(err, ERROR_UNSUPPORTED,
                     "line %zu, column %zu: expected a rule that begins with some text, got %.*s, "
                     "which begins with itself (write a repetition: x (\"+\" x)*)",
                     line, column, (int)(name->length < 64 ? name->length : 64), name->name);
}

/* Makes the mask that all texts begin with, which then waits for nobody. */
static int make_first(struct grammar *grammar, struct error *err)
{
    struct grammar_matcher *matcher;
    if (grammar_matcher_create(&matcher, grammar, err))
        return -1;
    int failed = grammar_matcher_mask(matcher, err) ? 0 : -1;
    if (!failed)
        grammar->first = matcher_kept(matcher);
    grammar_matcher_free(matcher);
    return failed;
}

int grammar_compile(struct grammar **out, enum grammar_kind kind, const json_t *spec,
                    const struct grammar_vocabulary *vocabulary, struct error *err)
{
    struct error none = ERROR_INIT; /* a builder needs one to know that it failed */
    struct compiling compiling = {
        .builder = {.alphabet = vocabulary->alphabet, .err = err ? err : &none},
        .trie = &vocabulary->trie};
    struct builder *builder = &compiling.builder;
    struct grammar *grammar = calloc(1, sizeof *grammar);
    if (!grammar)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar");
    atomic_init(&grammar->shares, 1);
    grammar->vocabulary = vocabulary;
    uint32_t left_recursive = UINT32_MAX;
    json_rules_add(builder);
    int failed = builder_failed(builder) || compile_kind(&compiling, kind, spec, &grammar->root) ||
                 builder_finish(builder, &grammar->automaton, &left_recursive) ||
                 check_ends(grammar, &compiling) ||
                 check_recursion(left_recursive, &compiling.gbnf, builder->err) ||
                 mask_cache_create(&grammar->masks, trie_set_words(&vocabulary->trie), CACHE_BYTES,
                                   builder->err) ||
                 make_first(grammar, builder->err);
    grammar->annotations = builder->annotations;
    builder_clear(builder);
    gbnf_clear(&compiling.gbnf);
    free(compiling.tools.rules);
    if (failed) {
        grammar_release(grammar);
        return -1;
    }
    *out = grammar;
    return 0;
}
