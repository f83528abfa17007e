/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the parameters of a request's tools, out of their JSON schemas. */
#include "api/chat_types.h"

#include "api/request.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned kind;
} KINDS[] = {
    {"string", CHAT_STRING},   {"integer", CHAT_INTEGER}, {"number", CHAT_NUMBER},
    {"boolean", CHAT_BOOLEAN}, {"null", CHAT_NULL},       {"array", CHAT_LIST},
    {"object", CHAT_OBJECT},
};

static unsigned kind_named(const char *name)
{
    for (size_t i = 0; name && i < sizeof KINDS / sizeof *KINDS; i++)
        if (strcmp(name, KINDS[i].name) == 0)
            return KINDS[i].kind;
    return 0;
}

unsigned chat_types_kind(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return CHAT_OBJECT;
    case JSON_ARRAY:
        return CHAT_LIST;
    case JSON_STRING:
        return CHAT_STRING;
    case JSON_INTEGER:
        return CHAT_INTEGER;
    case JSON_REAL:
        return CHAT_NUMBER;
    case JSON_NULL:
        return CHAT_NULL;
    default:
        return CHAT_BOOLEAN;
    }
}

/* Of a schema with $ref nothing is known: it may stand for anything with a shape of its own. The
 * depth is that of the request's JSON. */
static unsigned kinds_of(const json_t *schema)
{
    static const char *const CHOICES[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type");
    const json_t *values = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    unsigned kinds = kind_named(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        kinds |= kind_named(json_string_value(json_array_get(type, i)));
    if (kinds)
        return kinds;
    for (size_t i = 0; i < json_array_size(values); i++)
        kinds |= chat_types_kind(json_array_get(values, i));
    if (constant)
        kinds |= chat_types_kind(constant);
    for (size_t i = 0; i < sizeof CHOICES / sizeof *CHOICES; i++) {
        const json_t *list = json_object_get(schema, CHOICES[i]);
        for (size_t j = 0; j < json_array_size(list); j++)
            kinds |= kinds_of(json_array_get(list, j));
    }
    if (json_object_get(schema, "$ref") || json_object_get(schema, "properties"))
        kinds |= CHAT_OBJECT | CHAT_LIST | CHAT_STRING;
    return kinds;
}

json_t *chat_types_names(const json_t *schema)
{
    unsigned kinds = kinds_of(schema);
    json_t *names = json_array();
    for (size_t i = 0; names && i < sizeof KINDS / sizeof *KINDS; i++)
        if ((kinds ? kinds : CHAT_STRING) & KINDS[i].kind &&
            json_array_append_new(names, json_string(KINDS[i].name))) {
            json_decref(names);
            return NULL;
        }
    return names;
}

/* What a parameter is known by: no name is kept, however long. */
static XXH128_hash_t hash_of(const char *function, size_t function_length, const char *key,
                             size_t key_length)
{
    const XXH128_hash_t parts[2] = {XXH3_128bits(function, function_length),
                                    XXH3_128bits(key, key_length)};
    return XXH3_128bits(parts, sizeof parts);
}

static void add(struct chat_types *types, const char *function, const char *key, unsigned kinds)
{
    struct chat_type *type = &types->items[types->count];
    type->hash = hash_of(function, strlen(function), key, strlen(key));
    type->kinds = kinds ? kinds : CHAT_STRING;
    type->place = (uint32_t)types->count++;
}

static int compare_hashes(const void *a, const void *b)
{
    const struct chat_type *one = a, *other = b;
    return XXH128_cmp(&one->hash, &other->hash);
}

/* Of two tools of one name the first counts. */
static int compare_types(const void *a, const void *b)
{
    const struct chat_type *one = a, *other = b;
    int order = compare_hashes(a, b);
    return order ? order : (one->place > other->place) - (one->place < other->place);
}

static void sort(struct chat_types *types)
{
    size_t count = 0;
    qsort(types->items, types->count, sizeof *types->items, compare_types);
    for (size_t i = 0; i < types->count; i++)
        if (count == 0 || compare_hashes(&types->items[count - 1], &types->items[i]) != 0)
            types->items[count++] = types->items[i];
    types->count = count;
}

static const json_t *properties_of(const json_t *tool, const char **name)
{
    const json_t *function = json_object_get(tool, "function");
    *name = json_string_value(json_object_get(function, "name"));
    return *name ? json_object_get(json_object_get(function, "parameters"), "properties") : NULL;
}

int chat_types_take(struct chat_types *types, const json_t *tools)
{
    size_t count = 0;
    const char *name, *key;
    json_t *schema;
    for (size_t i = 0; i < json_array_size(tools); i++)
        count += json_object_size(properties_of(json_array_get(tools, i), &name));
    if (count == 0)
        return 0;
    int64_t bytes = (int64_t)(count * sizeof *types->items);
    if (!request_reserve_memory(bytes))
        return -1;
    types->reserved = bytes;
    types->items = malloc((size_t)bytes);
    if (!types->items)
        return -1;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *properties = (json_t *)properties_of(json_array_get(tools, i), &name);
        json_object_foreach(properties, key, schema) add(types, name, key, kinds_of(schema));
    }
    sort(types);
    return 0;
}

void chat_types_clear(struct chat_types *types)
{
    if (types->reserved)
        request_reserve_memory(-types->reserved);
    free(types->items);
    *types = (struct chat_types){0};
}

unsigned chat_types_of(const struct chat_types *types, const char *function, size_t function_length,
                       const char *key, size_t key_length)
{
    if (!types || types->count == 0)
        return CHAT_STRING;
    const struct chat_type wanted = {.hash = hash_of(function, function_length, key, key_length)};
    const struct chat_type *found =
        bsearch(&wanted, types->items, types->count, sizeof wanted, compare_hashes);
    return found ? found->kinds : CHAT_STRING;
}
