/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_keywords.h"

#include "lib/base/fields.h"
#include "lib/grammar/grammar.h"
#include "lib/grammar/schema_format.h"

#include <string.h>

enum { KEYWORD_WORK = 48 }; /* its name is compared with each that we know */

static const struct keyword {
    const char *name;
    enum schema_keyword_kind kind;
    enum grammar_annotation annotation; /* of KEYWORD_ANNOTATION */
} KEYWORDS[] = {
    {"type", KEYWORD_TYPES, 0},
    {"properties", KEYWORD_SCHEMA_MAP, 0},
    {"required", KEYWORD_TEXTS, 0},
    {"additionalProperties", KEYWORD_SCHEMA, 0},
    {"patternProperties", KEYWORD_SCHEMA_MAP, 0},
    {"items", KEYWORD_SCHEMA, 0},
    {"prefixItems", KEYWORD_SCHEMAS, 0},
    {"minItems", KEYWORD_COUNT, 0},
    {"maxItems", KEYWORD_COUNT, 0},
    {"enum", KEYWORD_LIST, 0},
    {"const", KEYWORD_ANY, 0},
    {"anyOf", KEYWORD_SCHEMAS, 0},
    {"oneOf", KEYWORD_SCHEMAS, 0},
    {"allOf", KEYWORD_ALL, 0},
    {"$ref", KEYWORD_REFERENCE, 0},
    {"$defs", KEYWORD_DEFINITIONS, 0},
    {"definitions", KEYWORD_DEFINITIONS, 0},
    {"pattern", KEYWORD_TEXT, 0},
    {"minLength", KEYWORD_COUNT, 0},
    {"maxLength", KEYWORD_COUNT, 0},
    {"format", KEYWORD_TEXT, 0},
    {"minimum", KEYWORD_NUMBER, 0},
    {"maximum", KEYWORD_NUMBER, 0},
    {"exclusiveMinimum", KEYWORD_LIMIT, 0},
    {"exclusiveMaximum", KEYWORD_LIMIT, 0},
    {"multipleOf", KEYWORD_POSITIVE, 0},
    {"uniqueItems", KEYWORD_BOOLEAN, 0},
    {"propertyNames", KEYWORD_SCHEMA, 0},
    {"minProperties", KEYWORD_COUNT, 0},
    {"maxProperties", KEYWORD_COUNT, 0},
    {"title", KEYWORD_NOTE, 0},
    {"description", KEYWORD_NOTE, 0},
    {"default", KEYWORD_NOTE, 0},
    {"examples", KEYWORD_NOTE, 0},
    {"$schema", KEYWORD_NOTE, 0},
    {"$id", KEYWORD_NAME, 0},
    {"$anchor", KEYWORD_NAME, 0},
    {"$comment", KEYWORD_NOTE, 0},
    {"deprecated", KEYWORD_NOTE, 0},
    {"readOnly", KEYWORD_NOTE, 0},
    {"writeOnly", KEYWORD_NOTE, 0},
    {"strict", KEYWORD_NOTE, 0}, /* of tools, which some write into their parameters */
    {"nullable", KEYWORD_ANNOTATION, ANNOTATION_NULLABLE},
    {"discriminator", KEYWORD_ANNOTATION, ANNOTATION_DISCRIMINATOR},
    {"example", KEYWORD_ANNOTATION, ANNOTATION_EXAMPLE},
    {"contentEncoding", KEYWORD_ANNOTATION, ANNOTATION_CONTENT},
    {"contentMediaType", KEYWORD_ANNOTATION, ANNOTATION_CONTENT},
    {"contentSchema", KEYWORD_ANNOTATION, ANNOTATION_CONTENT},
    {"id", KEYWORD_ANNOTATION, ANNOTATION_OTHER},
    {"xml", KEYWORD_ANNOTATION, ANNOTATION_OTHER},
    {"externalDocs", KEYWORD_ANNOTATION, ANNOTATION_OTHER},
};

static bool is_schema(const json_t *value)
{
    return json_is_object(value) || json_is_boolean(value);
}

static bool all_items(const json_t *list, bool (*is)(const json_t *value))
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!is(json_array_get(list, i)))
            return false;
    return json_is_array(list);
}

static bool all_members(const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) if (!is_schema(value)) return false;
    return json_is_object(object);
}

static bool is_text(const json_t *value)
{
    return json_is_string(value);
}

static bool is_count(const json_t *value)
{
    return (json_is_integer(value) && json_integer_value(value) >= 0) ||
           (json_is_real(value) && json_real_value(value) >= 0 && json_real_value(value) < 1e15 &&
            json_real_value(value) == (double)(json_int_t)json_real_value(value));
}

/* What a keyword expects, unless the value is that. */
static const char *unmet(enum schema_keyword_kind kind, const json_t *value)
{
    switch (kind) {
    case KEYWORD_ANY:
    case KEYWORD_NOTE:
    case KEYWORD_ANNOTATION:
        return NULL;
    case KEYWORD_SCHEMA:
        return is_schema(value) ? NULL : "a schema (an object, true or false)";
    case KEYWORD_SCHEMAS:
    case KEYWORD_ALL:
        return all_items(value, is_schema) && json_array_size(value) > 0
                   ? NULL
                   : "a list of at least one schema";
    case KEYWORD_SCHEMA_MAP:
    case KEYWORD_DEFINITIONS:
        return all_members(value) ? NULL : "an object of schemas";
    case KEYWORD_TEXT:
    case KEYWORD_REFERENCE:
    case KEYWORD_NAME:
        return is_text(value) ? NULL : "a string";
    case KEYWORD_TEXTS:
        return all_items(value, is_text) ? NULL : "a list of strings";
    case KEYWORD_COUNT:
        return is_count(value) ? NULL : "an integer from 0 on";
    case KEYWORD_NUMBER:
        return json_is_number(value) ? NULL : "a number";
    case KEYWORD_POSITIVE:
        return json_number_value(value) > 0 ? NULL : "a number above 0";
    case KEYWORD_LIMIT:
        return json_is_number(value) || json_is_boolean(value) ? NULL : "a number";
    case KEYWORD_LIST:
        return json_array_size(value) > 0 ? NULL : "a list of at least one value";
    case KEYWORD_TYPES:
        return is_text(value) || (all_items(value, is_text) && json_array_size(value) > 0)
                   ? NULL
                   : "a type or a list of types";
    case KEYWORD_BOOLEAN:
        return json_is_boolean(value) ? NULL : "true or false";
    }
    return NULL;
}

/* Whether a string, or one of a list, has U+0000 in it: no text of ours has, and it would end the
 * name. Keys cannot have it. */
static bool has_null(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (has_null(json_array_get(value, i)))
            return true;
    return json_is_string(value) &&
           memchr(json_string_value(value), 0, json_string_length(value)) != NULL;
}

static bool is_of_texts(enum schema_keyword_kind kind)
{
    return kind == KEYWORD_TEXT || kind == KEYWORD_REFERENCE || kind == KEYWORD_TEXTS ||
           kind == KEYWORD_TYPES;
}

/* What a check of a keyword's value looks at, in steps. */
static size_t size_of(const json_t *value)
{
    return json_is_string(value) ? json_string_length(value) / 8
                                 : 4 * (json_array_size(value) + json_object_size(value));
}

static const struct keyword *find(const char *name)
{
    static const struct keyword extension = {"x-", KEYWORD_ANNOTATION, ANNOTATION_EXTENSION};
    for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
        if (strcmp(KEYWORDS[i].name, name) == 0)
            return &KEYWORDS[i];
    return strncmp(name, "x-", 2) == 0 ? &extension : NULL;
}

bool schema_keywords_find(const char *name, enum schema_keyword_kind *kind)
{
    const struct keyword *found = find(name);
    if (found)
        *kind = found->kind;
    return found != NULL;
}

static bool asks_for_something(enum schema_keyword_kind kind)
{
    return kind != KEYWORD_REFERENCE && kind != KEYWORD_ALL && kind != KEYWORD_DEFINITIONS &&
           kind != KEYWORD_NAME && kind != KEYWORD_NOTE && kind != KEYWORD_ANNOTATION;
}

/* What asks for nothing here, though whoever wrote it may mean something. */
static void count(const struct schema_document *document, const struct keyword *keyword,
                  const json_t *value)
{
    enum grammar_annotation annotation = keyword->annotation;
    if (strcmp(keyword->name, "format") == 0 && !schema_format_known(json_string_value(value)))
        annotation = ANNOTATION_FORMAT;
    else if (keyword->kind != KEYWORD_ANNOTATION ||
             (annotation == ANNOTATION_NULLABLE && !json_is_true(value)))
        return;
    *document->annotations |= 1u << annotation;
}

int schema_keywords_check(const struct schema_document *document, const json_t *schema,
                          const struct schema_place *place, bool *asks)
{
    *asks = false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value)
    {
        if (schema_work(document, place, KEYWORD_WORK + size_of(value)))
            return -1;
        const struct keyword *found = find(key);
        if (!found)
            return schema_refuse(document, place, key, ERROR_UNSUPPORTED,
                                 "expected a keyword that is supported, got \"%.64s\"", key);
        *asks |= asks_for_something(found->kind);
        const char *expected = unmet(found->kind, value);
        if (expected)
            return schema_refuse(document, place, key, ERROR_INVALID, "expected %s, got %s",
                                 expected, fields_kind(value));
        if (is_of_texts(found->kind) && has_null(value))
            return schema_refuse(document, place, key, ERROR_UNSUPPORTED,
                                 "expected no U+0000, got one");
        count(document, found, value);
    }
    return 0;
}
