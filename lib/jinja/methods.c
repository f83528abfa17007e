/* SPDX-License-Identifier: Apache-2.0 */
/* The methods of lists, dicts and loops, and the global functions. */
#include "lib/jinja/builtins.h"
#include "lib/jinja/origin.h"
#include "lib/jinja/print.h"
#include "lib/jinja/strings.h"

#include <string.h>
#include <time.h>

static BUILTIN(refuse_change)
{
    BUILTIN_UNUSED;
    heap_fail(&run->heap, ERROR_INVALID, "the sandbox lets no template change a %s",
              value_type(self));
}

static BUILTIN(copy)
{
    BUILTIN_UNUSED;
    return self;
}

/* Lists. */

static BUILTIN(list_index)
{
    BUILTIN_UNUSED;
    int64_t count = (int64_t)self.list->count, bounds[2] = {0, count};
    for (int i = 0; i < 2; i++) {
        bounds[i] = strings_given_int(run, given[1 + i], bounds[i], "index");
        bounds[i] = bounds[i] < -count ? 0 : bounds[i] < 0 ? bounds[i] + count : bounds[i];
    }
    for (int64_t i = bounds[0]; i < bounds[1] && i < count; i++)
        if (value_equal(&run->heap, self.list->items[i], given[0]))
            return value_int(i);
    heap_fail(&run->heap, ERROR_INVALID, "index: the value is not in the list");
}

static BUILTIN(list_count)
{
    BUILTIN_UNUSED;
    int64_t found = 0;
    for (size_t i = 0; i < self.list->count; i++)
        found += value_equal(&run->heap, self.list->items[i], given[0]);
    return value_int(found);
}

const struct builtin builtins_list_methods[] = {
    {"index", list_index, "value start stop", 1},
    {"count", list_count, "value", 1},
    {"copy", copy, "", 0},
    {"append", refuse_change, NULL, 0},
    {"clear", refuse_change, NULL, 0},
    {"extend", refuse_change, NULL, 0},
    {"insert", refuse_change, NULL, 0},
    {"pop", refuse_change, NULL, 0},
    {"remove", refuse_change, NULL, 0},
    {"reverse", refuse_change, NULL, 0},
    {"sort", refuse_change, NULL, 0},
    {NULL, NULL, NULL, 0},
};

const struct builtin builtins_tuple_methods[] = {
    {"index", list_index, "value start stop", 1},
    {"count", list_count, "value", 1},
    {NULL, NULL, NULL, 0},
};

/* Dicts. */

static BUILTIN(dict_fromkeys)
{
    BUILTIN_UNUSED;
    struct dict *made = value_new_dict(&run->heap);
    const struct list *keys = value_items(&run->heap, given[0]);
    for (size_t i = 0; i < keys->count; i++)
        value_set(&run->heap, made, keys->items[i],
                  given[1].kind == VALUE_MISSING ? VALUE_OF_NONE : given[1]);
    return (struct value){.kind = VALUE_DICT, .dict = made};
}

static BUILTIN(dict_get)
{
    BUILTIN_UNUSED;
    if (!value_hashable(&run->heap, given[0]))
        heap_fail(&run->heap, ERROR_INVALID, "unhashable type: '%s'", value_type(given[0]));
    const struct value *found = value_find(&run->heap, self.dict, given[0]);
    return found ? *found : given[1].kind == VALUE_MISSING ? VALUE_OF_NONE : given[1];
}

static BUILTIN(dict_keys)
{
    BUILTIN_UNUSED;
    return value_list(VALUE_VIEW, value_items(&run->heap, self));
}

static BUILTIN(dict_values)
{
    BUILTIN_UNUSED;
    struct list *list = value_new_list(&run->heap, self.dict->count);
    for (size_t i = 0; i < self.dict->count; i++)
        value_push(&run->heap, list, self.dict->entries[i].value);
    return value_list(VALUE_VIEW, list);
}

static BUILTIN(dict_items)
{
    BUILTIN_UNUSED;
    struct list *list = value_new_list(&run->heap, self.dict->count);
    for (size_t i = 0; i < self.dict->count; i++) {
        struct list *pair = value_new_list(&run->heap, 2);
        value_push(&run->heap, pair, self.dict->entries[i].key);
        value_push(&run->heap, pair, self.dict->entries[i].value);
        value_push(&run->heap, list, value_list(VALUE_TUPLE, pair));
    }
    return value_list(VALUE_VIEW, list);
}

const struct builtin builtins_dict_methods[] = {
    {"get", dict_get, "key default", 1},
    {"keys", dict_keys, "", 0},
    {"values", dict_values, "", 0},
    {"items", dict_items, "", 0},
    {"copy", copy, "", 0},
    {"fromkeys", dict_fromkeys, "iterable value", 1},
    {"clear", refuse_change, NULL, 0},
    {"pop", refuse_change, NULL, 0},
    {"popitem", refuse_change, NULL, 0},
    {"setdefault", refuse_change, NULL, 0},
    {"update", refuse_change, NULL, 0},
    {NULL, NULL, NULL, 0},
};

/* Loops. */

static BUILTIN(loop_cycle)
{
    BUILTIN_UNUSED;
    if (args->count == 0)
        heap_fail(&run->heap, ERROR_INVALID, "cycle: no items are given");
    return args->items[self.loop->index % args->count];
}

static BUILTIN(loop_changed)
{
    BUILTIN_UNUSED;
    struct loop *loop = self.loop;
    bool same = loop->has_changed && loop->changed.count == args->count;
    for (size_t i = 0; same && i < args->count; i++)
        same = value_equal(&run->heap, loop->changed.items[i], args->items[i]);
    loop->has_changed = true;
    loop->changed = *args;
    return value_bool(!same);
}

const struct builtin builtins_loop_methods[] = {
    {"cycle", loop_cycle, NULL, 0},
    {"changed", loop_changed, NULL, 0},
    {NULL, NULL, NULL, 0},
};

/* Functions. */

static BUILTIN(range)
{
    BUILTIN_UNUSED;
    enum { MOST = 100000 };
    int64_t bounds[3] = {0, 0, 1};
    if (args->count < 1 || args->count > 3 || args->num_named > 0)
        heap_fail(&run->heap, ERROR_INVALID, "range: expected 1 to 3 integers");
    for (size_t i = 0; i < args->count; i++)
        bounds[args->count == 1 ? 1 : i] = strings_given_int(run, args->items[i], 0, "range");
    int64_t step = bounds[2];
    if (step == 0)
        heap_fail(&run->heap, ERROR_INVALID, "range: the step is 0");
    struct list *list = value_new_list(&run->heap, 0);
    for (int64_t i = bounds[0]; step > 0 ? i < bounds[1] : i > bounds[1];) {
        if (list->count == MOST)
            heap_fail(&run->heap, ERROR_INVALID, "range: more than %d items", MOST);
        value_push(&run->heap, list, value_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return value_list(VALUE_RANGE, list);
}

/* A dict of another dict, or of pairs, and of named values. */
static struct dict *make_dict(struct run *run, const struct args *args)
{
    struct heap *heap = &run->heap;
    struct dict *dict = value_new_dict(heap);
    if (args->count > 1)
        heap_fail(heap, ERROR_INVALID, "dict: expected at most 1 argument, got %zu", args->count);
    if (args->count == 1 && args->items[0].kind == VALUE_DICT) {
        const struct dict *from = args->items[0].dict;
        for (size_t i = 0; i < from->count; i++)
            value_set(heap, dict, from->entries[i].key, from->entries[i].value);
    } else if (args->count == 1 && args->items[0].kind == VALUE_UNDEFINED) {
        heap_fail(heap, ERROR_INVALID, "%s", args->items[0].string->bytes);
    } else if (args->count == 1) {
        const struct list *pairs = value_items(heap, args->items[0]);
        for (size_t i = 0; i < pairs->count; i++) {
            const struct list *pair = value_items(heap, pairs->items[i]);
            if (pair->count != 2)
                heap_fail(heap, ERROR_INVALID, "dict: expected pairs, item %zu has %zu parts", i,
                          pair->count);
            value_set(heap, dict, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < args->num_named; i++)
        value_set(heap, dict, value_of((struct string *)args->named[i].name), args->named[i].value);
    return dict;
}

static BUILTIN(dict)
{
    BUILTIN_UNUSED;
    return (struct value){.kind = VALUE_DICT, .dict = make_dict(run, args)};
}

static BUILTIN(namespace)
{
    BUILTIN_UNUSED;
    struct dict *names = make_dict(run, args);
    for (size_t i = 0; i < names->count; i++)
        if (names->entries[i].key.kind == VALUE_STRING &&
            names->entries[i].key.string->bytes[0] == '_')
            heap_fail(&run->heap, ERROR_INVALID,
                      "attributes of a namespace cannot begin with an underscore");
    return (struct value){.kind = VALUE_NAMESPACE, .dict = names};
}

static BUILTIN(raise_exception)
{
    BUILTIN_UNUSED;
    struct value text = print_to_string(run, given[0]);
    heap_fail(&run->heap, ERROR_INVALID, "the template refuses this: %.300s", text.string->bytes);
}

/* The time has no zone, as datetime.now() has none: %Z and %z are nothing. */
static const struct string *without_zone(struct run *run, const struct string *format)
{
    struct output own, *before = output_begin(run, &own);
    heap_work(&run->heap, format->length);
    for (size_t at = 0; at < format->length;) {
        char next = format->bytes[at] == '%' ? format->bytes[at + 1] : 0;
        size_t length = next && (unsigned char)next < 0x80 ? 2 : 1;
        if (next != 'Z' && next != 'z')
            output_part(run, format, at, at + length);
        at += length;
    }
    return output_take(run, before).string;
}

static BUILTIN(strftime_now)
{
    BUILTIN_UNUSED;
    char text[512];
    struct tm parts;
    time_t now = (time_t)run->now;
    const struct string *format = without_zone(run, strings_given(run, given[0], "strftime_now"));
    if (!localtime_r(&now, &parts))
        heap_fail(&run->heap, ERROR_INTERNAL, "the time cannot be told");
    heap_work(&run->heap, format->length);
    size_t length = strftime(text, sizeof text, format->bytes, &parts);
    if (length == 0 && format->length > 0)
        heap_fail(&run->heap, ERROR_INVALID, "strftime_now: \"%.60s\" is not supported",
                  format->bytes);
    struct string *told = value_own(&run->heap, text, length);
    told->origin = origin_part(&run->heap, format->origin, 0, format->length) ? &origin_all : NULL;
    return value_of(told);
}

static BUILTIN(unsupported)
{
    BUILTIN_UNUSED;
    heap_fail(&run->heap, ERROR_INVALID, "this function is not supported");
}

const struct builtin builtins_functions[] = {
    {"range", range, NULL, 0},
    {"dict", dict, NULL, 0},
    {"namespace", namespace, NULL, 0},
    {"raise_exception", raise_exception, "message", 1},
    {"strftime_now", strftime_now, "format", 1},
    {"cycler", unsupported, NULL, 0},
    {"joiner", unsupported, NULL, 0},
    {"lipsum", unsupported, NULL, 0},
    {NULL, NULL, NULL, 0},
};
