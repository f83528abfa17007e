/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_value.h"

#include "lib/grammar/schema_compiler.h"
#include "lib/grammar/schema_decimal.h"
#include "lib/grammar/schema_format.h"
#include "lib/text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned types;
} TYPES[] = {{"null", SCHEMA_NULL},       {"boolean", SCHEMA_BOOLEAN},
             {"integer", SCHEMA_INTEGER}, {"number", SCHEMA_INTEGER | SCHEMA_REAL},
             {"string", SCHEMA_STRING},   {"array", SCHEMA_ARRAY},
             {"object", SCHEMA_OBJECT}};

static unsigned type_of_name(const char *name)
{
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(TYPES[i].name, name) == 0)
            return TYPES[i].types;
    return 0;
}

int schema_value_types(const struct schema_document *document, const struct schema_part *part,
                       unsigned *types)
{
    const json_t *type;
    *types = SCHEMA_ALL;
    if (!schema_has(part, "type", &type))
        return 0;
    *types = 0;
    size_t count = json_is_array(type) ? json_array_size(type) : 1;
    if (schema_work(document, part->place, count))
        return -1;
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        unsigned these = type_of_name(name);
        if (!these)
            return schema_refuse(document, part->place, "type", ERROR_INVALID,
                                 "expected null, boolean, integer, number, string, array or "
                                 "object, got \"%.64s\"",
                                 name);
        *types |= these;
    }
    return 0;
}

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return SCHEMA_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SCHEMA_BOOLEAN;
    case JSON_INTEGER:
        return SCHEMA_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? SCHEMA_INTEGER
                                                                       : SCHEMA_REAL;
    case JSON_STRING:
        return SCHEMA_STRING;
    case JSON_ARRAY:
        return SCHEMA_ARRAY;
    case JSON_OBJECT:
        return SCHEMA_OBJECT;
    }
    return 0;
}

/* Less than 0, 0 or more: a is less than, equal to or more than b. */
static int compare_integer(json_int_t a, double b)
{
    if (b >= 0x1p63)
        return -1;
    if (b < -0x1p63)
        return 1;
    json_int_t whole = (json_int_t)floor(b); /* exact */
    return a != whole ? (a > whole) - (a < whole) : floor(b) < b ? -1 : 0;
}

/* The same of two numbers, exactly: integers beyond 2^53 are no doubles. */
static int compare_numbers(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b)) {
        json_int_t x = json_integer_value(a), y = json_integer_value(b);
        return (x > y) - (x < y);
    }
    if (json_is_integer(a))
        return compare_integer(json_integer_value(a), json_real_value(b));
    if (json_is_integer(b))
        return -compare_integer(json_integer_value(b), json_real_value(a));
    double x = json_real_value(a), y = json_real_value(b);
    return (x > y) - (x < y);
}

bool schema_value_same(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? compare_numbers(a, b) == 0 : json_equal(a, b);
}

/* Steps of a comparison: strings, lists and members, with what is in them. */
static size_t size_of(const json_t *value)
{
    size_t size = 4 + (json_is_string(value) ? json_string_length(value) / 8 : 0);
    const char *key;
    json_t *member;
    for (size_t i = 0; i < json_array_size(value); i++)
        size += size_of(json_array_get(value, i));
    json_object_foreach((json_t *)value, key, member) size += 4 + size_of(member);
    return size;
}

static int fits_one(const struct schema_document *document, const json_t *value,
                    const struct schema_part *part, int depth, bool *fits);

enum { SCHEMA_WORK = 256 }; /* of a value and a schema, with their places */

/* Whether a value satisfies a schema of a part. */
static int fits_schema(const struct schema_document *document, const json_t *value,
                       const json_t *schema, const struct schema_part *part, const char *key,
                       int depth, bool *fits)
{
    if (schema_work(document, part->place, SCHEMA_WORK))
        return -1;
    struct schema_parts *parts = calloc(1, sizeof *parts);
    if (!parts)
        return error_set(document->err, ERROR_NO_MEMORY, "no memory for a schema");
    int failed = 0;
    if (depth >= SCHEMA_MOST_DEPTH)
        failed = schema_refuse(document, part->place, key, ERROR_UNSUPPORTED,
                               "expected values and schemas of at most %d levels, got more",
                               SCHEMA_MOST_DEPTH);
    if (!failed)
        failed =
            schema_parts_add(document, parts, schema, schema_place_key(document, part->place, key));
    *fits = !parts->never;
    for (size_t i = 0; i < parts->count && !failed && *fits; i++)
        failed = fits_one(document, value, &parts->items[i], depth + 1, fits);
    free(parts);
    return failed ? -1 : 0;
}

static int fits_choice(const struct schema_document *document, const json_t *value,
                       const struct schema_part *part, const char *key, int depth, bool *fits)
{
    const json_t *list = json_object_get(part->schema, key);
    bool any = !list || part->chosen;
    for (size_t i = 0; i < json_array_size(list) && !any; i++)
        if (fits_schema(document, value, json_array_get(list, i), part, key, depth, &any))
            return -1;
    *fits = *fits && any;
    return 0;
}

static bool fits_number(const json_t *number, const struct schema_part *part)
{
    static const struct {
        const char *key, *exclusive;
        int sign; /* of what the number may not be, compared with the limit */
    } limits[] = {{"minimum", "exclusiveMinimum", -1}, {"maximum", "exclusiveMaximum", 1}};
    const json_t *limit;
    for (int i = 0; i < 2; i++) {
        const json_t *other = json_object_get(part->schema, limits[i].exclusive);
        if (json_is_number(other) && compare_numbers(number, other) * limits[i].sign >= 0)
            return false;
        if (schema_has(part, limits[i].key, &limit) &&
            compare_numbers(number, limit) * limits[i].sign >= (json_is_true(other) ? 0 : 1))
            return false;
    }
    return !schema_has(part, "multipleOf", &limit) ||
           schema_decimal_is_multiple(schema_decimal_read(number), schema_decimal_read(limit));
}

static int fits_text(const struct schema_document *document, const json_t *value,
                     const struct schema_part *part, bool *fits)
{
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    int64_t characters = (int64_t)utf8_characters(text, length);
    int64_t least = schema_count(part, "minLength"), most = schema_count(part, "maxLength");
    *fits = characters >= least && (most < 0 || characters <= most);
    static const char *const keys[] = {"pattern", "format"};
    for (int i = 0; i < 2 && *fits; i++) {
        const json_t *asked;
        if (!schema_has(part, keys[i], &asked) ||
            (i == 1 && !schema_format_known(json_string_value(asked))))
            continue;
        const struct dfa *dfa =
            i == 0 ? schema_pattern(document, part->place, keys[i], json_string_value(asked),
                                    json_string_length(asked), true)
                   : schema_format(document, part->place, json_string_value(asked));
        if (!dfa || schema_work(document, part->place, length))
            return -1;
        *fits = dfa_accepts(dfa, text, length);
    }
    return 0;
}

/* Whether a list has no value twice. */
static int fits_unique(const struct schema_document *document, const json_t *list,
                       const struct schema_part *part, bool *fits)
{
    for (size_t i = 0; i < json_array_size(list) && *fits; i++) {
        if (schema_work(document, part->place, i * size_of(json_array_get(list, i))))
            return -1;
        for (size_t k = 0; k < i && *fits; k++)
            *fits = !schema_value_same(json_array_get(list, i), json_array_get(list, k));
    }
    return 0;
}

static int fits_list(const struct schema_document *document, const json_t *value,
                     const struct schema_part *part, int depth, bool *fits)
{
    const json_t *prefix = json_object_get(part->schema, "prefixItems");
    const json_t *items = json_object_get(part->schema, "items");
    int64_t count = (int64_t)json_array_size(value);
    int64_t least = schema_count(part, "minItems"), most = schema_count(part, "maxItems");
    *fits = count >= least && (most < 0 || count <= most);
    if (json_is_true(json_object_get(part->schema, "uniqueItems")) &&
        fits_unique(document, value, part, fits))
        return -1;
    for (size_t i = 0; i < json_array_size(value) && *fits; i++) {
        const json_t *schema = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (schema && fits_schema(document, json_array_get(value, i), schema, part,
                                  schema == items ? "items" : "prefixItems", depth, fits))
            return -1;
    }
    return 0;
}

/* One member: the schema of its name, of the patterns that its name matches, or of all others. */
static int fits_member(const struct schema_document *document, const char *name,
                       const json_t *value, const struct schema_part *part, int depth, bool *fits)
{
    const json_t *own = json_object_get(json_object_get(part->schema, "properties"), name);
    const json_t *patterns = json_object_get(part->schema, "patternProperties");
    const json_t *rest = json_object_get(part->schema, "additionalProperties");
    bool known = own;
    if (own && fits_schema(document, value, own, part, "properties", depth, fits))
        return -1;
    const char *pattern;
    json_t *schema;
    json_object_foreach((json_t *)patterns, pattern, schema)
    {
        const struct dfa *dfa = schema_pattern(document, part->place, "patternProperties", pattern,
                                               strlen(pattern), true);
        if (!dfa || schema_work(document, part->place, strlen(name)))
            return -1;
        bool matches = dfa_accepts(dfa, name, strlen(name));
        known |= matches;
        if (matches && *fits &&
            fits_schema(document, value, schema, part, "patternProperties", depth, fits))
            return -1;
    }
    return known || !rest || !*fits
               ? 0
               : fits_schema(document, value, rest, part, "additionalProperties", depth, fits);
}

/* A member's name, as a string. */
static int fits_name(const struct schema_document *document, const char *name,
                     const struct schema_part *part, int depth, bool *fits)
{
    const json_t *names = json_object_get(part->schema, "propertyNames");
    json_t *text = names ? json_string(name) : NULL;
    if (names && !text)
        return error_set(document->err, ERROR_NO_MEMORY, "no memory for a schema");
    int failed = names ? fits_schema(document, text, names, part, "propertyNames", depth, fits) : 0;
    json_decref(text);
    return failed;
}

static int fits_object(const struct schema_document *document, const json_t *value,
                       const struct schema_part *part, int depth, bool *fits)
{
    const json_t *required = json_object_get(part->schema, "required");
    if (schema_work(document, part->place, 4 * json_array_size(required)))
        return -1;
    for (size_t i = 0; i < json_array_size(required); i++)
        *fits = *fits && json_object_get(value, json_string_value(json_array_get(required, i)));
    int64_t count = (int64_t)json_object_size(value), most = schema_count(part, "maxProperties");
    *fits = *fits && count >= schema_count(part, "minProperties") && (most < 0 || count <= most);
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)value, name, member)
    {
        if (*fits && (fits_name(document, name, part, depth, fits) ||
                      (*fits && fits_member(document, name, member, part, depth, fits))))
            return -1;
    }
    return 0;
}

static bool fits_enum(const json_t *value, const struct schema_part *part)
{
    const json_t *list = json_object_get(part->schema, "enum");
    const json_t *constant = json_object_get(part->schema, "const");
    bool any = !list || part->listed;
    for (size_t i = 0; i < json_array_size(list) && !any; i++)
        any = schema_value_same(value, json_array_get(list, i));
    return any && (!constant || schema_value_same(value, constant));
}

static int fits_one(const struct schema_document *document, const json_t *value,
                    const struct schema_part *part, int depth, bool *fits)
{
    unsigned types, type = type_of(value);
    if (schema_value_types(document, part, &types))
        return -1;
    size_t values = part->listed ? 0 : json_array_size(json_object_get(part->schema, "enum"));
    size_t asked = values + (json_object_get(part->schema, "const") != NULL);
    if (schema_work(document, part->place, 32 + (asked > 0 ? asked * size_of(value) : 0)))
        return -1;
    *fits = types & type && fits_enum(value, part);
    if (*fits && json_is_number(value))
        *fits = fits_number(value, part);
    if (*fits && type == SCHEMA_STRING && fits_text(document, value, part, fits))
        return -1;
    if (*fits && type == SCHEMA_ARRAY && fits_list(document, value, part, depth, fits))
        return -1;
    if (*fits && type == SCHEMA_OBJECT && fits_object(document, value, part, depth, fits))
        return -1;
    return *fits && (fits_choice(document, value, part, "anyOf", depth, fits) ||
                     (*fits && fits_choice(document, value, part, "oneOf", depth, fits)))
               ? -1
               : 0;
}

int schema_value_fits(const struct schema_document *document, const json_t *value,
                      const struct schema_parts *parts, bool *fits)
{
    *fits = !parts->never;
    for (size_t i = 0; i < parts->count && *fits; i++)
        if (fits_one(document, value, &parts->items[i], 0, fits))
            return -1;
    return 0;
}

/* --- Text --- */

int schema_value_string(const char *text, size_t length, bool tame, struct text_buffer *out,
                        struct error *err)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    int failed = text_buffer_append(out, "\"", 1, err);
    for (size_t i = 0; i < length && !failed; i++) {
        const char *found = text[i] ? strchr(plain, text[i]) : NULL;
        char escape[8];
        int escaped = found ? snprintf(escape, sizeof escape, "\\%c", letters[found - plain])
                      : (unsigned char)text[i] < 0x20 || (tame && text[i] == '<')
                          ? snprintf(escape, sizeof escape, "\\u%04x", (unsigned)text[i])
                          : 0;
        failed = escaped > 0 ? text_buffer_append(out, escape, (size_t)escaped, err)
                             : text_buffer_append(out, text + i, 1, err);
    }
    return failed || text_buffer_append(out, "\"", 1, err) ? -1 : 0;
}

int schema_value_text(const json_t *value, bool tame, struct text_buffer *out, struct error *err)
{
    if (json_is_number(value)) {
        char number[SCHEMA_DECIMAL_TEXT];
        int length = schema_decimal_text(value, number);
        return text_buffer_append(out, number, (size_t)length, err);
    }
    if (json_is_string(value))
        return schema_value_string(json_string_value(value), json_string_length(value), tame, out,
                                   err);
    if (json_is_array(value)) {
        int failed = text_buffer_append(out, "[", 1, err);
        for (size_t i = 0; i < json_array_size(value) && !failed; i++)
            failed = (i > 0 && text_buffer_append(out, ", ", 2, err)) ||
                     schema_value_text(json_array_get(value, i), tame, out, err);
        return failed || text_buffer_append(out, "]", 1, err) ? -1 : 0;
    }
    if (json_is_object(value)) {
        const char *key;
        json_t *member;
        bool first = true;
        int failed = text_buffer_append(out, "{", 1, err);
        json_object_foreach((json_t *)value, key, member)
        {
            failed = failed || (!first && text_buffer_append(out, ", ", 2, err)) ||
                     schema_value_string(key, strlen(key), tame, out, err) ||
                     text_buffer_append(out, ": ", 2, err) ||
                     schema_value_text(member, tame, out, err);
            first = false;
        }
        return failed || text_buffer_append(out, "}", 1, err) ? -1 : 0;
    }
    const char *word = json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false";
    return text_buffer_append(out, word, strlen(word), err);
}
