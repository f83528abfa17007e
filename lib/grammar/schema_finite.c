/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_finite.h"

#include "lib/grammar/schema_value.h"

#include <math.h>
#include <string.h>

enum { MOST_CHOICES_DEEP = 8 }; /* of anyOf in anyOf */

/* Adds a value if it satisfies the parts and is not there yet. */
static int add_value(const struct schema_document *document, const struct schema_parts *parts,
                     const json_t *value, json_t *list, bool *finite)
{
    bool fits;
    if (schema_value_fits(document, value, parts, &fits))
        return -1;
    if (!fits || !*finite)
        return 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (schema_work(document, parts->items[0].place, 16))
            return -1;
        if (schema_value_same(json_array_get(list, i), value))
            return 0;
    }
    *finite = json_array_size(list) < SCHEMA_MOST_FINITE;
    if (*finite && json_array_append(list, (json_t *)value))
        return error_set(document->err, ERROR_NO_MEMORY, "no memory for a schema");
    return 0;
}

static int add_new(const struct schema_document *document, const struct schema_parts *parts,
                   json_t *value, json_t *list, bool *finite)
{
    int failed = value ? add_value(document, parts, value, list, finite)
                       : error_set(document->err, ERROR_NO_MEMORY, "no memory for a schema");
    json_decref(value);
    return failed;
}

/* Integers between two bounds that are near each other. */
static int add_integers(const struct schema_document *document, const struct schema_parts *parts,
                        json_t *list, bool *finite)
{
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum",
                                       "exclusiveMaximum"};
    double low = -HUGE_VAL, high = HUGE_VAL;
    for (size_t i = 0; i < parts->count; i++)
        for (int k = 0; k < 4; k++) {
            const json_t *value = json_object_get(parts->items[i].schema, keys[k]);
            if (json_is_number(value) && k < 2)
                low = fmax(low, json_number_value(value));
            else if (json_is_number(value))
                high = fmin(high, json_number_value(value));
        }
    low = ceil(low);
    *finite = *finite && low > -0x1p52 && high < 0x1p52 && high - low <= SCHEMA_MOST_FINITE + 1;
    for (json_int_t i = 0; *finite && low + (double)i <= high; i++)
        if (add_new(document, parts, json_integer((json_int_t)low + i), list, finite))
            return -1;
    return 0;
}

static int add_types(const struct schema_document *document, const struct schema_parts *parts,
                     json_t *list, bool *finite)
{
    unsigned types = SCHEMA_ALL, these;
    for (size_t i = 0; i < parts->count; i++) {
        if (schema_value_types(document, &parts->items[i], &these))
            return -1;
        types &= these;
    }
    *finite = *finite && !(types & (SCHEMA_REAL | SCHEMA_STRING | SCHEMA_ARRAY | SCHEMA_OBJECT));
    if (*finite && types & SCHEMA_NULL && add_new(document, parts, json_null(), list, finite))
        return -1;
    if (*finite && types & SCHEMA_BOOLEAN &&
        (add_new(document, parts, json_true(), list, finite) ||
         add_new(document, parts, json_false(), list, finite)))
        return -1;
    return *finite && types & SCHEMA_INTEGER ? add_integers(document, parts, list, finite) : 0;
}

static int add_all(const struct schema_document *document, const struct schema_parts *parts,
                   int depth, json_t *list, bool *finite);

static int add_choices(const struct schema_document *document, const struct schema_parts *parts,
                       size_t chosen, const char *key, int depth, json_t *list, bool *finite)
{
    const json_t *choices = json_object_get(parts->items[chosen].schema, key);
    const struct schema_place *place = schema_place_key(document, parts->items[chosen].place, key);
    *finite = *finite && depth < MOST_CHOICES_DEEP;
    for (size_t i = 0; i < json_array_size(choices) && *finite; i++) {
        struct schema_parts branch = *parts;
        branch.items[chosen].chosen = true;
        if (schema_parts_add(document, &branch, json_array_get(choices, i),
                             schema_place_index(document, place, i)) ||
            add_all(document, &branch, depth + 1, list, finite))
            return -1;
    }
    return 0;
}

static int add_all(const struct schema_document *document, const struct schema_parts *parts,
                   int depth, json_t *list, bool *finite)
{
    if (parts->never)
        return 0;
    for (size_t i = 0; i < parts->count; i++) {
        const json_t *value;
        for (int k = 0; k < 2 && !parts->items[i].chosen; k++) {
            const char *key = k == 0 ? "anyOf" : "oneOf";
            if (schema_has(&parts->items[i], key, &value))
                return add_choices(document, parts, i, key, depth, list, finite);
        }
    }
    for (size_t i = 0; i < parts->count; i++) {
        const json_t *values = json_object_get(parts->items[i].schema, "enum");
        const json_t *constant = json_object_get(parts->items[i].schema, "const");
        if (constant)
            return add_value(document, parts, constant, list, finite);
        for (size_t k = 0; k < json_array_size(values) && *finite; k++)
            if (add_value(document, parts, json_array_get(values, k), list, finite))
                return -1;
        if (values)
            return 0;
    }
    return add_types(document, parts, list, finite);
}

int schema_finite(const struct schema_document *document, const struct schema_parts *parts,
                  json_t *list, bool *finite)
{
    *finite = true;
    return add_all(document, parts, 0, list, finite);
}
