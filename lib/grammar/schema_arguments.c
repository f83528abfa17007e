/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of calls that are not JSON. */
#include "lib/grammar/json_rules.h"
#include "lib/grammar/marker.h"
#include "lib/grammar/schema.h"
#include "lib/grammar/schema_members.h"

#include <string.h>

enum { MOST_NAME = 256 }; /* bytes, but in Python */

const json_t *schema_types_of(struct schema_compiler *compiler, json_t *names)
{
    json_t *schema = names ? json_pack("{s:o}", "type", names) : NULL;
    if (!schema || json_array_append_new(compiler->made, schema)) {
        error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
        return NULL;
    }
    return schema;
}

const json_t *schema_type_of(struct schema_compiler *compiler, const char *name)
{
    return schema_types_of(compiler, json_string(name));
}

static bool is_letter(char byte)
{
    char lower = (char)(byte | 0x20);
    return byte == '_' || (lower >= 'a' && lower <= 'z');
}

/* What a name that stands before JSON cannot have, but for white space. */
static const char BARRED[] = "<>[]{}\"`";

const char *schema_call_word(const json_t *words, const char *key)
{
    const char *word = json_string_value(json_object_get(words, key));
    return word ? word : "";
}

bool schema_call_name(enum schema_call_syntax syntax, const char *name, size_t length)
{
    if (syntax == SCHEMA_CALL_JSON)
        return length > 0;
    if (syntax == SCHEMA_CALL_NAMED) {
        for (size_t i = 0; i < length; i++)
            if ((unsigned char)name[i] <= ' ' || name[i] == 0x7F || strchr(BARRED, name[i]))
                return false;
        return length > 0 && length <= MOST_NAME;
    }
    if (length == 0 || (syntax == SCHEMA_CALL_PYTHON && !is_letter(name[0])))
        return false;
    if (syntax == SCHEMA_CALL_XML)
        return length <= MOST_NAME && !memchr(name, '<', length) && !memchr(name, '>', length) &&
               !memchr(name, '\n', length);
    for (size_t i = 1; i < length; i++)
        if (!is_letter(name[i]) && !(name[i] >= '0' && name[i] <= '9') && name[i] != '.' &&
            name[i] != '-')
            return false;
    return true;
}

/* Arguments while they are compiled. */
struct arguments {
    struct schema_members members;
    const struct schema_call *call;
};

/* A string as text, with what stands around it. */
static void add_string(struct arguments *arguments, const struct schema_parts *value, uint32_t from,
                       uint32_t to)
{
    struct schema_compiler *compiler = arguments->members.compiler;
    struct builder *builder = compiler->builder;
    const struct schema_call *call = arguments->call;
    if (call->syntax == SCHEMA_CALL_XML) {
        json_rules_call(builder, from, to, schema_rule(compiler, value));
        return;
    }
    uint32_t text = builder_state(builder), end = builder_state(builder);
    marker_add(builder, call->trie, from, text, schema_call_word(call->words, "value"));
    json_rules_call(builder, text, end, schema_rule(compiler, value));
    marker_add(builder, call->trie, end, to, schema_call_word(call->words, "value_end"));
}

/* Where the word before a value says whether it is a string: behind that word. */
static uint32_t begin_value(const struct arguments *arguments, uint32_t from, const char *key)
{
    struct builder *builder = arguments->members.compiler->builder;
    const struct schema_call *call = arguments->call;
    if (!*schema_call_word(call->words, "other"))
        return from;
    uint32_t begun = builder_state(builder);
    marker_add(builder, call->trie, from, begun, schema_call_word(call->words, key));
    return begun;
}

/* A value where strings are text: what is none there is JSON. */
static int add_text(struct arguments *arguments, const char *name, struct schema_parts *member,
                    uint32_t from, uint32_t to)
{
    static const struct schema_place own = {NULL, NULL, 0};
    struct schema_compiler *compiler = arguments->members.compiler;
    const struct schema_document *document = &compiler->document;
    const json_t *types = json_object_get(arguments->call->types, name), *type;
    const struct schema_place *place = member->count > 0 ? member->items[0].place : &own;
    json_t *others = json_array();
    bool text = json_array_size(types) == 0, failed = !others;
    for (size_t i = 0; i < json_array_size(types); i++) {
        json_t *one = json_array_get(types, i);
        if (strcmp(json_string_value(one), "string") == 0)
            text = true;
        else
            failed |= json_array_append(others, one) != 0;
    }
    if (failed) {
        json_decref(others);
        return error_set(document->err, ERROR_NO_MEMORY, "no memory for a schema");
    }
    bool any = json_array_size(others) > 0;
    bool apart = any && arguments->call->syntax == SCHEMA_CALL_XML &&
                 !*schema_call_word(arguments->call->words, "other");
    type = schema_types_of(compiler, others);
    struct schema_parts value = *member;
    if (!type)
        return -1;
    if (any) {
        if (schema_parts_add(document, &value, type, place))
            return -1;
        json_rules_call(compiler->builder, begin_value(arguments, from, "other"), to,
                        schema_rule(compiler, &value));
    }
    if (!text)
        return 0;
    type = schema_type_of(compiler, "string");
    value = *member;
    value.spelling = apart ? SCHEMA_AS_TEXT_APART : SCHEMA_AS_TEXT;
    if (!type || schema_parts_add(document, &value, type, place))
        return -1;
    add_string(arguments, &value, begin_value(arguments, from, "value"), to);
    return 0;
}

/* What stands between a key and its value: white space, if there are two words. */
static void add_between(const struct schema_call *call, struct builder *builder, uint32_t from,
                        uint32_t to)
{
    bool xml = call->syntax == SCHEMA_CALL_XML;
    const char *value = schema_call_word(call->words, "value");
    uint32_t ended = builder_state(builder), begun = builder_state(builder);
    marker_add(builder, call->trie, from, ended, schema_call_word(call->words, "key_end"));
    if (xml && *value)
        json_rules_space(builder, ended, begun);
    else
        builder_jump(builder, ended, begun);
    if (xml && *schema_call_word(call->words, "other"))
        builder_jump(builder, begun, to);
    else if (xml && *value)
        marker_add(builder, call->trie, begun, to, value);
    else
        builder_text(builder, begun, to, "\n",
                     json_is_true(json_object_get(call->words, "lines")) ? 1 : 0);
}

/* A key and its value, with the words around them. */
static int add_argument(struct arguments *arguments, size_t index, uint32_t from, uint32_t to)
{
    struct schema_compiler *compiler = arguments->members.compiler;
    struct builder *builder = compiler->builder;
    const char *name = arguments->members.names[index];
    struct schema_parts member;
    if (schema_members_named(&arguments->members, index, &member))
        return -1;
    if (member.never)
        return 0;
    const struct schema_call *call = arguments->call;
    const char *value_end = schema_call_word(call->words, "value_end");
    bool xml = call->syntax == SCHEMA_CALL_XML;
    uint32_t key = builder_state(builder), behind = builder_state(builder);
    uint32_t value = builder_state(builder);
    marker_add(builder, call->trie, from, key, schema_call_word(call->words, "key"));
    builder_text(builder, key, behind, name, strlen(name));
    add_between(call, builder, behind, value);
    if (!xml && !*value_end) {
        json_rules_call(builder, value, to, schema_rule(compiler, &member));
        return 0;
    }
    if (!xml)
        return add_text(arguments, name, &member, value, to);
    uint32_t close = builder_state(builder), line = builder_state(builder);
    uint32_t ended = builder_state(builder);
    builder_text(builder, close, line, "\n",
                 json_is_true(json_object_get(call->words, "lines")) ? 1 : 0);
    marker_add(builder, call->trie, line, ended, value_end);
    json_rules_space(builder, ended, to);
    return add_text(arguments, name, &member, value, close);
}

/* A name that cannot be written is left out, unless it is required. */
static int check_name(const struct arguments *arguments, size_t index, bool *written)
{
    const struct schema_members *members = &arguments->members;
    const char *name = members->names[index];
    *written = schema_call_name(arguments->call->syntax, name, strlen(name));
    if (*written || !members->required[index])
        return 0;
    return schema_refuse(&members->compiler->document, members->parts->items[0].place, "required",
                         ERROR_UNSUPPORTED,
                         "expected names that this model's calls can have, got \"%.60s\"", name);
}

/* As members of an object (schema_object.c): `key` is where argument i may begin, `done` is behind
 * it; in Python a comma stands between. */
static int add_all(struct arguments *arguments, struct builder_rule rule)
{
    const struct schema_members *members = &arguments->members;
    struct builder *builder = members->compiler->builder;
    bool xml = arguments->call->syntax == SCHEMA_CALL_XML, written;
    uint32_t key = rule.start;
    size_t must = schema_members_must(members);
    if (must == 0)
        builder_jump(builder, rule.start, rule.final);
    for (size_t i = 0; i < members->num_names && !builder_failed(builder); i++) {
        uint32_t next_key = builder_state(builder), done = builder_state(builder);
        if (check_name(arguments, i, &written) ||
            (written && add_argument(arguments, i, key, done)))
            return -1;
        if (!members->required[i])
            builder_jump(builder, key, next_key);
        if (xml) {
            builder_jump(builder, done, next_key);
        } else {
            uint32_t comma = builder_state(builder);
            builder_byte(builder, done, comma, ',');
            json_rules_space(builder, comma, next_key);
        }
        if (i + 1 >= must)
            builder_jump(builder, done, rule.final);
        key = next_key;
    }
    return 0;
}

void schema_arguments(struct schema_compiler *compiler, const struct schema_parts *parts,
                      const struct schema_call *call, uint32_t rule)
{
    static const char *const choices[] = {"anyOf",         "oneOf",         "enum",         "const",
                                          "propertyNames", "minProperties", "maxProperties"};
    struct arguments arguments = {.call = call};
    for (size_t i = 0; i < parts->count; i++)
        for (size_t k = 0; k < sizeof choices / sizeof *choices; k++)
            if (json_object_get(parts->items[i].schema, choices[k])) {
                schema_refuse(&compiler->document, parts->items[i].place, choices[k],
                              ERROR_UNSUPPORTED,
                              "expected none here, since this model's calls are not JSON, got one");
                return;
            }
    if (!builder_failed(compiler->builder) &&
        schema_members_read(&arguments.members, compiler, parts) == 0)
        add_all(&arguments, compiler->builder->rules[rule]);
    schema_members_clear(&arguments.members);
}
