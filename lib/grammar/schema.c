/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema.h"

#include "lib/base/fields.h"
#include "lib/grammar/json_rules.h"
#include "lib/grammar/schema_compiler.h"
#include "lib/grammar/schema_value.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct schema_rule {
    uint32_t rule;
    enum schema_spelling spelling;
    size_t count;              /* of parts */
    struct schema_part *parts; /* in the arena, in the order in which they were found */
    struct schema_part *key;   /* the same, sorted */
};

bool schema_has(const struct schema_part *part, const char *key, const json_t **value)
{
    *value = json_object_get(part->schema, key);
    return *value != NULL;
}

bool schema_has_any(const struct schema_parts *parts, const char *const *keys, size_t count)
{
    for (size_t i = 0; i < parts->count; i++)
        for (size_t k = 0; k < count; k++)
            if (json_object_get(parts->items[i].schema, keys[k]))
                return true;
    return false;
}

int64_t schema_count(const struct schema_part *part, const char *key)
{
    const json_t *value;
    if (!schema_has(part, key, &value))
        return -1;
    double count = json_number_value(value);
    return count < INT32_MAX - 1 ? (int64_t)count : INT32_MAX - 1;
}

int64_t schema_counts(const struct schema_parts *parts, const char *key, bool least)
{
    int64_t found = -1;
    for (size_t i = 0; i < parts->count; i++) {
        int64_t count = schema_count(&parts->items[i], key);
        if (count >= 0 && (found < 0 || (least ? count < found : count > found)))
            found = count;
    }
    return found;
}

/* --- Rules by their parts --- */

static uint64_t hash_parts(const struct schema_part *key, size_t count,
                           enum schema_spelling spelling)
{
    uint64_t hash = count + ((uint64_t)spelling << 32);
    for (size_t i = 0; i < count; i++) {
        uintptr_t schema = (uintptr_t)key[i].schema;
        hash = XXH3_64bits_withSeed(&schema, sizeof schema, hash + key[i].chosen);
    }
    return hash;
}

static uint64_t hash_of_rule(const void *of, uint32_t item)
{
    const struct schema_rule *rule = (const struct schema_rule *)of + item;
    return hash_parts(rule->key, rule->count, rule->spelling);
}

static bool has_parts(const void *of, uint32_t item, const void *key)
{
    const struct schema_rule *rule = (const struct schema_rule *)of + item;
    const struct schema_parts *parts = key;
    if (rule->count != parts->count || rule->spelling != parts->spelling)
        return false;
    for (size_t i = 0; i < rule->count; i++)
        if (rule->key[i].schema != parts->items[i].schema ||
            rule->key[i].chosen != parts->items[i].chosen)
            return false;
    return true;
}

/* A rule for parts that have none yet. sorted: the same parts. */
static uint32_t add_rule(struct schema_compiler *compiler, const struct schema_parts *parts,
                         const struct schema_parts *sorted)
{
    struct error *err = compiler->document.err;
    struct schema_rule rule = {.count = parts->count, .spelling = parts->spelling};
    rule.parts = arena_alloc(compiler->document.arena, 2 * parts->count, sizeof *rule.parts, err);
    if (!rule.parts || array_grow((void **)&compiler->rules, &compiler->rules_capacity,
                                  compiler->num_rules + 1, sizeof *compiler->rules, err))
        return 0;
    rule.key = rule.parts + rule.count;
    memcpy(rule.parts, parts->items, rule.count * sizeof *rule.parts);
    memcpy(rule.key, sorted->items, rule.count * sizeof *rule.parts);
    rule.rule = builder_rule(compiler->builder);
    compiler->rules[compiler->num_rules++] = rule;
    return rule.rule;
}

uint32_t schema_rule(struct schema_compiler *compiler, const struct schema_parts *parts)
{
    struct schema_parts sorted = *parts;
    if (builder_failed(compiler->builder))
        return 0;
    if (parts->count == 0)
        return json_rules_id(compiler->builder, RULE_VALUE);
    schema_parts_sort(&sorted);
    uint32_t *slot =
        index_table_find(&compiler->table, compiler->num_rules,
                         hash_parts(sorted.items, sorted.count, sorted.spelling), &sorted,
                         hash_of_rule, has_parts, compiler->rules, compiler->document.err);
    if (!slot)
        return 0;
    if (*slot)
        return compiler->rules[*slot - 1].rule;
    *slot = (uint32_t)compiler->num_rules + 1;
    return add_rule(compiler, parts, &sorted);
}

/* --- The rule of some parts --- */

/* One call for each schema of an anyOf or oneOf, with all that the parts ask besides. */
static void add_choices(struct schema_compiler *compiler, const struct schema_parts *parts,
                        size_t chosen, const char *key, struct builder_rule rule)
{
    const struct schema_document *document = &compiler->document;
    const json_t *list = json_object_get(parts->items[chosen].schema, key);
    const struct schema_place *place = schema_place_key(document, parts->items[chosen].place, key);
    bool both = strcmp(key, "anyOf") == 0 && json_object_get(parts->items[chosen].schema, "oneOf");
    if (both) {
        schema_refuse(document, parts->items[chosen].place, "oneOf", ERROR_UNSUPPORTED,
                      "expected no oneOf beside anyOf");
        return;
    }
    for (size_t i = 0; i < json_array_size(list) && !builder_failed(compiler->builder); i++) {
        struct schema_parts branch = *parts;
        branch.items[chosen].chosen = true;
        if (schema_parts_add(document, &branch, json_array_get(list, i),
                             schema_place_index(document, place, i)))
            return;
        if (!branch.never)
            json_rules_call(compiler->builder, rule.start, rule.final,
                            schema_rule(compiler, &branch));
    }
}

static int value_fits(struct schema_compiler *compiler, const json_t *value,
                      const struct schema_parts *parts, bool *fits)
{
    if (schema_value_fits(&compiler->document, value, parts, fits))
        return -1;
    if (!*fits || parts->spelling == SCHEMA_AS_JSON)
        return 0;
    const struct dfa *barred = schema_text_barred(&compiler->document, parts);
    *fits = barred && !dfa_accepts(barred, json_string_value(value), json_string_length(value));
    return barred ? 0 : -1;
}

static int value_text(struct schema_compiler *compiler, const json_t *value,
                      const struct schema_parts *parts, struct text_buffer *out)
{
    struct error *err = compiler->document.err;
    return parts->spelling == SCHEMA_AS_JSON
               ? schema_value_text(value, compiler->builder->tame, out, err)
               : text_buffer_append(out, json_string_value(value), json_string_length(value), err);
}

/* The values of a list (one value, for const) that satisfy all parts. */
static void add_values(struct schema_compiler *compiler, const struct schema_parts *parts,
                       const json_t *list, struct builder_rule rule)
{
    struct error *err = compiler->document.err;
    size_t count = json_array_size(list), num_words = 0;
    struct text_buffer text = {0};
    struct builder_word *words = calloc(count + 1, sizeof *words);
    int failed = words ? 0 : error_set(err, ERROR_NO_MEMORY, "no memory for %zu values", count);
    for (size_t i = 0; i < count && !failed; i++) {
        bool fits;
        size_t start = text.length;
        failed = value_fits(compiler, json_array_get(list, i), parts, &fits);
        if (!failed && fits) {
            failed = value_text(compiler, json_array_get(list, i), parts, &text);
            words[num_words++].length = text.length - start;
        }
    }
    const char *at = text.data ? text.data : "";
    for (size_t i = 0; i < num_words && !failed; i++) {
        words[i].bytes = at;
        words[i].to = rule.final;
        at += words[i].length;
    }
    if (!failed && num_words > 0)
        builder_words(compiler->builder, rule.start, words, num_words);
    free(words);
    text_buffer_clear(&text);
}

static void add_types(struct schema_compiler *compiler, const struct schema_parts *parts,
                      struct builder_rule rule)
{
    struct builder *builder = compiler->builder;
    unsigned types = SCHEMA_ALL, these;
    for (size_t i = 0; i < parts->count; i++) {
        if (schema_value_types(&compiler->document, &parts->items[i], &these))
            return;
        types &= these;
    }
    if (types & SCHEMA_NULL)
        builder_text(builder, rule.start, rule.final, "null", 4);
    if (types & SCHEMA_BOOLEAN) {
        builder_text(builder, rule.start, rule.final, "true", 4);
        builder_text(builder, rule.start, rule.final, "false", 5);
    }
    if (types & (SCHEMA_REAL | SCHEMA_INTEGER))
        schema_number(compiler, parts, types & SCHEMA_REAL, rule.start, rule.final);
    if (types & SCHEMA_STRING)
        schema_string(compiler, parts, rule.start, rule.final);
    if (types & SCHEMA_ARRAY)
        schema_array(compiler, parts, rule.start, rule.final);
    if (types & SCHEMA_OBJECT)
        schema_object(compiler, parts, rule.start, rule.final);
}

static void add_body(struct schema_compiler *compiler, const struct schema_parts *parts,
                     struct builder_rule rule)
{
    static const char *const choices[] = {"anyOf", "oneOf"};
    const json_t *value;
    for (size_t i = 0; i < parts->count; i++)
        for (int k = 0; k < 2; k++)
            if (!parts->items[i].chosen && schema_has(&parts->items[i], choices[k], &value)) {
                add_choices(compiler, parts, i, choices[k], rule);
                return;
            }
    for (size_t i = 0; i < parts->count; i++) {
        if (schema_has(&parts->items[i], "enum", &value)) {
            struct schema_parts others = *parts; /* not each value against its own list */
            others.items[i].listed = true;
            add_values(compiler, &others, value, rule);
            return;
        }
        if (schema_has(&parts->items[i], "const", &value)) {
            json_t *list = json_pack("[O]", value);
            if (list)
                add_values(compiler, parts, list, rule);
            else
                error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
            json_decref(list);
            return;
        }
    }
    add_types(compiler, parts, rule);
}

/* What the builder refuses, which knows no places, gets that of the schema. All others begin with
 * "$". */
static void name_place(struct error *err, const struct schema_place *place)
{
    char text[SCHEMA_PLACE_BYTES];
    if (err->code != ERROR_NONE && err->message[0] != '$')
        error_prefix(err, "%s", schema_place_text(place, text));
}

static int compile_all(struct schema_compiler *compiler)
{
    struct schema_parts *some = malloc(sizeof *some);
    if (!some)
        return error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
    /* Each may add more. */
    for (size_t i = 0; i < compiler->num_rules && !builder_failed(compiler->builder); i++) {
        struct schema_rule rule = compiler->rules[i];
        some->count = rule.count;
        some->never = false;
        some->spelling = rule.spelling;
        memcpy(some->items, rule.parts, rule.count * sizeof *rule.parts);
        add_body(compiler, some, compiler->builder->rules[rule.rule]);
        name_place(compiler->document.err, some->items[0].place);
    }
    free(some);
    return builder_failed(compiler->builder) ? -1 : 0;
}

/* What the text of all of it must satisfy. object: {"type": "object"}, or NULL. */
static int read_whole(const struct schema_document *document, const json_t *object,
                      struct schema_parts *parts)
{
    static const struct schema_place whole = {NULL, NULL, 0};
    if (!json_is_object(document->root) && !json_is_boolean(document->root))
        return error_set(document->err, ERROR_INVALID,
                         "$: expected a schema (an object, true or false), got %s",
                         fields_kind(document->root));
    if (schema_parts_add(document, parts, document->root, &whole) ||
        (object && schema_parts_add(document, parts, object, &whole)))
        return -1;
    if (parts->never)
        return error_set(document->err, ERROR_UNSUPPORTED,
                         "$: expected a schema that some value satisfies, got false");
    return 0;
}

static int compile_whole(struct schema_compiler *compiler, const struct schema_call *call,
                         uint32_t *root)
{
    struct error *err = compiler->document.err;
    struct schema_parts *parts = calloc(1, sizeof *parts);
    const json_t *object = call ? schema_type_of(compiler, "object") : NULL;
    int failed = parts ? 0 : error_set(err, ERROR_NO_MEMORY, "no memory for a schema");
    failed = failed || (call && !object) || read_whole(&compiler->document, object, parts);
    if (!failed && call &&
        (call->syntax == SCHEMA_CALL_PYTHON || call->syntax == SCHEMA_CALL_XML)) {
        *root = builder_rule(compiler->builder);
        schema_arguments(compiler, parts, call, *root);
    } else if (!failed) {
        *root = schema_rule(compiler, parts);
    }
    free(parts);
    return failed ? -1 : compile_all(compiler);
}

static int compile(struct builder *builder, const json_t *spec, const struct schema_call *call,
                   uint32_t *root)
{
    struct arena arena = {0};
    const char *text_end = call ? schema_call_word(call->words, "value_end") : "";
    struct schema_compiler compiler = {.document = {.root = spec,
                                                    .arena = &arena,
                                                    .work = &builder->work,
                                                    .text_end = text_end,
                                                    .annotations = &builder->annotations,
                                                    .err = builder->err},
                                       .builder = builder,
                                       .made = json_array()};
    compiler.document.patterns = &compiler.patterns;
    compiler.document.resources = &compiler.resources;
    int failed = compiler.made ? compile_whole(&compiler, call, root)
                               : error_set(builder->err, ERROR_NO_MEMORY, "no memory for a schema");
    json_decref(compiler.made);
    free(compiler.rules);
    index_table_clear(&compiler.table);
    schema_patterns_clear(&compiler.patterns);
    arena_clear(&arena);
    return failed ? -1 : 0;
}

int schema_compile(struct builder *builder, const json_t *spec, uint32_t *root)
{
    return compile(builder, spec, NULL, root);
}

int schema_compile_call(struct builder *builder, const json_t *spec, const struct schema_call *call,
                        uint32_t *root)
{
    return compile(builder, spec, call, root);
}
