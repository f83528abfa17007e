/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/value.h"

#include "lib/jinja/origin.h"
#include "lib/text/unicode.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { SMALL_DICT = 8 };

struct string *value_own(struct heap *heap, const char *bytes, size_t length)
{
    heap_work(heap, length);
    struct string *string = heap_alloc(heap, 1, sizeof *string + length + 1);
    string->length = length;
    if (length > 0)
        memcpy(string->bytes, bytes, length);
    string->characters = utf8_characters(bytes, length);
    return string;
}

struct value value_part(struct heap *heap, const struct string *string, size_t begin, size_t end)
{
    struct string *part = value_own(heap, string->bytes + begin, end - begin);
    part->origin = origin_part(heap, string->origin, begin, end);
    return value_of(part);
}

struct value value_text(struct heap *heap, const char *text)
{
    return value_of(value_own(heap, text, strlen(text)));
}

struct value value_undefined(struct heap *heap, const char *format, ...)
{
    char text[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct string *what = value_own(heap, text, strlen(text));
    return (struct value){.kind = VALUE_UNDEFINED, .string = what};
}

struct list *value_new_list(struct heap *heap, size_t capacity)
{
    struct list *list = heap_alloc(heap, 1, sizeof *list);
    list->capacity = capacity;
    list->items = heap_alloc(heap, capacity, sizeof *list->items);
    return list;
}

void value_push(struct heap *heap, struct list *list, struct value item)
{
    if (list->count == list->capacity) {
        size_t capacity = 2 * list->capacity + 4;
        struct value *items = heap_alloc(heap, capacity, sizeof *items);
        if (list->count > 0)
            memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    heap_work(heap, 0);
    list->items[list->count++] = item;
}

/* Dicts. */

bool value_hashable(struct heap *heap, struct value value)
{
    if (value.kind != VALUE_TUPLE)
        return value.kind != VALUE_LIST && value.kind != VALUE_DICT && value.kind != VALUE_VIEW;
    bool hashable = true;
    heap_enter(heap);
    for (size_t i = 0; i < value.list->count && hashable; i++) {
        heap_work(heap, 0);
        hashable = value_hashable(heap, value.list->items[i]);
    }
    heap_leave(heap);
    return hashable;
}

static uint64_t hash(struct value value)
{
    if (value.kind == VALUE_STRING)
        return XXH3_64bits(value.string->bytes, value.string->length);
    if (value_is_number(value)) {
        double real = value_as_float(value);
        return XXH3_64bits(real == 0 ? &(double){0} : &real, sizeof real);
    }
    return (uint64_t)value.kind;
}

/* Where the key is in the table, or would be. */
static size_t slot_of(struct heap *heap, const struct dict *dict, struct value key)
{
    heap_work(heap, key.kind == VALUE_STRING ? key.string->length : 0);
    size_t slot = hash(key) & (dict->table_size - 1);
    while (dict->table[slot] && !value_equal(heap, dict->entries[dict->table[slot] - 1].key, key)) {
        heap_work(heap, 0);
        slot = (slot + 1) & (dict->table_size - 1);
    }
    return slot;
}

struct value *value_find(struct heap *heap, const struct dict *dict, struct value key)
{
    if (dict->table) {
        uint32_t entry = dict->table[slot_of(heap, dict, key)];
        return entry ? &dict->entries[entry - 1].value : NULL;
    }
    for (size_t i = 0; i < dict->count; i++)
        if (value_equal(heap, dict->entries[i].key, key))
            return &dict->entries[i].value;
    return NULL;
}

struct dict *value_new_dict(struct heap *heap)
{
    return heap_alloc(heap, 1, sizeof(struct dict));
}

static void grow(struct heap *heap, struct dict *dict)
{
    size_t capacity = 2 * dict->capacity + 4;
    struct dict_entry *entries = heap_alloc(heap, capacity, sizeof *entries);
    if (dict->count > 0)
        memcpy(entries, dict->entries, dict->count * sizeof *entries);
    dict->entries = entries;
    dict->capacity = capacity;
    if (capacity <= SMALL_DICT)
        return;
    size_t size = 16;
    while (size < 2 * capacity)
        size *= 2;
    dict->table = heap_alloc(heap, size, sizeof *dict->table);
    dict->table_size = size;
    for (size_t i = 0; i < dict->count; i++)
        dict->table[slot_of(heap, dict, entries[i].key)] = (uint32_t)i + 1;
}

void value_set(struct heap *heap, struct dict *dict, struct value key, struct value value)
{
    if (!value_hashable(heap, key))
        heap_fail(heap, ERROR_INVALID, "unhashable type: '%s'", value_type(key));
    struct value *found = value_find(heap, dict, key);
    if (found) {
        *found = value;
        return;
    }
    if (dict->count == dict->capacity)
        grow(heap, dict);
    heap_work(heap, 0);
    dict->entries[dict->count] = (struct dict_entry){key, value};
    if (dict->table)
        dict->table[slot_of(heap, dict, key)] = (uint32_t)dict->count + 1;
    dict->count++;
}

bool value_is_markup(struct value value)
{
    return value.kind == VALUE_STRING && value.string->markup;
}

struct value value_markup(struct heap *heap, struct value value)
{
    if (value.kind == VALUE_STRING && !value.string->markup) {
        value = value_part(heap, value.string, 0, value.string->length);
        value.string->markup = true;
    }
    if (value.kind != VALUE_LIST && value.kind != VALUE_TUPLE)
        return value;
    struct list *list = value_new_list(heap, value.list->count);
    for (size_t i = 0; i < value.list->count; i++)
        value_push(heap, list, value_markup(heap, value.list->items[i]));
    return value_list(value.kind, list);
}

/* Truth, equality, order. */

bool value_true(struct value value)
{
    switch (value.kind) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return value.truth;
    case VALUE_INT:
        return value.integer != 0;
    case VALUE_FLOAT:
        return value.real != 0;
    case VALUE_STRING:
        return value.string->length > 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_RANGE:
    case VALUE_VIEW:
        return value.list->count > 0;
    case VALUE_DICT:
        return value.dict->count > 0;
    default:
        return true;
    }
}

/* A float is compared with an int exactly. */
static int compare_numbers(struct value a, struct value b)
{
    if (a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT) {
        int64_t x = value_as_int(a), y = value_as_int(b);
        return (x > y) - (x < y);
    }
    long double x = a.kind == VALUE_FLOAT ? a.real : (long double)value_as_int(a);
    long double y = b.kind == VALUE_FLOAT ? b.real : (long double)value_as_int(b);
    return isnan(x) || isnan(y) ? VALUE_UNORDERED : (x > y) - (x < y);
}

static bool equal_lists(struct heap *heap, const struct list *a, const struct list *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!value_equal(heap, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool equal_dicts(struct heap *heap, const struct dict *a, const struct dict *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct value *other = value_find(heap, b, a->entries[i].key);
        if (!other || !value_equal(heap, a->entries[i].value, *other))
            return false;
    }
    return true;
}

static bool equal(struct heap *heap, struct value a, struct value b)
{
    if (value_is_number(a) && value_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return true;
    case VALUE_STRING:
        return a.string == b.string ||
               (a.string->length == b.string->length &&
                memcmp(a.string->bytes, b.string->bytes, a.string->length) == 0);
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_RANGE:
        return equal_lists(heap, a.list, b.list);
    case VALUE_DICT:
        return equal_dicts(heap, a.dict, b.dict);
    case VALUE_VIEW:
        if (a.list != b.list)
            heap_fail(heap, ERROR_INVALID, "to compare views of dicts is not supported");
        return true;
    default:
        return a.list == b.list;
    }
}

bool value_equal(struct heap *heap, struct value a, struct value b)
{
    bool texts = a.kind == VALUE_STRING && b.kind == VALUE_STRING;
    heap_work(heap, texts && a.string->length == b.string->length ? a.string->length : 0);
    heap_enter(heap);
    bool result = equal(heap, a, b);
    heap_leave(heap);
    return result;
}

static size_t shorter_length(const struct string *a, const struct string *b)
{
    return a->length < b->length ? a->length : b->length;
}

static int compare_strings(const struct string *a, const struct string *b)
{
    int order = memcmp(a->bytes, b->bytes, shorter_length(a, b));
    if (order)
        return order < 0 ? -1 : 1;
    return (a->length > b->length) - (a->length < b->length);
}

int value_compare(struct heap *heap, struct value a, struct value b, const char *op)
{
    bool texts = a.kind == VALUE_STRING && b.kind == VALUE_STRING;
    heap_work(heap, texts ? shorter_length(a.string, b.string) : 0);
    if (value_is_number(a) && value_is_number(b))
        return compare_numbers(a, b);
    if (texts)
        return compare_strings(a.string, b.string);
    if (a.kind == b.kind && (a.kind == VALUE_LIST || a.kind == VALUE_TUPLE)) {
        for (size_t i = 0; i < a.list->count && i < b.list->count; i++)
            if (!value_equal(heap, a.list->items[i], b.list->items[i])) {
                heap_enter(heap);
                int order = value_compare(heap, a.list->items[i], b.list->items[i], op);
                heap_leave(heap);
                return order;
            }
        return (a.list->count > b.list->count) - (a.list->count < b.list->count);
    }
    for (int i = 0; i < 2; i++)
        if ((i ? b : a).kind == VALUE_UNDEFINED)
            heap_fail(heap, ERROR_INVALID, "%s is undefined", (i ? b : a).string->bytes);
    heap_fail(heap, ERROR_INVALID, "'%s' not supported between '%s' and '%s'", op, value_type(a),
              value_type(b));
}

/* What it is, what is in it. */

const char *value_type(struct value value)
{
    static const char *const NAMES[] = {
        [VALUE_MISSING] = "nothing",
        [VALUE_UNDEFINED] = "Undefined",
        [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",
        [VALUE_FLOAT] = "float",
        [VALUE_STRING] = "str",
        [VALUE_LIST] = "list",
        [VALUE_TUPLE] = "tuple",
        [VALUE_RANGE] = "range",
        [VALUE_VIEW] = "view of a dict",
        [VALUE_ITERATOR] = "generator",
        [VALUE_DICT] = "dict",
        [VALUE_NAMESPACE] = "Namespace",
        [VALUE_LOOP] = "LoopContext",
        [VALUE_MACRO] = "Macro",
        [VALUE_FUNCTION] = "function",
        [VALUE_METHOD] = "method",
    };
    return NAMES[value.kind];
}

static struct list *characters_of(struct heap *heap, const struct string *string)
{
    struct list *list = value_new_list(heap, string->characters);
    for (size_t at = 0, length; at < string->length; at += length) {
        utf8_decode(string->bytes + at, &length);
        value_push(heap, list, value_part(heap, string, at, at + length));
    }
    return list;
}

struct list *value_items(struct heap *heap, struct value value)
{
    static struct list nothing;
    switch (value.kind) {
    case VALUE_UNDEFINED:
        return &nothing;
    case VALUE_STRING:
        return characters_of(heap, value.string);
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_RANGE:
    case VALUE_VIEW:
        return value.list;
    case VALUE_ITERATOR:
        if (value.list->used)
            return &nothing;
        value.list->used = true;
        return value.list;
    case VALUE_DICT: {
        struct list *keys = value_new_list(heap, value.dict->count);
        for (size_t i = 0; i < value.dict->count; i++)
            value_push(heap, keys, value.dict->entries[i].key);
        return keys;
    }
    default:
        heap_fail(heap, ERROR_INVALID, "'%s' object is not iterable", value_type(value));
    }
}

int64_t value_length(struct value value)
{
    switch (value.kind) {
    case VALUE_UNDEFINED:
        return 0;
    case VALUE_STRING:
        return (int64_t)value.string->characters;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_RANGE:
    case VALUE_VIEW:
        return (int64_t)value.list->count;
    case VALUE_DICT:
        return (int64_t)value.dict->count;
    default:
        return -1;
    }
}

static struct value input_string(struct heap *heap, const char *bytes, size_t length,
                                 const struct origin *origin)
{
    struct string *string = value_own(heap, bytes, length);
    string->origin = length > 0 ? origin : NULL;
    return value_of(string);
}

struct value value_from_json(struct heap *heap, const json_t *json,
                             const struct origin_marks *marks)
{
    heap_work(heap, 0);
    switch (json_typeof(json)) {
    case JSON_STRING:
        return input_string(heap, json_string_value(json), json_string_length(json),
                            origin_of_json(heap, marks, json));
    case JSON_INTEGER:
        return value_int(json_integer_value(json));
    case JSON_REAL:
        return value_float(json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return value_bool(json_is_true(json));
    case JSON_NULL:
        return VALUE_OF_NONE;
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    heap_enter(heap);
    struct value result;
    if (json_is_array(json)) {
        struct list *list = value_new_list(heap, json_array_size(json));
        for (size_t i = 0; i < json_array_size(json); i++)
            value_push(heap, list, value_from_json(heap, json_array_get(json, i), marks));
        result = value_list(VALUE_LIST, list);
    } else {
        struct dict *dict = value_new_dict(heap);
        const char *key;
        json_t *member;
        json_object_foreach((json_t *)json, key, member)
            value_set(heap, dict, input_string(heap, key, strlen(key), &origin_all),
                      value_from_json(heap, member, marks));
        result = (struct value){.kind = VALUE_DICT, .dict = dict};
    }
    heap_leave(heap);
    return result;
}
