/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/dfa_emit.h"
#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema_compiler.h"
#include "engine/grammar/schema_value.h"
#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PATTERNS = 16, MOST_GROUPS = 64 };

/* A pattern of patternProperties. */
struct pattern {
    size_t part; /* whose it is */
    const char *text;
    const json_t *schema;
    const struct schema_place *place;
    const struct dfa *dfa;
};

/* An object while it is compiled. */
struct object {
    struct schema_compiler *compiler;
    const struct schema_parts *parts;
    const char **names; /* [num_names]: those of properties, then the other required ones */
    bool *required;     /* [num_names] */
    size_t num_names, names_capacity, required_capacity;
    json_t *known; /* by name: its index */
    struct pattern patterns[MOST_PATTERNS];
    size_t num_patterns;
    bool open;     /* names that nobody mentions may come */
    int groups;    /* of names, by the patterns that they match */
    uint32_t key;  /* where a member may begin behind all names */
    uint32_t done; /* behind its value */
};

static int add_name(struct object *object, const char *name, bool required)
{
    struct error *err = object->compiler->document.err;
    const json_t *index = json_object_get(object->known, name);
    if (index) {
        bool *known = &object->required[json_integer_value(index)];
        *known = *known || required;
        return 0;
    }
    size_t count = object->num_names;
    if (array_grow((void **)&object->names, &object->names_capacity, count + 1,
                   sizeof *object->names, err) ||
        array_grow((void **)&object->required, &object->required_capacity, count + 1,
                   sizeof *object->required, err))
        return -1;
    if (json_object_set_new_nocheck(object->known, name, json_integer((json_int_t)count)))
        return error_set(err, ERROR_NO_MEMORY, "no memory for a schema");
    object->names[count] = name;
    object->required[count] = required;
    object->num_names++;
    return 0;
}

static int read_names(struct object *object)
{
    const struct schema_parts *parts = object->parts;
    const char *name;
    json_t *schema;
    for (size_t i = 0; i < parts->count; i++)
        json_object_foreach(json_object_get(parts->items[i].schema, "properties"), name,
                            schema) if (add_name(object, name, false)) return -1;
    for (size_t i = 0; i < parts->count; i++) {
        const json_t *required = json_object_get(parts->items[i].schema, "required");
        for (size_t k = 0; k < json_array_size(required); k++)
            if (add_name(object, json_string_value(json_array_get(required, k)), true))
                return -1;
    }
    return 0;
}

static int read_patterns(struct object *object)
{
    const struct schema_document *document = &object->compiler->document;
    for (size_t i = 0; i < object->parts->count; i++) {
        const struct schema_part *part = &object->parts->items[i];
        const char *text;
        json_t *schema;
        json_object_foreach(json_object_get(part->schema, "patternProperties"), text, schema)
        {
            if (object->num_patterns == MOST_PATTERNS)
                return schema_refuse(document, part->place, "patternProperties", ERROR_UNSUPPORTED,
                                     "expected at most %d patterns, got more", MOST_PATTERNS);
            struct pattern *pattern = &object->patterns[object->num_patterns];
            *pattern = (struct pattern){
                .part = i,
                .text = text,
                .schema = schema,
                .place = schema_place_key(document, part->place, "patternProperties")};
            pattern->dfa = schema_pattern(document, part->place, "patternProperties", text,
                                          strlen(text), true);
            if (!pattern->dfa)
                return -1;
            object->num_patterns++;
        }
    }
    return 0;
}

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

/* What a member must satisfy. matches: the patterns that its name does. */
static int member_parts(const struct object *object, const char *name, const bool *matches,
                        struct schema_parts *member)
{
    const struct schema_document *document = &object->compiler->document;
    member->count = 0;
    member->never = false;
    for (size_t i = 0; i < object->parts->count; i++) {
        const struct schema_part *part = &object->parts->items[i];
        const json_t *own =
            name ? json_object_get(json_object_get(part->schema, "properties"), name) : NULL;
        bool known = own;
        if (own) {
            const struct schema_place *place =
                schema_place_key(document, part->place, "properties");
            if (schema_parts_add(document, member, own, schema_place_key(document, place, name)))
                return -1;
        }
        for (size_t k = 0; k < object->num_patterns; k++) {
            const struct pattern *pattern = &object->patterns[k];
            if (pattern->part != i || !matches[k])
                continue;
            known = true;
            if (schema_parts_add(document, member, pattern->schema,
                                 schema_place_key(document, pattern->place, pattern->text)))
                return -1;
        }
        if (!known && schema_parts_add_member(document, member, part, "additionalProperties"))
            return -1;
    }
    return 0;
}

/* "name": value, from `from` to `to`. */
static int add_member(struct object *object, size_t index, uint32_t from, uint32_t to)
{
    struct builder *builder = object->compiler->builder;
    const char *name = object->names[index];
    bool matches[MOST_PATTERNS];
    struct schema_parts member;
    if (schema_work(&object->compiler->document, object->parts->items[0].place,
                    (object->parts->count + strlen(name)) * (1 + object->num_patterns)))
        return -1;
    for (size_t i = 0; i < object->num_patterns; i++)
        matches[i] = dfa_accepts(object->patterns[i].dfa, name, strlen(name));
    if (member_parts(object, name, matches, &member))
        return -1;
    if (member.never)
        return 0;
    struct text_buffer text = {0};
    uint32_t key = builder_state(builder), value = builder_state(builder);
    if (schema_value_string(name, strlen(name), &text, builder->err) == 0) {
        builder_text(builder, from, key, text.data, text.length);
        json_rules_colon(builder, key, value);
        json_rules_call(builder, value, to, schema_rule(object->compiler, &member));
    }
    text_buffer_clear(&text);
    return builder_failed(builder) ? -1 : 0;
}

/* --- Members whose names are not given --- */

/* All texts but the names. */
static int other_names(const struct object *object, struct dfa *out)
{
    struct error *err = object->compiler->document.err;
    struct nfa nfa;
    struct dfa all, names;
    int failed = nfa_begin(&nfa, object->compiler->document.work, err);
    for (size_t i = 0; i < object->num_names && !failed; i++) {
        const char *name = object->names[i];
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
    failed = dfa_lengths(&all, 0, -1, object->compiler->document.work, err);
    if (!failed) {
        failed = dfa_combine(out, &all, &names, true, object->compiler->document.work, err);
        dfa_clear(&all);
    }
    dfa_clear(&names);
    return failed;
}

/* Members whose names `dfa` accepts (NULL: all texts), which match these patterns. */
static int add_group(struct object *object, const struct dfa *dfa, const bool *matches)
{
    struct builder *builder = object->compiler->builder;
    struct schema_parts member;
    bool any = false;
    for (size_t i = 0; i < object->num_patterns; i++)
        any |= matches[i];
    if (!any && !object->open)
        return 0;
    if (++object->groups > MOST_GROUPS)
        return schema_refuse(&object->compiler->document, object->parts->items[0].place,
                             "patternProperties", ERROR_UNSUPPORTED,
                             "expected patterns that overlap in at most %d ways, got more",
                             MOST_GROUPS);
    if (member_parts(object, NULL, matches, &member))
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
        json_rules_call(builder, object->key, key, RULE_STRING);
    }
    json_rules_colon(builder, key, value);
    json_rules_call(builder, value, object->done, schema_rule(object->compiler, &member));
    return builder_failed(builder) ? -1 : 0;
}

/* Splits the names by pattern `index` and all behind it. */
static int split(struct object *object, const struct dfa *dfa, size_t index, bool *matches)
{
    if (dfa->empty)
        return 0;
    if (index == object->num_patterns)
        return add_group(object, dfa, matches);
    /* Names that a pattern forbids need not be told apart. */
    for (int without = json_is_false(object->patterns[index].schema); without < 2; without++) {
        struct dfa some;
        char text[SCHEMA_PLACE_BYTES];
        const struct schema_document *document = &object->compiler->document;
        if (dfa_combine(&some, dfa, object->patterns[index].dfa, without, document->work,
                        document->err))
            return error_prefix(document->err, "%s.patternProperties",
                                schema_place_text(object->parts->items[0].place, text));
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
    bool matches[MOST_PATTERNS] = {false};
    if (object->num_patterns == 0 && !object->open)
        return 0;
    if (object->num_patterns == 0 && object->num_names == 0)
        return add_group(object, NULL, matches);
    struct dfa others;
    char text[SCHEMA_PLACE_BYTES];
    if (other_names(object, &others))
        return error_prefix(object->compiler->document.err, "%s.properties",
                            schema_place_text(object->parts->items[0].place, text));
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
    struct builder *builder = object->compiler->builder;
    uint32_t open = builder_state(builder), close = builder_state(builder);
    uint32_t first = builder_state(builder), key = builder_state(builder), done = 0;
    size_t last_required = 0; /* names up to it must have come */
    for (size_t i = 0; i < object->num_names; i++)
        last_required = object->required[i] ? i + 1 : last_required;
    builder_byte(builder, from, open, '{');
    json_rules_space(builder, open, first);
    builder_jump(builder, first, key);
    builder_byte(builder, close, to, '}');
    if (last_required == 0)
        builder_jump(builder, first, close);
    for (size_t i = 0; i <= object->num_names && !builder_failed(builder); i++) {
        bool is_end = i == object->num_names;
        if (i > 0) {
            uint32_t comma = builder_state(builder);
            builder_byte(builder, done, comma, ',');
            json_rules_space(builder, comma, key);
            if (i >= last_required)
                json_rules_space(builder, done, close);
        }
        if (is_end)
            break;
        uint32_t next_key = builder_state(builder), next_done = builder_state(builder);
        if (add_member(object, i, key, next_done))
            return -1;
        if (!object->required[i])
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
        json_rules_call(compiler->builder, from, to, RULE_OBJECT);
        return;
    }
    struct object *object = calloc(1, sizeof *object);
    if (object)
        *object = (struct object){
            .compiler = compiler, .parts = parts, .known = json_object(), .open = is_open(parts)};
    if (!object || !object->known)
        error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
    else if (read_names(object) == 0 && read_patterns(object) == 0)
        add_members(object, from, to);
    if (object) {
        json_decref(object->known);
        free(object->names);
        free(object->required);
    }
    free(object);
}
