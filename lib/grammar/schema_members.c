/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_members.h"

#include "lib/grammar/schema_finite.h"
#include "lib/grammar/schema_value.h"
#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

static int add_name(struct schema_members *members, const char *name, bool required)
{
    struct error *err = members->compiler->document.err;
    const json_t *index = json_object_get(members->known, name);
    if (index) {
        bool *known = &members->required[json_integer_value(index)];
        *known = *known || required;
        return 0;
    }
    size_t count = members->num_names;
    if (array_grow((void **)&members->names, &members->names_capacity, count + 1,
                   sizeof *members->names, err) ||
        array_grow((void **)&members->required, &members->required_capacity, count + 1,
                   sizeof *members->required, err))
        return -1;
    if (json_object_set_new_nocheck(members->known, name, json_integer((json_int_t)count)))
        return error_set(err, ERROR_NO_MEMORY, "no memory for a schema");
    members->names[count] = name;
    members->required[count] = required;
    members->num_names++;
    return 0;
}

static int read_names(struct schema_members *members)
{
    const struct schema_parts *parts = members->parts;
    const char *name;
    json_t *schema;
    for (size_t i = 0; i < parts->count; i++)
        json_object_foreach(json_object_get(parts->items[i].schema, "properties"), name,
                            schema) if (add_name(members, name, false)) return -1;
    for (size_t i = 0; i < parts->count; i++) {
        const json_t *required = json_object_get(parts->items[i].schema, "required");
        for (size_t k = 0; k < json_array_size(required); k++)
            if (add_name(members, json_string_value(json_array_get(required, k)), true))
                return -1;
    }
    return 0;
}

static int read_patterns(struct schema_members *members)
{
    const struct schema_document *document = &members->compiler->document;
    for (size_t i = 0; i < members->parts->count; i++) {
        const struct schema_part *part = &members->parts->items[i];
        const char *text;
        json_t *schema;
        json_object_foreach(json_object_get(part->schema, "patternProperties"), text, schema)
        {
            if (members->num_patterns == SCHEMA_MOST_PATTERNS)
                return schema_refuse(document, part->place, "patternProperties", ERROR_UNSUPPORTED,
                                     "expected at most %d patterns, got more",
                                     SCHEMA_MOST_PATTERNS);
            struct schema_name_pattern *pattern = &members->patterns[members->num_patterns];
            *pattern = (struct schema_name_pattern){
                .part = i,
                .text = text,
                .schema = schema,
                .place = schema_place_key(document, part->place, "patternProperties")};
            pattern->dfa = schema_pattern(document, part->place, "patternProperties", text,
                                          strlen(text), true);
            if (!pattern->dfa)
                return -1;
            members->num_patterns++;
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

/* --- propertyNames --- */

/* Names that propertyNames lists. Those come that may: where other names may, or by a pattern. */
static int add_listed(struct schema_members *members, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const char *name = json_string_value(value);
        bool may = name && members->open;
        if (name && strlen(name) != json_string_length(value)) /* U+0000: no name of ours has it */
            continue;
        for (size_t k = 0; k < members->num_patterns && name && !may; k++)
            may = dfa_accepts(members->patterns[k].dfa, name, strlen(name));
        if (may && add_name(members, name, false))
            return -1;
    }
    return 0;
}

/* What names must be that nobody lists. */
static int read_free(struct schema_members *members)
{
    const struct schema_document *document = &members->compiler->document;
    const struct schema_parts *asked = &members->asked_names;
    unsigned types;
    for (size_t i = 0; i < asked->count; i++) {
        const struct schema_part *part = &asked->items[i];
        if (schema_value_types(document, part, &types))
            return -1;
        members->closed |= !(types & SCHEMA_STRING);
        for (int k = 0; k < 2; k++)
            if (json_object_get(part->schema, k == 0 ? "anyOf" : "oneOf"))
                return schema_refuse(
                    document, part->place, k == 0 ? "anyOf" : "oneOf", ERROR_UNSUPPORTED,
                    "expected one of at most %d names here, got free ones", SCHEMA_MOST_FINITE);
    }
    return schema_string_names(document, asked, &members->others, &members->has_others);
}

static int read_asked(struct schema_members *members)
{
    const struct schema_document *document = &members->compiler->document;
    for (size_t i = 0; i < members->parts->count; i++) {
        const struct schema_part *part = &members->parts->items[i];
        members->asked |= json_object_get(part->schema, "propertyNames") != NULL;
        if (schema_parts_add_member(document, &members->asked_names, part, "propertyNames"))
            return -1;
    }
    if (!members->asked || members->asked_names.count == 0) {
        members->closed = members->asked_names.never;
        return 0;
    }
    bool finite;
    json_t *list = json_array();
    if (!list || json_array_append_new(members->compiler->made, list))
        return error_set(document->err, ERROR_NO_MEMORY, "no memory for a schema");
    if (schema_finite(document, &members->asked_names, list, &finite))
        return -1;
    if (!finite)
        return read_free(members);
    members->closed = true;
    return add_listed(members, list);
}

int schema_members_read(struct schema_members *members, struct schema_compiler *compiler,
                        const struct schema_parts *parts)
{
    members->compiler = compiler;
    members->parts = parts;
    members->known = json_object();
    if (!members->known)
        return error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
    members->open = is_open(parts);
    return read_names(members) || read_patterns(members) || read_asked(members) ? -1 : 0;
}

void schema_members_clear(struct schema_members *members)
{
    json_decref(members->known);
    free(members->names);
    free(members->required);
    dfa_clear(&members->others);
}

size_t schema_members_must(const struct schema_members *members)
{
    size_t count = members->num_names;
    while (count > 0 && !members->required[count - 1])
        count--;
    return count;
}

/* What a member must satisfy. matches: the patterns that its name does. */
static int member_parts(const struct schema_members *members, const char *name, const bool *matches,
                        struct schema_parts *member)
{
    const struct schema_document *document = &members->compiler->document;
    *member = (struct schema_parts){0};
    for (size_t i = 0; i < members->parts->count; i++) {
        const struct schema_part *part = &members->parts->items[i];
        const json_t *own =
            name ? json_object_get(json_object_get(part->schema, "properties"), name) : NULL;
        bool known = own;
        if (own) {
            const struct schema_place *place =
                schema_place_key(document, part->place, "properties");
            if (schema_parts_add(document, member, own, schema_place_key(document, place, name)))
                return -1;
        }
        for (size_t k = 0; k < members->num_patterns; k++) {
            const struct schema_name_pattern *pattern = &members->patterns[k];
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

int schema_members_named(const struct schema_members *members, size_t index,
                         struct schema_parts *member)
{
    const char *name = members->names[index];
    bool matches[SCHEMA_MOST_PATTERNS];
    if (schema_work(&members->compiler->document, members->parts->items[0].place,
                    (members->parts->count + strlen(name)) * (1 + members->num_patterns)))
        return -1;
    for (size_t i = 0; i < members->num_patterns; i++)
        matches[i] = dfa_accepts(members->patterns[i].dfa, name, strlen(name));
    if (member_parts(members, name, matches, member))
        return -1;
    json_t *text = members->asked ? json_string(name) : NULL;
    bool fits = true;
    int failed =
        text ? schema_value_fits(&members->compiler->document, text, &members->asked_names, &fits)
             : 0;
    json_decref(text);
    member->never |= !fits;
    return failed;
}

int schema_members_other(const struct schema_members *members, const bool *matches,
                         struct schema_parts *member)
{
    return member_parts(members, NULL, matches, member);
}
