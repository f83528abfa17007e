/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/dfa_emit.h"
#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema_members.h"
#include "engine/grammar/schema_value.h"
#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_GROUPS = 64 };

/* An object while it is compiled. */
struct object {
    struct schema_members members;
    bool open;     /* names that nobody mentions may come */
    int groups;    /* of names, by the patterns that they match */
    uint32_t key;  /* where a member may begin behind all names */
    uint32_t done; /* behind its value */
};

/* Names that nobody mentions come where some schema says what they are, or where none has any
 * properties. */
static bool is_open(const struct schema_parts *parts)
{
    bool asked = false, mentioned = false;
    for (size_t i = 0; i < parts->count; i++) {
        const json_t *schema = parts->items[i].schema;
        const json_t *rest = json_object_get(schema, "additionalProperties");
        if (json_is_false(rest))
            return false;
        asked |= rest != NULL;
        mentioned |=
            json_object_get(schema, "properties") || json_object_get(schema, "patternProperties");
    }
    return asked || !mentioned;
}

/* "name": value, from `from` to `to`. */
static int add_member(struct object *object, size_t index, uint32_t from, uint32_t to)
{
    struct builder *builder = object->members.compiler->builder;
    const char *name = object->members.names[index];
    struct schema_parts member;
    if (schema_members_named(&object->members, index, &member))
        return -1;
    if (member.never)
        return 0;
    struct text_buffer text = {0};
    uint32_t key = builder_state(builder), value = builder_state(builder);
    if (schema_value_string(name, strlen(name), builder->tame, &text, builder->err) == 0) {
        builder_text(builder, from, key, text.data, text.length);
        json_rules_colon(builder, key, value);
        json_rules_call(builder, value, to, schema_rule(object->members.compiler, &member));
    }
    text_buffer_clear(&text);
    return builder_failed(builder) ? -1 : 0;
}

/* --- Members whose names are not given --- */

/* All texts but the names. */
static int other_names(const struct object *object, struct dfa *out)
{
    struct error *err = object->members.compiler->document.err;
    struct nfa nfa;
    struct dfa all, names;
    int failed = nfa_begin(&nfa, object->members.compiler->document.work, err);
    for (size_t i = 0; i < object->members.num_names && !failed; i++) {
        const char *name = object->members.names[i];
        size_t length = strlen(name), used;
        uint32_t from = 0;
        for (size_t at = 0; at < length && !failed; at += used) {
            int32_t set = nfa_character(&nfa, utf8_decode(name + at, &used), err);
            uint32_t to = nfa_state(&nfa);
            failed = set < 0 || nfa_edge(&nfa, from, to, set, err);
            from = to;
        }
        failed = failed || nfa_edge(&nfa, from, 1, -1, err);
    }
    failed = failed || dfa_make(&names, &nfa, err);
    nfa_clear(&nfa);
    if (failed)
        return -1;
    failed = dfa_lengths(&all, 0, -1, object->members.compiler->document.work, err);
    if (!failed) {
        failed = dfa_combine(out, &all, &names, true, object->members.compiler->document.work, err);
        dfa_clear(&all);
    }
    dfa_clear(&names);
    return failed;
}

/* Members whose names `dfa` accepts (NULL: all texts), which match these patterns. */
static int add_group(struct object *object, const struct dfa *dfa, const bool *matches)
{
    struct builder *builder = object->members.compiler->builder;
    struct schema_parts member;
    bool any = false;
    for (size_t i = 0; i < object->members.num_patterns; i++)
        any |= matches[i];
    if (!any && !object->open)
        return 0;
    if (++object->groups > MOST_GROUPS)
        return schema_refuse(
            &object->members.compiler->document, object->members.parts->items[0].place,
            "patternProperties", ERROR_UNSUPPORTED,
            "expected patterns that overlap in at most %d ways, got more", MOST_GROUPS);
    if (schema_members_other(&object->members, matches, &member))
        return -1;
    if (member.never)
        return 0;
    uint32_t key = builder_state(builder), value = builder_state(builder);
    if (dfa) {
        uint32_t inside = builder_state(builder), end = builder_state(builder);
        builder_byte(builder, object->key, inside, '"');
        dfa_emit(builder, inside, end, dfa, DFA_JSON);
        builder_byte(builder, end, key, '"');
    } else {
        json_rules_call(builder, object->key, key, json_rules_id(builder, RULE_STRING));
    }
    json_rules_colon(builder, key, value);
    json_rules_call(builder, value, object->done, schema_rule(object->members.compiler, &member));
    return builder_failed(builder) ? -1 : 0;
}

/* Splits the names by pattern `index` and all behind it. */
static int split(struct object *object, const struct dfa *dfa, size_t index, bool *matches)
{
    if (dfa->empty)
        return 0;
    if (index == object->members.num_patterns)
        return add_group(object, dfa, matches);
    /* Names that a pattern forbids need not be told apart. */
    for (int without = json_is_false(object->members.patterns[index].schema); without < 2;
         without++) {
        struct dfa some;
        char text[SCHEMA_PLACE_BYTES];
        const struct schema_document *document = &object->members.compiler->document;
        if (dfa_combine(&some, dfa, object->members.patterns[index].dfa, without, document->work,
                        document->err))
            return error_prefix(document->err, "%s.patternProperties",
                                schema_place_text(object->members.parts->items[0].place, text));
        matches[index] = !without;
        int failed = split(object, &some, index + 1, matches);
        dfa_clear(&some);
        if (failed)
            return -1;
    }
    return 0;
}

static int add_others(struct object *object)
{
    bool matches[SCHEMA_MOST_PATTERNS] = {false};
    if (object->members.num_patterns == 0 && !object->open)
        return 0;
    if (object->members.num_patterns == 0 && object->members.num_names == 0)
        return add_group(object, NULL, matches);
    struct dfa others;
    char text[SCHEMA_PLACE_BYTES];
    if (other_names(object, &others))
        return error_prefix(object->members.compiler->document.err, "%s.properties",
                            schema_place_text(object->members.parts->items[0].place, text));
    int failed = split(object, &others, 0, matches);
    dfa_clear(&others);
    return failed;
}

/* --- The object --- */

/* The state `key` is where member i may begin; `done` is behind the one before it. From either, all
 * that is not required may be passed over; only from `done`, and from the start, the object may
 * end. */
static int add_members(struct object *object, uint32_t from, uint32_t to)
{
    struct builder *builder = object->members.compiler->builder;
    uint32_t open = builder_state(builder), close = builder_state(builder);
    uint32_t first = builder_state(builder), key = builder_state(builder), done = 0;
    size_t must = schema_members_must(&object->members);
    builder_byte(builder, from, open, '{');
    json_rules_space(builder, open, first);
    builder_jump(builder, first, key);
    builder_byte(builder, close, to, '}');
    if (must == 0)
        builder_jump(builder, first, close);
    for (size_t i = 0; i <= object->members.num_names && !builder_failed(builder); i++) {
        bool is_end = i == object->members.num_names;
        if (i > 0) {
            uint32_t comma = builder_state(builder);
            builder_byte(builder, done, comma, ',');
            json_rules_space(builder, comma, key);
            if (i >= must)
                json_rules_space(builder, done, close);
        }
        if (is_end)
            break;
        uint32_t next_key = builder_state(builder), next_done = builder_state(builder);
        if (add_member(object, i, key, next_done))
            return -1;
        if (!object->members.required[i])
            builder_jump(builder, key, next_key);
        key = next_key;
        done = next_done;
    }
    if (builder_failed(builder))
        return -1;
    object->key = key;
    object->done = builder_state(builder);
    uint32_t comma = builder_state(builder);
    builder_byte(builder, object->done, comma, ',');
    json_rules_space(builder, comma, key);
    json_rules_space(builder, object->done, close);
    return add_others(object);
}

void schema_object(struct schema_compiler *compiler, const struct schema_parts *parts,
                   uint32_t from, uint32_t to)
{
    static const char *const keys[] = {"properties", "required", "additionalProperties",
                                       "patternProperties"};
    if (!schema_has_any(parts, keys, sizeof keys / sizeof *keys)) {
        json_rules_call(compiler->builder, from, to, json_rules_id(compiler->builder, RULE_OBJECT));
        return;
    }
    struct object *object = calloc(1, sizeof *object);
    if (!object) {
        error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
        return;
    }
    object->open = is_open(parts);
    if (schema_members_read(&object->members, compiler, parts) == 0)
        add_members(object, from, to);
    schema_members_clear(&object->members);
    free(object);
}
