/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/access.h"

#include "lib/jinja/builtins.h"
#include "lib/jinja/strings.h"
#include "lib/text/unicode.h"

#include <string.h>

size_t access_offset(struct run *run, const struct string *string, size_t character)
{
    if (string->characters == string->length)
        return character;
    if (character >= string->characters)
        return string->length;
    size_t at = 0, length;
    heap_work(&run->heap, character);
    for (; character > 0; character--) {
        utf8_decode(string->bytes + at, &length);
        at += length;
    }
    return at;
}

static struct value method(struct run *run, struct value self, const struct builtin *function)
{
    struct method *bound = heap_alloc(&run->heap, 1, sizeof *bound);
    *bound = (struct method){self, function};
    return (struct value){.kind = VALUE_METHOD, .method = bound};
}

static struct value no_attribute(struct run *run, struct value value, const struct string *name)
{
    struct value undefined = value_undefined(&run->heap, "'%s object' has no attribute '%.60s'",
                                             value_type(value), name->bytes);
    undefined.string->markup = strncmp(name->bytes, "__", 2) == 0; /* unsafe: it has nothing */
    return undefined;
}

static struct value loop_attribute(struct run *run, struct value value, const struct string *name)
{
    const struct loop *loop = value.loop;
    int64_t index0 = (int64_t)loop->index, length = (int64_t)loop->items->count;
    const struct {
        const char *name;
        struct value value;
    } ATTRIBUTES[] = {
        {"index", value_int(index0 + 1)},
        {"index0", value_int(index0)},
        {"revindex", value_int(length - index0)},
        {"revindex0", value_int(length - index0 - 1)},
        {"first", value_bool(index0 == 0)},
        {"last", value_bool(index0 + 1 == length)},
        {"length", value_int(length)},
        {"depth", value_int(loop->depth + 1)},
        {"depth0", value_int(loop->depth)},
    };
    for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++)
        if (strcmp(name->bytes, ATTRIBUTES[i].name) == 0)
            return ATTRIBUTES[i].value;
    if (strcmp(name->bytes, "previtem") == 0)
        return index0 > 0 ? loop->items->items[index0 - 1]
                          : value_undefined(&run->heap, "there is no previous item");
    if (strcmp(name->bytes, "nextitem") == 0)
        return index0 + 1 < length ? loop->items->items[index0 + 1]
                                   : value_undefined(&run->heap, "there is no next item");
    const struct builtin *function = builtin_find(builtins_loop_methods, name->bytes);
    return function ? method(run, value, function) : no_attribute(run, value, name);
}

/* The methods of a kind of values; NULL: it has none. */
static const struct builtin *methods_of(enum value_kind kind)
{
    switch (kind) {
    case VALUE_STRING:
        return builtins_string_methods;
    case VALUE_LIST:
        return builtins_list_methods;
    case VALUE_TUPLE:
    case VALUE_RANGE:
        return builtins_tuple_methods;
    case VALUE_DICT:
        return builtins_dict_methods;
    default:
        return NULL;
    }
}

/* Python has more attributes of some kinds than we: those are no undefined values. */
static const char *const NUMBER[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes",   NULL};
static const char *const MARKUP[] = {"escape", "striptags", "unescape", NULL};
static const char *const VIEW[] = {"isdisjoint", "mapping", NULL};
static const char *const ITERATOR[] = {"close",      "gi_code",      "gi_frame",
                                       "gi_running", "gi_suspended", "gi_yieldfrom",
                                       "send",       "throw",        NULL};
static const char *const MACRO[] = {
    "arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller", "name", NULL};

static const char *const *known_of(struct value value)
{
    switch (value.kind) {
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_FLOAT:
        return NUMBER;
    case VALUE_STRING:
        return value_is_markup(value) ? MARKUP : NULL;
    case VALUE_VIEW:
        return VIEW;
    case VALUE_ITERATOR:
        return ITERATOR;
    case VALUE_MACRO:
        return MACRO;
    default:
        return NULL;
    }
}

/* A name may hold any bytes. */
static void refuse_known(struct run *run, struct value value, const struct string *name)
{
    for (const char *const *known = known_of(value); known && *known; known++)
        if (strlen(*known) == name->length && memcmp(*known, name->bytes, name->length) == 0)
            heap_fail(&run->heap, ERROR_INVALID, "%s of a %s is not supported", *known,
                      value_type(value));
}

struct value access_attribute(struct run *run, struct value value, const struct string *name,
                              bool attribute_only)
{
    struct heap *heap = &run->heap;
    const bool plain = memchr(name->bytes, 0, name->length) == NULL; /* as all names of ours */
    const struct builtin *methods = plain ? methods_of(value.kind) : NULL, *function;
    const struct value *found = NULL;
    if (methods && (function = builtin_find(methods, name->bytes)))
        return method(run, value, function);
    if (value.kind == VALUE_TUPLE && value.list->is_group && plain) {
        bool grouper = strcmp(name->bytes, "grouper") == 0;
        if (grouper || strcmp(name->bytes, "list") == 0)
            return value.list->items[!grouper];
    }
    switch (value.kind) {
    case VALUE_UNDEFINED:
        if (strncmp(name->bytes, "__", 2) == 0 && !value.string->markup)
            return no_attribute(run, value, name);
        heap_fail(heap, ERROR_INVALID, "%s", value.string->bytes);
    case VALUE_NAMESPACE:
    case VALUE_DICT:
        if (value.kind == VALUE_NAMESPACE || !attribute_only)
            found = value_find(heap, value.dict, value_of((struct string *)name));
        return found ? *found : no_attribute(run, value, name);
    case VALUE_LOOP:
        return plain ? loop_attribute(run, value, name) : no_attribute(run, value, name);
    case VALUE_FUNCTION:
        heap_fail(heap, ERROR_INVALID, "attributes of a %s are not supported", value_type(value));
    default:
        refuse_known(run, value, name);
        return no_attribute(run, value, name);
    }
}

/* A part of a string that `safe` has made is such a string. */
static struct value as_marked(struct run *run, struct value of, struct value part)
{
    return value_is_markup(of) ? value_markup(&run->heap, part) : part;
}

/* An index from the start, or -1 where there is no such item. */
static int64_t index_of(int64_t index, int64_t count)
{
    if (index < 0)
        index += count;
    return index >= 0 && index < count ? index : -1;
}

static struct value character(struct run *run, const struct string *string, int64_t index)
{
    size_t at = access_offset(run, string, (size_t)index), length;
    utf8_decode(string->bytes + at, &length);
    return value_part(&run->heap, string, at, at + length);
}

struct value access_item(struct run *run, struct value value, struct value key)
{
    struct heap *heap = &run->heap;
    if (value.kind == VALUE_UNDEFINED)
        heap_fail(heap, ERROR_INVALID, "%s", value.string->bytes);
    if (value.kind == VALUE_DICT && value_hashable(heap, key)) {
        const struct value *found = value_find(heap, value.dict, key);
        if (found)
            return *found;
    }
    bool sequence = value.kind == VALUE_LIST || value.kind == VALUE_TUPLE ||
                    value.kind == VALUE_RANGE || value.kind == VALUE_STRING;
    if (sequence && value_is_int(key)) {
        int64_t index = index_of(value_as_int(key), value_length(value));
        if (index >= 0)
            return value.kind == VALUE_STRING
                       ? as_marked(run, value, character(run, value.string, index))
                       : value.list->items[index];
    }
    if (key.kind == VALUE_STRING)
        return access_attribute(run, value, key.string, true);
    return value_undefined(heap, "'%s object' has no such element", value_type(value));
}

/* A bound of a slice, in [least, most]. */
static int64_t bound(struct run *run, struct value value, int64_t absent, int64_t count,
                     int64_t least, int64_t most)
{
    if (value.kind == VALUE_MISSING || value.kind == VALUE_NONE)
        return absent;
    if (!value_is_int(value))
        heap_fail(&run->heap, ERROR_INVALID, "slices: expected integers, got a %s",
                  value_type(value));
    int64_t index = value_as_int(value);
    if (index < 0)
        index = index < -count ? least : index + count;
    return index < least ? least : index > most ? most : index;
}

/* The byte that is so many characters on from `at`. */
static size_t moved(struct run *run, const struct string *string, size_t at, int64_t by)
{
    size_t length;
    if (string->characters == string->length)
        return at + (size_t)by;
    heap_work(&run->heap, (size_t)(by < 0 ? -by : by));
    for (; by > 0; by--) {
        utf8_decode(string->bytes + at, &length);
        at += length;
    }
    for (; by < 0; by++)
        at = utf8_previous(string->bytes, at);
    return at;
}

/* Each by-th character from `start` to before `stop`. */
static struct value every(struct run *run, const struct string *string, int64_t start, int64_t stop,
                          int64_t by)
{
    struct output own, *before = output_begin(run, &own);
    bool any = by > 0 ? start < stop : start > stop;
    size_t at = any ? access_offset(run, string, (size_t)start) : 0, length;
    while (any) {
        utf8_decode(string->bytes + at, &length);
        output_part(run, string, at, at + length);
        if (__builtin_add_overflow(start, by, &start))
            break;
        any = by > 0 ? start < stop : start > stop;
        at = any ? moved(run, string, at, by) : at;
    }
    return output_take(run, before);
}

struct value access_slice(struct run *run, struct value value, struct value from, struct value to,
                          struct value step)
{
    struct heap *heap = &run->heap;
    int64_t count = value_length(value);
    if (value.kind == VALUE_UNDEFINED)
        heap_fail(heap, ERROR_INVALID, "%s", value.string->bytes);
    bool is_string = value.kind == VALUE_STRING;
    if (!is_string && value.kind != VALUE_LIST && value.kind != VALUE_TUPLE &&
        value.kind != VALUE_RANGE)
        heap_fail(heap, ERROR_INVALID, "a %s has no slices", value_type(value));
    int64_t by = step.kind == VALUE_NONE ? 1 : strings_given_int(run, step, 1, "slices");
    if (by == 0)
        heap_fail(heap, ERROR_INVALID, "slice step cannot be zero");
    int64_t least = by > 0 ? 0 : -1, most = by > 0 ? count : count - 1;
    int64_t start = bound(run, from, by > 0 ? 0 : count - 1, count, least, most);
    int64_t stop = bound(run, to, by > 0 ? count : -1, count, least, most);
    if (is_string && by == 1) {
        size_t begin = access_offset(run, value.string, (size_t)start);
        size_t end = start < stop ? access_offset(run, value.string, (size_t)stop) : begin;
        return as_marked(run, value, value_part(heap, value.string, begin, end));
    }
    if (is_string)
        return as_marked(run, value, every(run, value.string, start, stop, by));
    struct list *chosen = value_new_list(heap, 0);
    for (int64_t i = start; by > 0 ? i < stop : i > stop;) {
        value_push(heap, chosen, value.list->items[i]);
        if (__builtin_add_overflow(i, by, &i))
            break;
    }
    return value_list(value.kind, chosen);
}
