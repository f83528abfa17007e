/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/schema_parts.h"

#include "engine/base/fields.h"
#include "engine/grammar/schema_pointer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int schema_work(const struct schema_document *document, const struct schema_place *place,
                size_t steps)
{
    char text[SCHEMA_PLACE_BYTES];
    if (document->err->code != ERROR_NONE)
        return -1;
    if (work_add(document->work, steps, document->err) == 0)
        return 0;
    return error_prefix(document->err, "%s", schema_place_text(place, text));
}

static const struct schema_place *place_in(const struct schema_document *document,
                                           const struct schema_place *parent, const char *key,
                                           size_t index)
{
    if (schema_work(document, parent, SCHEMA_PLACE_WORK))
        return NULL;
    struct schema_place *place = arena_alloc(document->arena, 1, sizeof *place, document->err);
    if (place)
        *place = (struct schema_place){parent, key, index};
    return place;
}

const struct schema_place *schema_place_key(const struct schema_document *document,
                                            const struct schema_place *parent, const char *key)
{
    return place_in(document, parent, key, 0);
}

const struct schema_place *schema_place_index(const struct schema_document *document,
                                              const struct schema_place *parent, size_t index)
{
    return place_in(document, parent, NULL, index);
}

const char *schema_place_text(const struct schema_place *place, char text[SCHEMA_PLACE_BYTES])
{
    const struct schema_place *chain[SCHEMA_MOST_DEPTH];
    size_t count = 0, used;
    for (; place && place->parent && count < SCHEMA_MOST_DEPTH; place = place->parent)
        chain[count++] = place;
    bool cut = place && place->parent;
    used = (size_t)snprintf(text, SCHEMA_PLACE_BYTES, "%s", cut ? "$..." : "$");
    while (count > 0 && used < SCHEMA_PLACE_BYTES - 1) {
        const struct schema_place *at = chain[--count];
        int written = at->key
                          ? snprintf(text + used, SCHEMA_PLACE_BYTES - used, ".%.64s", at->key)
                          : snprintf(text + used, SCHEMA_PLACE_BYTES - used, "[%zu]", at->index);
        used += written > 0 ? (size_t)written : 0;
    }
    return text;
}

int schema_refuse(const struct schema_document *document, const struct schema_place *place,
                  const char *key, enum error_code code, const char *format, ...)
{
    char message[512], text[SCHEMA_PLACE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return error_set(document->err, code, "%s%s%.64s: %s", schema_place_text(place, text),
                     key ? "." : "", key ? key : "", message);
}

/* --- Keywords --- */

enum value_kind {
    ANY,
    SCHEMA,
    SCHEMAS,    /* a list of at least one */
    SCHEMA_MAP, /* an object of schemas */
    TEXT,
    REFERENCE,   /* a string; taken apart here, as ALL is */
    ALL,         /* as SCHEMAS */
    DEFINITIONS, /* as SCHEMA_MAP; asks for nothing, as NOTE does */
    NOTE,        /* anything */
    TEXTS,       /* a list of strings */
    COUNT,       /* an integer from 0 on */
    NUMBER,
    LIST,  /* of anything, at least one */
    TYPES, /* a string or a list of strings */
    FALSE_ONLY,
};

enum { KEYWORD_WORK = 32 }; /* its name is compared with each that we know */

static const struct keyword {
    const char *name;
    enum value_kind kind;
} KEYWORDS[] = {
    {"type", TYPES},
    {"properties", SCHEMA_MAP},
    {"required", TEXTS},
    {"additionalProperties", SCHEMA},
    {"patternProperties", SCHEMA_MAP},
    {"items", SCHEMA},
    {"prefixItems", SCHEMAS},
    {"minItems", COUNT},
    {"maxItems", COUNT},
    {"enum", LIST},
    {"const", ANY},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"allOf", ALL},
    {"$ref", REFERENCE},
    {"$defs", DEFINITIONS},
    {"definitions", DEFINITIONS},
    {"pattern", TEXT},
    {"minLength", COUNT},
    {"maxLength", COUNT},
    {"format", TEXT},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"uniqueItems", FALSE_ONLY},
    {"title", NOTE},
    {"description", NOTE},
    {"default", NOTE},
    {"examples", NOTE},
    {"$schema", NOTE},
    {"$id", NOTE},
    {"$comment", NOTE},
    {"deprecated", NOTE},
    {"readOnly", NOTE},
    {"writeOnly", NOTE},
    {"strict", NOTE}, /* of tools, which some write into their parameters */
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
static const char *unmet(enum value_kind kind, const json_t *value)
{
    switch (kind) {
    case ANY:
    case NOTE:
        return NULL;
    case SCHEMA:
        return is_schema(value) ? NULL : "a schema (an object, true or false)";
    case SCHEMAS:
    case ALL:
        return all_items(value, is_schema) && json_array_size(value) > 0
                   ? NULL
                   : "a list of at least one schema";
    case SCHEMA_MAP:
    case DEFINITIONS:
        return all_members(value) ? NULL : "an object of schemas";
    case TEXT:
    case REFERENCE:
        return is_text(value) ? NULL : "a string";
    case TEXTS:
        return all_items(value, is_text) ? NULL : "a list of strings";
    case COUNT:
        return is_count(value) ? NULL : "an integer from 0 on";
    case NUMBER:
        return json_is_number(value) ? NULL : "a number";
    case LIST:
        return json_array_size(value) > 0 ? NULL : "a list of at least one value";
    case TYPES:
        return is_text(value) || (all_items(value, is_text) && json_array_size(value) > 0)
                   ? NULL
                   : "a type or a list of types";
    case FALSE_ONLY:
        return json_is_false(value) ? NULL : "false";
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

static bool is_of_texts(enum value_kind kind)
{
    return kind == TEXT || kind == REFERENCE || kind == TEXTS || kind == TYPES;
}

/* What a check of a keyword's value looks at, in steps. */
static size_t size_of(const json_t *value)
{
    return json_is_string(value) ? json_string_length(value) / 8
                                 : 4 * (json_array_size(value) + json_object_size(value));
}

/* *asks: it asks for more than what $ref and allOf lead to. */
static int check_keywords(const struct schema_document *document, const json_t *schema,
                          const struct schema_place *place, bool *asks)
{
    *asks = false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value)
    {
        const struct keyword *found = NULL;
        if (schema_work(document, place, KEYWORD_WORK + size_of(value)))
            return -1;
        for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS && !found; i++)
            if (strcmp(KEYWORDS[i].name, key) == 0)
                found = &KEYWORDS[i];
        if (!found)
            return schema_refuse(document, place, key, ERROR_UNSUPPORTED,
                                 "expected a keyword that is supported, got \"%.64s\"", key);
        *asks |= found->kind != REFERENCE && found->kind != ALL && found->kind != DEFINITIONS &&
                 found->kind != NOTE;
        const char *expected = unmet(found->kind, value);
        if (expected)
            return schema_refuse(document, place, key, ERROR_INVALID, "expected %s, got %s",
                                 expected, fields_kind(value));
        if (is_of_texts(found->kind) && has_null(value))
            return schema_refuse(document, place, key, ERROR_UNSUPPORTED,
                                 "expected no U+0000, got one");
    }
    return 0;
}

/* --- References --- */

static int resolve(const struct schema_document *document, const char *ref,
                   const struct schema_place *place, const json_t **target)
{
    if (ref[0] != '#' || (ref[1] && ref[1] != '/'))
        return schema_refuse(document, place, "$ref", ERROR_UNSUPPORTED,
                             "expected \"#\" or \"#/...\" (a JSON pointer), got \"%.100s\"", ref);
    const json_t *value = schema_pointer(document->root, ref);
    if (!value || !is_schema(value))
        return schema_refuse(document, place, "$ref", ERROR_INVALID,
                             "expected what leads to a schema, got \"%.100s\"", ref);
    *target = value;
    return 0;
}

/* --- Parts --- */

/* The schemas on the way from the first, by $ref and allOf. */
struct way {
    const struct way *before;
    const json_t *schema;
    size_t length;
};

static int add(const struct schema_document *document, struct schema_parts *parts,
               const json_t *schema, const struct schema_place *place, const struct way *before)
{
    struct way way = {before, schema, before ? before->length + 1 : 1};
    if (!place)
        return -1; /* no memory, which the error says */
    if (json_is_true(schema))
        return 0;
    if (json_is_false(schema)) {
        parts->never = true;
        return 0;
    }
    bool circular = false;
    for (const struct way *at = before; at; at = at->before)
        circular |= at->schema == schema;
    size_t same = 0;
    while (same < parts->count && parts->items[same].schema != schema)
        same++;
    if (circular || (same < parts->count && parts->items[same].chosen))
        return schema_refuse(document, place, NULL, ERROR_INVALID,
                             "expected a schema, got one that is defined by itself");
    if (same < parts->count)
        return 0;
    if (parts->count == SCHEMA_MOST_PARTS || way.length > SCHEMA_MOST_DEPTH)
        return schema_refuse(document, place, NULL, ERROR_UNSUPPORTED,
                             "expected at most %d schemas for one value, got more",
                             SCHEMA_MOST_PARTS);
    bool asks;
    if (check_keywords(document, schema, place, &asks))
        return -1;
    if (asks)
        parts->items[parts->count++] = (struct schema_part){.schema = schema, .place = place};
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    const json_t *target = NULL;
    if (ref && (resolve(document, json_string_value(ref), place, &target) ||
                add(document, parts, target, schema_place_key(document, place, "$ref"), &way)))
        return -1;
    if (!all)
        return 0;
    const struct schema_place *list = schema_place_key(document, place, "allOf");
    for (size_t i = 0; i < json_array_size(all); i++)
        if (add(document, parts, json_array_get(all, i), schema_place_index(document, list, i),
                &way))
            return -1;
    return 0;
}

int schema_parts_add(const struct schema_document *document, struct schema_parts *parts,
                     const json_t *schema, const struct schema_place *place)
{
    return add(document, parts, schema, place, NULL);
}

int schema_parts_add_member(const struct schema_document *document, struct schema_parts *parts,
                            const struct schema_part *part, const char *key)
{
    const json_t *schema = json_object_get(part->schema, key);
    return schema ? add(document, parts, schema, schema_place_key(document, part->place, key), NULL)
                  : 0;
}

static int by_schema(const void *a, const void *b)
{
    const struct schema_part *x = a, *y = b;
    return x->schema != y->schema ? (x->schema > y->schema) - (x->schema < y->schema)
                                  : x->chosen - y->chosen;
}

void schema_parts_sort(struct schema_parts *parts)
{
    if (parts->count == 0)
        return;
    qsort(parts->items, parts->count, sizeof *parts->items, by_schema);
}
