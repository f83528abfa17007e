/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/schema_members.h"

#include "engine/text/buffer.h"

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

int schema_members_read(struct schema_members *members, struct schema_compiler *compiler,
                        const struct schema_parts *parts)
{
    members->compiler = compiler;
    members->parts = parts;
    members->known = json_object();
    if (!members->known)
        return error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
    return read_names(members) || read_patterns(members) ? -1 : 0;
}

void schema_members_clear(struct schema_members *members)
{
    json_decref(members->known);
    free(members->names);
    free(members->required);
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
    return member_parts(members, name, matches, member);
}

int schema_members_other(const struct schema_members *members, const bool *matches,
                         struct schema_parts *member)
{
    return member_parts(members, NULL, matches, member);
}
