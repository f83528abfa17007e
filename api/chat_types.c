/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the parameters of a request's tools, out of their JSON schemas. */
#include "api/chat_types.h"

#include "api/request.h"
#include "lib/grammar/schema_pointer.h"

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

/* --- Kinds --- */

/* Bounds for what hostile schemas may ask: references of one parameter, schemas within each other
 * on the way through them, and steps of all tools. */
enum { MOST_REFERENCES = 256, MOST_DEPTH = 256, MOST_STEPS = 1 << 20 };
/* Kinds: none, or those of a schema that was seen already; values of any kind, of which a text says
 * which it is (chat_types_of). */
enum { NOTHING_NEW = 128, ANYTHING = 256 };

/* A way through a tool's schema. Each reference is followed once. */
struct way {
    const json_t *root;                  /* what references lead into */
    const json_t *seen[MOST_REFERENCES]; /* [num_seen] */
    size_t num_seen, depth, steps;
    bool failed; /* it asks too much */
};

static bool enter(struct way *way, size_t steps)
{
    way->steps += steps;
    way->depth++;
    way->failed |= way->depth > MOST_DEPTH || way->steps > MOST_STEPS;
    return !way->failed;
}

/* What the schema's $ref leads to. NULL: nothing, or *seen already. */
static const json_t *follow(struct way *way, const json_t *schema, bool *seen)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *target = ref ? schema_pointer(way->root, ref) : NULL;
    *seen = false;
    if (!target)
        return NULL;
    way->steps += strlen(ref) / 8 + way->num_seen / 8;
    for (size_t i = 0; i < way->num_seen && !*seen; i++)
        *seen = way->seen[i] == target;
    way->failed |= !*seen && way->num_seen == MOST_REFERENCES;
    if (*seen || way->failed)
        return NULL;
    way->seen[way->num_seen++] = target;
    return target;
}

static unsigned kinds_of(struct way *way, const json_t *schema);

static unsigned kinds_of_choices(struct way *way, const json_t *schema)
{
    static const char *const CHOICES[] = {"anyOf", "oneOf", "allOf"};
    unsigned kinds = 0;
    for (size_t i = 0; i < sizeof CHOICES / sizeof *CHOICES; i++) {
        const json_t *list = json_object_get(schema, CHOICES[i]);
        for (size_t j = 0; j < json_array_size(list) && !way->failed; j++) {
            unsigned some = kinds_of(way, json_array_get(list, j));
            kinds |= some    ? some
                     : i < 2 ? CHAT_STRING | ANYTHING
                             : 0; /* a choice that says nothing */
        }
    }
    return kinds;
}

static unsigned kinds_of_reference(struct way *way, const json_t *schema)
{
    bool seen;
    const json_t *target = follow(way, schema, &seen);
    if (seen)
        return NOTHING_NEW;
    if (target)
        return kinds_of(way, target);
    return json_object_get(schema, "$ref") ? CHAT_OBJECT | CHAT_LIST | CHAT_STRING | ANYTHING : 0;
}

/* 0: the schema says nothing. */
static unsigned kinds_of(struct way *way, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    const json_t *values = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    unsigned kinds = kind_named(json_string_value(type));
    if (!enter(way, 1 + json_array_size(type) + json_array_size(values) / 8))
        return 0;
    if (json_is_false(schema)) {
        way->depth--;
        return NOTHING_NEW;
    }
    for (size_t i = 0; i < json_array_size(type); i++)
        kinds |= kind_named(json_string_value(json_array_get(type, i)));
    if (!kinds) {
        for (size_t i = 0; i < json_array_size(values); i++)
            kinds |= chat_types_kind(json_array_get(values, i));
        if (constant)
            kinds |= chat_types_kind(constant);
        kinds |= kinds_of_choices(way, schema) | kinds_of_reference(way, schema);
        if (json_object_get(schema, "properties"))
            kinds |= CHAT_OBJECT | CHAT_LIST | CHAT_STRING | ANYTHING;
    }
    way->depth--;
    return kinds;
}

/* Of a parameter about which all has been said. */
static unsigned whole(unsigned kinds)
{
    kinds &= ~(unsigned)(NOTHING_NEW | ANYTHING);
    return kinds ? kinds : CHAT_STRING;
}

/* --- By function and parameter --- */

/* What a parameter is known by: no name is kept, however long. */
static XXH128_hash_t hash_of(const char *function, size_t function_length, const char *key,
                             size_t key_length)
{
    const XXH128_hash_t parts[2] = {XXH3_128bits(function, function_length),
                                    XXH3_128bits(key, key_length)};
    return XXH3_128bits(parts, sizeof parts);
}

static void add(struct chat_types *types, XXH128_hash_t hash, unsigned kinds, size_t tool)
{
    types->items[types->count++] = (struct chat_type){hash, kinds, (uint32_t)tool};
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
    return order ? order : (one->tool > other->tool) - (one->tool < other->tool);
}

/* One of each name, with all that its tool says of it. */
static void sort(struct chat_types *types)
{
    size_t count = 0;
    qsort(types->items, types->count, sizeof *types->items, compare_types);
    for (size_t i = 0; i < types->count; i++) {
        struct chat_type *last = count > 0 ? &types->items[count - 1] : NULL;
        const struct chat_type *next = &types->items[i];
        if (!last || compare_hashes(last, next) != 0)
            types->items[count++] = *next;
        else if (last->tool == next->tool)
            last->kinds |= next->kinds;
    }
    types->count = count;
}

/* --- The tools --- */

struct taking {
    struct chat_types *types; /* where kinds go */
    json_t *by_key;           /* or here; without either, parameters are counted only */
    const char *function;
    size_t tool, count;
    bool failed; /* no memory */
};

static void take_kinds(struct taking *taking, const char *key, unsigned kinds)
{
    if (taking->types) {
        add(taking->types, hash_of(taking->function, strlen(taking->function), key, strlen(key)),
            kinds, taking->tool);
        return;
    }
    kinds |= (unsigned)json_integer_value(json_object_get(taking->by_key, key));
    taking->failed |= json_object_set_new(taking->by_key, key, json_integer(kinds)) != 0;
}

static void take_properties(struct taking *taking, struct way *way, const json_t *schema)
{
    const char *key;
    json_t *value, *properties = json_object_get(schema, "properties");
    taking->count += json_object_size(properties);
    if (!taking->types && !taking->by_key)
        return;
    json_object_foreach(properties, key, value)
    {
        struct way own = {.root = way->root, .steps = way->steps};
        unsigned kinds = kinds_of(&own, value);
        way->steps = own.steps;
        way->failed |= own.failed;
        if (way->failed)
            return;
        take_kinds(taking, key, kinds);
    }
}

/* The properties of a tool stand in its schema, and where $ref and allOf lead from there. */
static void take_schema(struct taking *taking, struct way *way, const json_t *schema)
{
    const json_t *all = json_object_get(schema, "allOf");
    bool seen;
    if (!enter(way, 1))
        return;
    take_properties(taking, way, schema);
    for (size_t i = 0; i < json_array_size(all) && !way->failed; i++)
        take_schema(taking, way, json_array_get(all, i));
    const json_t *target = way->failed ? NULL : follow(way, schema, &seen);
    if (target && target != way->root)
        take_schema(taking, way, target);
    way->depth--;
}

static int take_tool(struct taking *taking, const json_t *parameters, size_t index, size_t *steps,
                     struct api_error *err)
{
    struct way way = {.root = parameters, .steps = *steps};
    taking->tool = index;
    take_schema(taking, &way, parameters);
    *steps = way.steps;
    if (taking->failed)
        return request_no_memory(err);
    if (!way.failed)
        return 0;
    return api_error_set(err, API_UNSUPPORTED, "tools",
                         "tools[%zu].function.parameters: expected at most %d references and %d "
                         "levels for one value, and %d steps for all, got more",
                         index, MOST_REFERENCES, MOST_DEPTH, MOST_STEPS);
}

static int take_tools(struct taking *taking, const json_t *tools, struct api_error *err)
{
    size_t steps = 0;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        taking->function = json_string_value(json_object_get(function, "name"));
        if (!taking->function)
            continue;
        taking->count++;
        if (taking->types)
            add(taking->types, XXH3_128bits(taking->function, strlen(taking->function)), 0, i);
        if (take_tool(taking, json_object_get(function, "parameters"), i, &steps, err))
            return -1;
    }
    return 0;
}

static json_t *names_of(unsigned kinds)
{
    json_t *names = json_array();
    for (size_t i = 0; names && i < sizeof KINDS / sizeof *KINDS; i++)
        if (kinds & KINDS[i].kind && json_array_append_new(names, json_string(KINDS[i].name))) {
            json_decref(names);
            return NULL;
        }
    return names;
}

json_t *chat_types_names(const json_t *parameters, size_t index, struct api_error *err)
{
    struct taking taking = {.by_key = json_object()};
    size_t steps = 0;
    json_t *names = json_object(), *kinds;
    const char *key;
    taking.failed = !names || !taking.by_key;
    int failed = take_tool(&taking, parameters, index, &steps, err);
    json_object_foreach(taking.by_key, key, kinds)
    {
        json_t *list = failed ? NULL : names_of(whole((unsigned)json_integer_value(kinds)));
        if (!failed && json_object_set_new(names, key, list))
            failed = request_no_memory(err);
    }
    json_decref(taking.by_key);
    if (!failed)
        return names;
    json_decref(names);
    return NULL;
}

int chat_types_take(struct chat_types *types, const json_t *tools, struct api_error *err)
{
    struct taking taking = {0};
    if (take_tools(&taking, tools, err))
        return -1;
    if (taking.count == 0)
        return 0;
    int64_t bytes = (int64_t)(taking.count * sizeof *types->items);
    if (!request_reserve_memory(bytes))
        return request_no_memory(err);
    types->reserved = bytes;
    types->items = malloc((size_t)bytes);
    if (!types->items)
        return request_no_memory(err);
    taking.types = types;
    if (take_tools(&taking, tools, err))
        return -1;
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

static const struct chat_type *find(const struct chat_types *types, XXH128_hash_t hash)
{
    const struct chat_type wanted = {.hash = hash};
    return types->count == 0
               ? NULL
               : bsearch(&wanted, types->items, types->count, sizeof wanted, compare_hashes);
}

bool chat_types_knows(const struct chat_types *types, const char *function, size_t length)
{
    return find(types, XXH3_128bits(function, length)) != NULL;
}

unsigned chat_types_of(const struct chat_types *types, const char *function, size_t function_length,
                       const char *key, size_t key_length)
{
    const struct chat_type *found =
        find(types, hash_of(function, function_length, key, key_length));
    return found ? whole(found->kinds) : CHAT_STRING;
}

unsigned chat_types_asked(const struct chat_types *types, const char *function,
                          size_t function_length, const char *key, size_t key_length)
{
    const struct chat_type *found =
        find(types, hash_of(function, function_length, key, key_length));
    return !found || (found->kinds & ANYTHING) ? 0 : found->kinds & ~(unsigned)NOTHING_NEW;
}
