/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/dfa_emit.h"
#include "lib/grammar/json_rules.h"
#include "lib/grammar/schema_members.h"
#include "lib/grammar/schema_value.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_GROUPS = 64 };

/* An object while it is compiled. */
struct object {
    struct schema_members members;
    int groups;    /* of names, by the patterns that they match */
    uint32_t key;  /* where a member may begin behind all names */
    uint32_t done; /* behind its value */
};

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
    if (!failed && object->members.has_others) {
        struct dfa both;
        failed = dfa_combine(&both, out, &object->members.others, false,
                             object->members.compiler->document.work, err);
        dfa_clear(out);
        if (!failed)
            *out = both;
    }
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
    if (!any && !object->members.open)
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

/* Whether names may come that are not listed. */
static bool has_others(const struct object *object)
{
    return !object->members.closed && (object->members.num_patterns > 0 || object->members.open);
}

static int add_others(struct object *object)
{
    bool matches[SCHEMA_MOST_PATTERNS] = {false};
    if (!has_others(object))
        return 0;
    if (object->members.num_patterns == 0 && object->members.num_names == 0)
        return add_group(object, object->members.has_others ? &object->members.others : NULL,
                         matches);
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

/* --- Members that are counted --- */

enum { MOST_COUNTED = 1 << 14 }; /* names times counts */

struct counts {
    int64_t least, most; /* members; most < 0: no limit */
    size_t top;          /* counts go so far: there they stay, or with `most` end */
};

/* Whether what is required does not answer for minProperties, and all there is for maxProperties.
 */
static bool reads_counts(const struct object *object, struct counts *counts)
{
    const struct schema_members *members = &object->members;
    int64_t required = 0, names = (int64_t)members->num_names;
    for (size_t i = 0; i < members->num_names; i++)
        required += members->required[i];
    counts->least = schema_counts(members->parts, "minProperties", false);
    counts->most = schema_counts(members->parts, "maxProperties", true);
    int64_t top = counts->most >= 0 ? counts->most : counts->least;
    counts->top = (size_t)(top < names ? top : names);
    return counts->least > required ||
           (counts->most >= 0 && (has_others(object) || names > counts->most));
}

static int refuse_counts(const struct object *object, const char *key, const char *expected,
                         int64_t most)
{
    const struct schema_parts *parts = object->members.parts;
    size_t at = 0;
    while (at + 1 < parts->count && !json_object_get(parts->items[at].schema, key))
        at++;
    return schema_refuse(&object->members.compiler->document, parts->items[at].place, key,
                         ERROR_UNSUPPORTED, "expected %s %lld, got more", expected,
                         (long long)most);
}

/* Members behind the listed ones as a rule, which counts all but the first. Nobody knows whether
 * their names differ, so towards minProperties they are one. */
static uint32_t add_list_of_others(struct object *object)
{
    struct builder *builder = object->members.compiler->builder;
    uint32_t list = builder_rule(builder), comma = builder_state(builder);
    object->done = builder_state(builder);
    if (builder_failed(builder))
        return 0;
    object->key = builder->rules[list].start;
    uint32_t final = builder->rules[list].final;
    builder_range(builder, object->done, comma, ',', ',', EDGE_COUNTS);
    json_rules_space(builder, comma, object->key);
    builder_jump(builder, object->done, final);
    return add_others(object) ? 0 : list;
}

/* Member `index` of the names. key: [top + 1], where it may begin by the count of those before it;
 * next: the same of the one behind. */
static int count_member(struct object *object, const struct counts *counts, size_t index,
                        const uint32_t *key, uint32_t *next, uint32_t close)
{
    struct builder *builder = object->members.compiler->builder;
    size_t must = schema_members_must(&object->members);
    uint32_t rule = builder_rule(builder);
    if (builder_failed(builder) ||
        add_member(object, index, builder->rules[rule].start, builder->rules[rule].final))
        return -1;
    for (size_t came = 0; came <= counts->top; came++)
        next[came] = builder_state(builder);
    for (size_t came = 0; came <= counts->top && !builder_failed(builder); came++) {
        size_t now = came < counts->top ? came + 1 : came;
        if (!object->members.required[index])
            builder_jump(builder, key[came], next[came]);
        if (came == counts->top && counts->most >= 0)
            break;
        uint32_t done = builder_state(builder), comma = builder_state(builder);
        json_rules_call(builder, key[came], done, rule);
        builder_byte(builder, done, comma, ',');
        json_rules_space(builder, comma, next[now]);
        if (index + 1 >= must && (int64_t)now >= counts->least)
            json_rules_space(builder, done, close);
    }
    return builder_failed(builder) ? -1 : 0;
}

/* All of it. key, next: room for counts->top + 1 states. */
static int add_counted(struct object *object, const struct counts *counts, uint32_t *key,
                       uint32_t *next, uint32_t from, uint32_t to)
{
    struct builder *builder = object->members.compiler->builder;
    const size_t names = object->members.num_names;
    uint32_t open = builder_state(builder), close = builder_state(builder);
    uint32_t done = builder_state(builder);
    for (size_t came = 0; came <= counts->top; came++)
        key[came] = builder_state(builder);
    builder_byte(builder, from, open, '{');
    json_rules_space(builder, open, key[0]);
    builder_byte(builder, close, to, '}');
    json_rules_space(builder, done, close);
    uint32_t start = key[0];
    for (size_t i = 0; i < names; i++) {
        if (count_member(object, counts, i, key, next, close))
            return -1;
        memcpy(key, next, (counts->top + 1) * sizeof *key);
    }
    if (schema_members_must(&object->members) == 0 && counts->least <= 0)
        builder_jump(builder, start, close);
    if (!has_others(object))
        return 0;
    uint32_t list = add_list_of_others(object);
    for (size_t came = 0; came <= counts->top && !builder_failed(builder); came++) {
        int64_t count = (int64_t)came + 1;
        if (count >= counts->least && (counts->most < 0 || count <= counts->most))
            builder_call(builder, key[came], done, list, 0,
                         counts->most < 0 ? AUTOMATON_NO_LIMIT : (int32_t)(counts->most - count));
    }
    return builder_failed(builder) ? -1 : 0;
}

static void add_counted_members(struct object *object, const struct counts *counts, uint32_t from,
                                uint32_t to)
{
    struct schema_members *members = &object->members;
    int64_t possible = (int64_t)members->num_names + has_others(object);
    if (has_others(object) && counts->least > possible) {
        refuse_counts(
            object, "minProperties",
            "names that are listed, as by properties or an enum in propertyNames, but for "
            "one: no grammar knows whether free names differ; so at most",
            possible);
        return;
    }
    if ((members->num_names + 1) * (counts->top + 1) > MOST_COUNTED) {
        refuse_counts(object, counts->most >= 0 ? "maxProperties" : "minProperties",
                      "a product of names and counts of at most", MOST_COUNTED);
        return;
    }
    uint32_t *key = calloc(2 * (counts->top + 1), sizeof *key);
    if (key)
        add_counted(object, counts, key, key + counts->top + 1, from, to);
    else
        error_set(members->compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
    free(key);
}

void schema_object(struct schema_compiler *compiler, const struct schema_parts *parts,
                   uint32_t from, uint32_t to)
{
    static const char *const keys[] = {"properties",        "required",      "additionalProperties",
                                       "patternProperties", "propertyNames", "minProperties",
                                       "maxProperties"};
    if (!schema_has_any(parts, keys, sizeof keys / sizeof *keys)) {
        json_rules_call(compiler->builder, from, to, json_rules_id(compiler->builder, RULE_OBJECT));
        return;
    }
    struct object *object = calloc(1, sizeof *object);
    if (!object) {
        error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
        return;
    }
    struct counts counts;
    if (schema_members_read(&object->members, compiler, parts) == 0) {
        if (reads_counts(object, &counts))
            add_counted_members(object, &counts, from, to);
        else
            add_members(object, from, to);
    }
    schema_members_clear(&object->members);
    free(object);
}
