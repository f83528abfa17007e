/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/access.h"
#include "lib/jinja/builtins.h"
#include "lib/jinja/characters.h"
#include "lib/jinja/filters.h"
#include "lib/jinja/operators.h"
#include "lib/jinja/print.h"
#include "lib/jinja/strings.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

static bool absent(struct value value)
{
    return value.kind == VALUE_MISSING || value.kind == VALUE_NONE;
}

static struct value value_or(struct value value, struct value otherwise)
{
    bool lacks = value.kind == VALUE_UNDEFINED && otherwise.kind != VALUE_NONE;
    return lacks ? otherwise : value;
}

/* The index that the digits of a part say, the largest there is for more; -1: a part is a name. */
static int64_t part_index(const char *part, size_t length)
{
    int64_t index = length > 0 ? 0 : -1;
    for (size_t i = 0; i < length; i++) {
        if (part[i] < '0' || part[i] > '9')
            return -1;
        if (__builtin_mul_overflow(index, 10, &index) ||
            __builtin_add_overflow(index, part[i] - '0', &index))
            index = INT64_MAX;
    }
    return index;
}

/* The attribute of an item that `path` names, as "a.b.0", with jinja2's rules. `otherwise`, unless
 * it is None, stands for each part that is undefined. A path may have a million parts: each looks
 * at its own bytes alone. */
static struct value attribute(struct run *run, struct value item, struct value path,
                              struct value otherwise)
{
    if (path.kind != VALUE_STRING)
        return value_or(access_item(run, item, path), otherwise);
    const char *part = path.string->bytes, *end = part + path.string->length;
    heap_work(&run->heap, path.string->length);
    if (memchr(part, ',', path.string->length))
        heap_fail(&run->heap, ERROR_INVALID, "several attributes are not supported");
    for (;;) {
        const char *dot = memchr(part, '.', (size_t)(end - part));
        size_t length = (size_t)((dot ? dot : end) - part);
        int64_t index = part_index(part, length);
        struct value key =
            index >= 0 ? value_int(index) : value_of(value_own(&run->heap, part, length));
        heap_work(&run->heap, 0);
        item = value_or(access_item(run, item, key), otherwise);
        if (!dot)
            return item;
        part = dot + 1;
    }
}

static struct value end_character(struct run *run, const struct string *string, size_t at)
{
    size_t length;
    utf8_decode(string->bytes + at, &length);
    return value_part(&run->heap, string, at, at + length);
}

BUILTIN(filters_first)
{
    BUILTIN_UNUSED;
    if (self.kind == VALUE_STRING && self.string->length > 0)
        return end_character(run, self.string, 0);
    const struct list *items = value_items(&run->heap, self);
    return items->count > 0 ? items->items[0]
                            : value_undefined(&run->heap, "there is no first item");
}

BUILTIN(filters_last)
{
    BUILTIN_UNUSED;
    if (self.kind == VALUE_ITERATOR)
        heap_fail(&run->heap, ERROR_INVALID, "'generator' object is not reversible");
    if (self.kind == VALUE_STRING && self.string->length > 0)
        return end_character(run, self.string,
                             utf8_previous(self.string->bytes, self.string->length));
    const struct list *items = value_items(&run->heap, self);
    return items->count > 0 ? items->items[items->count - 1]
                            : value_undefined(&run->heap, "there is no last item");
}

BUILTIN(filters_length)
{
    BUILTIN_UNUSED;
    int64_t length = value_length(self);
    if (length < 0)
        heap_fail(&run->heap, ERROR_INVALID, "object of type '%s' has no length", value_type(self));
    return value_int(length);
}

BUILTIN(filters_list)
{
    BUILTIN_UNUSED;
    return value_list(VALUE_LIST, value_items(&run->heap, self));
}

BUILTIN(filters_reverse)
{
    BUILTIN_UNUSED;
    static const struct value NOTHING = {.kind = VALUE_NONE};
    if (self.kind == VALUE_STRING)
        return access_slice(run, self, NOTHING, NOTHING, value_int(-1));
    const struct list *items = value_items(&run->heap, self);
    struct list *other = value_new_list(&run->heap, items->count);
    for (size_t i = items->count; i-- > 0;)
        value_push(&run->heap, other, items->items[i]);
    return value_list(self.kind == VALUE_ITERATOR ? VALUE_LIST : VALUE_ITERATOR, other);
}

static const struct list *attributes(struct run *run, const struct list *items, struct value path)
{
    if (absent(path))
        return items;
    struct list *values = value_new_list(&run->heap, items->count);
    for (size_t i = 0; i < items->count; i++)
        value_push(&run->heap, values, attribute(run, items->items[i], path, VALUE_OF_NONE));
    return values;
}

BUILTIN(filters_join)
{
    BUILTIN_UNUSED;
    const struct list *items = attributes(run, value_items(&run->heap, self), given[1]);
    struct value between = given[0].kind == VALUE_MISSING ? value_text(&run->heap, "")
                                                          : print_to_string(run, given[0]);
    return strings_joined(run, items, between.string, true);
}

BUILTIN(filters_items)
{
    BUILTIN_UNUSED;
    struct args none = {0};
    if (self.kind == VALUE_UNDEFINED)
        return value_list(VALUE_ITERATOR, value_new_list(&run->heap, 0));
    if (self.kind != VALUE_DICT)
        heap_fail(&run->heap, ERROR_INVALID, "items: expected a mapping, got a %s",
                  value_type(self));
    struct value view =
        builtin_call(run, builtin_find(builtins_dict_methods, "items"), self, &none);
    return value_list(VALUE_ITERATOR, view.list);
}

/* map, select and their kin. */

/* The items of what is true, which then must have some. */
static const struct list *items_if_true(struct run *run, struct value self)
{
    static const struct list NOTHING;
    return value_true(self) ? value_items(&run->heap, self) : &NOTHING;
}

static const struct builtin *named_builtin(struct run *run, const struct builtin *table,
                                           struct value name)
{
    const struct string *text = strings_given(run, name, "the name of a filter or test");
    const struct builtin *found = builtin_find(table, text->bytes);
    if (!found)
        heap_fail(&run->heap, ERROR_INVALID, "the filter or test %.60s is not supported",
                  text->bytes);
    return found;
}

static struct args behind(const struct args *args, size_t count)
{
    struct args rest = *args;
    rest.items += count;
    rest.count -= count;
    return rest;
}

static struct value mapped_attribute(struct run *run, const struct list *items,
                                     const struct args *args)
{
    struct value path = {.kind = VALUE_MISSING}, otherwise = VALUE_OF_NONE;
    for (size_t i = 0; i < args->num_named; i++) {
        const char *name = args->named[i].name->bytes;
        if (strcmp(name, "attribute") == 0)
            path = args->named[i].value;
        else if (strcmp(name, "default") == 0)
            otherwise = args->named[i].value;
        else
            heap_fail(&run->heap, ERROR_INVALID, "map: the argument %.40s is unknown", name);
    }
    if (path.kind == VALUE_MISSING)
        heap_fail(&run->heap, ERROR_INVALID, "map: expected the name of a filter");
    struct list *values = value_new_list(&run->heap, items->count);
    for (size_t i = 0; i < items->count; i++) {
        struct value value = attribute(run, items->items[i], path, otherwise);
        value_push(&run->heap, values, value);
    }
    return value_list(VALUE_ITERATOR, values);
}

BUILTIN(filters_map)
{
    BUILTIN_UNUSED;
    const struct list *items = items_if_true(run, self);
    if (items->count == 0)
        return value_list(VALUE_ITERATOR, value_new_list(&run->heap, 0));
    if (args->count == 0)
        return mapped_attribute(run, items, args);
    const struct builtin *filter = named_builtin(run, builtins_filters, args->items[0]);
    struct args rest = behind(args, 1);
    struct list *values = value_new_list(&run->heap, items->count);
    for (size_t i = 0; i < items->count; i++)
        value_push(&run->heap, values, filters_call(run, filter, items->items[i], &rest));
    return value_list(VALUE_ITERATOR, values);
}

static struct value chosen(struct run *run, struct value self, const struct args *args,
                           bool by_attribute, bool wanted)
{
    const struct list *items = items_if_true(run, self);
    struct list *values = value_new_list(&run->heap, 0);
    size_t off = by_attribute;
    if (args->count < off)
        heap_fail(&run->heap, ERROR_INVALID, "expected the name of an attribute");
    bool tests = args->count > off;
    const struct builtin *test =
        tests ? named_builtin(run, builtins_tests, args->items[off]) : NULL;
    struct args rest = behind(args, off + tests);
    for (size_t i = 0; i < items->count; i++) {
        struct value value = items->items[i];
        if (by_attribute)
            value = attribute(run, value, args->items[0], VALUE_OF_NONE);
        if (test)
            value = builtin_call(run, test, value, &rest);
        if (value_true(value) == wanted)
            value_push(&run->heap, values, items->items[i]);
    }
    return value_list(VALUE_ITERATOR, values);
}

BUILTIN(filters_select)
{
    BUILTIN_UNUSED;
    return chosen(run, self, args, false, true);
}

BUILTIN(filters_reject)
{
    BUILTIN_UNUSED;
    return chosen(run, self, args, false, false);
}

BUILTIN(filters_selectattr)
{
    BUILTIN_UNUSED;
    return chosen(run, self, args, true, true);
}

BUILTIN(filters_rejectattr)
{
    BUILTIN_UNUSED;
    return chosen(run, self, args, true, false);
}

/* Order. */

static struct value sort_key(struct run *run, struct value value, bool case_sensitive)
{
    return value.kind == VALUE_STRING && !case_sensitive
               ? strings_cased(run, value.string, STRINGS_LOWER)
               : value;
}

/* The keys by which items are compared. */
static struct value *sort_keys(struct run *run, const struct list *items, struct value path,
                               bool case_sensitive)
{
    const struct list *values = attributes(run, items, path);
    struct value *keys = heap_alloc(&run->heap, items->count, sizeof *keys);
    for (size_t i = 0; i < items->count; i++)
        keys[i] = sort_key(run, values->items[i], case_sensitive);
    return keys;
}

/* Sorts order [count], indices into keys, stably, with the help of spare [count]. */
static void merge_sort(struct run *run, const struct value *keys, size_t *order, size_t *spare,
                       size_t count, bool reverse)
{
    if (count < 2)
        return;
    size_t half = count / 2, left = 0, right = half;
    merge_sort(run, keys, order, spare, half, reverse);
    merge_sort(run, keys, order + half, spare, count - half, reverse);
    heap_work(&run->heap, count * sizeof *order);
    for (size_t i = 0; i < count; i++) {
        bool from_right = left == half;
        if (left < half && right < count) {
            struct value a = keys[order[left]], b = keys[order[right]];
            from_right = reverse ? value_compare(&run->heap, a, b, "<") == -1
                                 : value_compare(&run->heap, b, a, "<") == -1;
        }
        spare[i] = order[from_right ? right++ : left++];
    }
    memcpy(order, spare, count * sizeof *order);
}

static struct value sorted(struct run *run, const struct list *items, const struct value *keys,
                           bool reverse)
{
    size_t *order = heap_alloc(&run->heap, items->count, sizeof *order);
    size_t *spare = heap_alloc(&run->heap, items->count, sizeof *spare);
    for (size_t i = 0; i < items->count; i++)
        order[i] = i;
    merge_sort(run, keys, order, spare, items->count, reverse);
    struct list *result = value_new_list(&run->heap, items->count);
    for (size_t i = 0; i < items->count; i++)
        value_push(&run->heap, result, items->items[order[i]]);
    return value_list(VALUE_LIST, result);
}

/* Keys that are lists, of one attribute or, parted by commas, several: what is equal needs no
 * order. */
static struct value *list_keys(struct run *run, const struct list *items, struct value paths,
                               bool case_sensitive)
{
    struct value *keys = heap_alloc(&run->heap, items->count, sizeof *keys);
    for (size_t i = 0; i < items->count; i++)
        keys[i] = value_list(VALUE_LIST, value_new_list(&run->heap, 1));
    const char *at = paths.kind == VALUE_STRING ? paths.string->bytes : NULL;
    do {
        struct value path = paths;
        const char *comma = at ? memchr(at, ',', strlen(at)) : NULL;
        if (at)
            path = value_of(value_own(&run->heap, at, comma ? (size_t)(comma - at) : strlen(at)));
        struct value *parts = sort_keys(run, items, path, case_sensitive);
        for (size_t i = 0; i < items->count; i++)
            value_push(&run->heap, keys[i].list, parts[i]);
        at = comma ? comma + 1 : NULL;
    } while (at);
    return keys;
}

BUILTIN(filters_sort)
{
    BUILTIN_UNUSED;
    const struct list *items = value_items(&run->heap, self);
    return sorted(run, items, list_keys(run, items, given[2], value_true(given[1])),
                  value_true(given[0]));
}

static struct value group(struct run *run, struct value name, struct list *members)
{
    struct list *pair = value_new_list(&run->heap, 2);
    value_push(&run->heap, pair, name);
    value_push(&run->heap, pair, value_list(VALUE_LIST, members));
    pair->is_group = true;
    return value_list(VALUE_TUPLE, pair);
}

/* Sorted by the attribute, and those together whose attribute is equal. */
BUILTIN(filters_groupby)
{
    BUILTIN_UNUSED;
    struct value otherwise = given[1].kind == VALUE_MISSING ? VALUE_OF_NONE : given[1];
    const struct list *items = value_items(&run->heap, self);
    struct list *pairs = value_new_list(&run->heap, items->count);
    struct value *keys = heap_alloc(&run->heap, items->count, sizeof *keys);
    for (size_t i = 0; i < items->count; i++) {
        struct value name = attribute(run, items->items[i], given[0], otherwise);
        keys[i] = sort_key(run, name, value_true(given[2]));
        struct list *three = value_new_list(&run->heap, 3);
        value_push(&run->heap, three, keys[i]);
        value_push(&run->heap, three, name);
        value_push(&run->heap, three, items->items[i]);
        value_push(&run->heap, pairs, value_list(VALUE_TUPLE, three));
    }
    pairs = sorted(run, pairs, keys, false).list;
    struct list *groups = value_new_list(&run->heap, 0), *members = NULL;
    for (size_t i = 0; i < pairs->count; i++) {
        const struct value *three = pairs->items[i].list->items;
        if (i == 0 || !value_equal(&run->heap, pairs->items[i - 1].list->items[0], three[0])) {
            members = value_new_list(&run->heap, 0);
            value_push(&run->heap, groups, group(run, three[1], members));
        }
        value_push(&run->heap, members, three[2]);
    }
    return value_list(VALUE_LIST, groups);
}

/* Lists of so many items each. */
BUILTIN(filters_batch)
{
    BUILTIN_UNUSED;
    int64_t size = strings_given_int(run, given[0], 0, "batch");
    const struct list *items = value_items(&run->heap, self);
    struct list *batches = value_new_list(&run->heap, 0);
    struct list *batch = value_new_list(&run->heap, 0);
    for (size_t i = 0; i < items->count; i++) {
        if ((int64_t)batch->count == size) {
            value_push(&run->heap, batches, value_list(VALUE_LIST, batch));
            batch = value_new_list(&run->heap, 0);
        }
        value_push(&run->heap, batch, items->items[i]);
    }
    while (batch->count > 0 && !absent(given[1]) && (int64_t)batch->count < size)
        value_push(&run->heap, batch, given[1]);
    if (batch->count > 0)
        value_push(&run->heap, batches, value_list(VALUE_LIST, batch));
    return value_list(VALUE_ITERATOR, batches);
}

/* So many lists, the first ones with one item more. */
BUILTIN(filters_slice)
{
    BUILTIN_UNUSED;
    int64_t slices = strings_given_int(run, given[0], 0, "slice");
    const struct list *items = value_items(&run->heap, self);
    struct list *columns = value_new_list(&run->heap, 0);
    if (slices == 0)
        heap_fail(&run->heap, ERROR_INVALID, "slice: expected a number of slices, got 0");
    int64_t each = slices > 0 ? (int64_t)items->count / slices : 0;
    int64_t longer = slices > 0 ? (int64_t)items->count % slices : 0;
    size_t at = 0;
    for (int64_t i = 0; i < slices; i++) {
        struct list *column = value_new_list(&run->heap, 0);
        for (int64_t j = 0; j < each + (i < longer); j++)
            value_push(&run->heap, column, items->items[at++]);
        if (!absent(given[1]) && i >= longer)
            value_push(&run->heap, column, given[1]);
        value_push(&run->heap, columns, value_list(VALUE_LIST, column));
    }
    return value_list(VALUE_ITERATOR, columns);
}

BUILTIN(filters_dictsort)
{
    BUILTIN_UNUSED;
    bool by_value = false;
    if (given[1].kind != VALUE_MISSING) {
        const struct string *by = strings_given(run, given[1], "dictsort");
        by_value = strcmp(by->bytes, "value") == 0;
        if (!by_value && strcmp(by->bytes, "key") != 0)
            heap_fail(&run->heap, ERROR_INVALID, "dictsort: by: expected key or value");
    }
    if (self.kind == VALUE_UNDEFINED)
        heap_fail(&run->heap, ERROR_INVALID, "%s", self.string->bytes);
    struct value pairs = filters_items(run, self, given, args);
    struct value *keys = sort_keys(run, pairs.list, value_int(by_value), value_true(given[0]));
    return sorted(run, pairs.list, keys, value_true(given[2]));
}

BUILTIN(filters_unique)
{
    BUILTIN_UNUSED;
    const struct list *items = value_items(&run->heap, self);
    struct value *keys = sort_keys(run, items, given[1], value_true(given[0]));
    struct dict *seen = value_new_dict(&run->heap);
    struct list *result = value_new_list(&run->heap, 0);
    for (size_t i = 0; i < items->count; i++) {
        size_t before = seen->count;
        value_set(&run->heap, seen, keys[i], VALUE_OF_NONE);
        if (seen->count > before)
            value_push(&run->heap, result, items->items[i]);
    }
    return value_list(VALUE_ITERATOR, result);
}

static struct value extreme(struct run *run, struct value self, const struct value *given, int sign)
{
    const struct list *items = value_items(&run->heap, self);
    struct value *keys = sort_keys(run, items, given[1], value_true(given[0]));
    size_t best = 0;
    if (items->count == 0)
        return value_undefined(&run->heap, "no items: the sequence was empty");
    for (size_t i = 1; i < items->count; i++)
        if (value_compare(&run->heap, keys[i], keys[best], sign < 0 ? "<" : ">") == sign)
            best = i;
    return items->items[best];
}

BUILTIN(filters_min)
{
    BUILTIN_UNUSED;
    return extreme(run, self, given, -1);
}

BUILTIN(filters_max)
{
    BUILTIN_UNUSED;
    return extreme(run, self, given, 1);
}

BUILTIN(filters_sum)
{
    BUILTIN_UNUSED;
    const struct list *items = attributes(run, value_items(&run->heap, self), given[0]);
    struct value sum = given[1].kind == VALUE_MISSING ? value_int(0) : given[1];
    if (sum.kind == VALUE_STRING)
        heap_fail(&run->heap, ERROR_INVALID, "sum: strings cannot be summed");
    for (size_t i = 0; i < items->count; i++)
        sum = operators_binary(run, '+', sum, items->items[i]);
    return sum;
}
