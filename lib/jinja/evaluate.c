/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/evaluate.h"

#include "lib/jinja/access.h"
#include "lib/jinja/builtins.h"
#include "lib/jinja/filters.h"
#include "lib/jinja/operators.h"
#include "lib/jinja/print.h"

#include <string.h>

static struct value name(struct run *run, struct value of)
{
    struct heap *heap = &run->heap;
    const struct value *found;
    for (const struct scope *scope = run->scope; scope; scope = scope->parent) {
        heap_work(heap, 0);
        if ((found = value_find(heap, scope->names, of)))
            return *found;
    }
    if ((found = value_find(heap, run->known, of)))
        return *found;
    heap_work(heap, of.string->length);
    const json_t *member = json_object_get(run->context, of.string->bytes);
    const struct builtin *function = builtin_find(builtins_functions, of.string->bytes);
    struct value value;
    if (member)
        value = value_from_json(heap, member, run->origin);
    else if (function)
        value = (struct value){.kind = VALUE_FUNCTION, .function = function};
    else
        return value_undefined(heap, "'%.100s' is undefined", of.string->bytes);
    value_set(heap, run->known, of, value);
    return value;
}

static struct value list(struct run *run, const struct node *node)
{
    struct list *items = value_new_list(&run->heap, 0);
    for (const struct node *item = node->list; item; item = item->next)
        value_push(&run->heap, items, evaluate(run, item));
    return value_list(node->type == NODE_LIST ? VALUE_LIST : VALUE_TUPLE, items);
}

static struct value dict(struct run *run, const struct node *node)
{
    struct dict *entries = value_new_dict(&run->heap);
    for (const struct node *pair = node->list; pair; pair = pair->next) {
        struct value key = evaluate(run, pair->a);
        value_set(&run->heap, entries, key, evaluate(run, pair->b));
    }
    return (struct value){.kind = VALUE_DICT, .dict = entries};
}

static struct value slice(struct run *run, const struct node *node)
{
    static const struct value ABSENT = {.kind = VALUE_MISSING};
    struct value of = evaluate(run, node->a);
    struct value from = node->b ? evaluate(run, node->b) : ABSENT;
    struct value to = node->c ? evaluate(run, node->c) : ABSENT;
    struct value step = node->d ? evaluate(run, node->d) : ABSENT;
    run->heap.offset = node->offset;
    return access_slice(run, of, from, to, step);
}

/* Arguments that grow. */
struct arguments {
    struct list *items;
    struct named_value *named; /* [count] */
    size_t count, capacity;
};

static void push_named(struct run *run, struct arguments *args, const struct string *name,
                       struct value value)
{
    if (args->count == args->capacity) {
        size_t capacity = 2 * args->capacity + 2;
        struct named_value *named = heap_alloc(&run->heap, capacity, sizeof *named);
        if (args->count > 0)
            memcpy(named, args->named, args->count * sizeof *named);
        args->named = named;
        args->capacity = capacity;
    }
    heap_work(&run->heap, 0);
    args->named[args->count++] = (struct named_value){name, value};
}

static void push_spread(struct run *run, struct arguments *args, struct value value, bool named)
{
    if (named && value.kind != VALUE_DICT)
        heap_fail(&run->heap, ERROR_INVALID, "argument after ** must be a mapping, not %s",
                  value_type(value));
    if (!named && value.kind == VALUE_UNDEFINED)
        heap_fail(&run->heap, ERROR_INVALID, "%s", value.string->bytes);
    const struct list *items = named ? NULL : value_items(&run->heap, value);
    for (size_t i = 0; items && i < items->count; i++)
        value_push(&run->heap, args->items, items->items[i]);
    for (size_t i = 0; named && i < value.dict->count; i++) {
        const struct dict_entry *entry = &value.dict->entries[i];
        if (entry->key.kind != VALUE_STRING)
            heap_fail(&run->heap, ERROR_INVALID, "keywords must be strings, not %s",
                      value_type(entry->key));
        push_named(run, args, entry->key.string, entry->value);
    }
}

/* The arguments of a call. */
static struct args arguments(struct run *run, const struct node *first)
{
    size_t count = 0;
    for (const struct node *node = first; node; node = node->next)
        count += node->type != NODE_KEYWORD;
    struct arguments args = {.items = value_new_list(&run->heap, count)};
    for (const struct node *node = first; node; node = node->next)
        if (node->type == NODE_KEYWORD)
            push_named(run, &args, node->value.string, evaluate(run, node->a));
        else if (node->type == NODE_SPREAD || node->type == NODE_SPREAD_NAMED)
            push_spread(run, &args, evaluate(run, node->a), node->type == NODE_SPREAD_NAMED);
        else
            value_push(&run->heap, args.items, evaluate(run, node));
    return (struct args){args.items->items, args.items->count, args.named, args.count};
}

/* What Python's Markup makes of its text is Markup again. */
static struct value method_call(struct run *run, const struct method *method,
                                const struct args *args)
{
    static const char *const ESCAPE[] = {"format", "join", "replace"};
    bool markup = value_is_markup(method->self);
    for (size_t i = 0; i < sizeof ESCAPE / sizeof *ESCAPE; i++)
        if (markup && strcmp(method->function->name, ESCAPE[i]) == 0)
            heap_fail(&run->heap, ERROR_INVALID, "%s of what safe gives is not supported",
                      ESCAPE[i]);
    struct value result = builtin_call(run, method->function, method->self, args);
    return markup ? value_markup(&run->heap, result) : result;
}

/* caller: what a call block adds, or VALUE_MISSING. */
struct value evaluate_call(struct run *run, const struct node *node, struct value caller)
{
    struct value callee = evaluate(run, node->a);
    struct args args = arguments(run, node->list);
    if (caller.kind != VALUE_MISSING) {
        struct named_value *named = heap_alloc(&run->heap, args.num_named + 1, sizeof *args.named);
        for (size_t i = 0; i < args.num_named; i++)
            named[i] = args.named[i];
        named[args.num_named++] =
            (struct named_value){value_text(&run->heap, "caller").string, caller};
        args.named = named;
    }
    run->heap.offset = node->offset;
    switch (callee.kind) {
    case VALUE_MACRO:
        return macro_call(run, callee.macro, &args);
    case VALUE_FUNCTION:
        return builtin_call(run, callee.function, VALUE_OF_NONE, &args);
    case VALUE_METHOD:
        return method_call(run, callee.method, &args);
    case VALUE_LOOP:
        return loop_call(run, callee.loop, &args);
    case VALUE_UNDEFINED:
        heap_fail(&run->heap, ERROR_INVALID, "%s", callee.string->bytes);
    default:
        heap_fail(&run->heap, ERROR_INVALID, "'%s' object is not callable", value_type(callee));
    }
}

static struct value builtin(struct run *run, const struct node *node, struct value self)
{
    struct args args = arguments(run, node->list);
    run->heap.offset = node->offset;
    if (!node->builtin)
        heap_fail(&run->heap, ERROR_INVALID, "the %s %.60s is not supported",
                  node->type == NODE_FILTER ? "filter" : "test", node->value.string->bytes);
    return node->type == NODE_FILTER ? filters_call(run, node->builtin, self, &args)
                                     : builtin_call(run, node->builtin, self, &args);
}

struct value evaluate_filters(struct run *run, const struct node *filters, struct value text)
{
    heap_enter(&run->heap);
    struct value self = filters->a ? evaluate_filters(run, filters->a, text) : text;
    heap_leave(&run->heap);
    return builtin(run, filters, self);
}

static struct value binary(struct run *run, const struct node *node)
{
    struct value a = evaluate(run, node->a), b = evaluate(run, node->b);
    run->heap.offset = node->offset;
    return operators_binary(run, node->op, a, b);
}

static struct value compare(struct run *run, const struct node *node)
{
    struct value left = evaluate(run, node->a);
    for (const struct node *next = node->list; next; next = next->next) {
        struct value right = evaluate(run, next->a);
        run->heap.offset = next->offset;
        if (!operators_compare(run, (enum comparison)next->op, left, right))
            return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

static struct value concat(struct run *run, const struct node *node)
{
    struct output own, *before = output_begin(run, &own);
    for (const struct node *part = node->list; part; part = part->next) {
        /* What an expression writes itself goes elsewhere, so this output is in hand here. */
        struct value value = evaluate(run, part);
        run->heap.offset = part->offset;
        print_value(run, value);
    }
    return output_take(run, before);
}

static struct value condition(struct run *run, const struct node *node)
{
    if (value_true(evaluate(run, node->b)))
        return evaluate(run, node->a);
    if (node->c)
        return evaluate(run, node->c);
    return value_undefined(&run->heap, "the inline if-expression was false and has no else");
}

static struct value attribute(struct run *run, const struct node *node)
{
    struct value of = evaluate(run, node->a);
    run->heap.offset = node->offset;
    return access_attribute(run, of, node->value.string, false);
}

static struct value item(struct run *run, const struct node *node)
{
    struct value of = evaluate(run, node->a), key = evaluate(run, node->b);
    run->heap.offset = node->offset;
    return access_item(run, of, key);
}

static struct value value_of_node(struct run *run, const struct node *node)
{
    switch (node->type) {
    case NODE_CONSTANT:
        return node->value;
    case NODE_NAME:
        return name(run, node->value);
    case NODE_LIST:
    case NODE_TUPLE:
        return list(run, node);
    case NODE_DICT:
        return dict(run, node);
    case NODE_ATTRIBUTE:
        return attribute(run, node);
    case NODE_ITEM:
        return item(run, node);
    case NODE_SLICE:
        return slice(run, node);
    case NODE_CALL:
        return evaluate_call(run, node, (struct value){.kind = VALUE_MISSING});
    case NODE_FILTER:
    case NODE_TEST:
        return builtin(run, node, evaluate(run, node->a));
    case NODE_NOT:
        return value_bool(!value_true(evaluate(run, node->a)));
    case NODE_NEGATE:
        return operators_negate(run, evaluate(run, node->a));
    case NODE_PLUS:
        return operators_plus(run, evaluate(run, node->a));
    case NODE_BINARY:
        return binary(run, node);
    case NODE_AND:
    case NODE_OR: {
        struct value a = evaluate(run, node->a);
        return value_true(a) == (node->type == NODE_OR) ? a : evaluate(run, node->b);
    }
    case NODE_CONCAT:
        return concat(run, node);
    case NODE_COMPARE:
        return compare(run, node);
    case NODE_CONDITION:
        return condition(run, node);
    default:
        heap_fail(&run->heap, ERROR_INTERNAL, "no expression");
    }
}

struct value evaluate(struct run *run, const struct node *node)
{
    heap_work(&run->heap, 0);
    heap_enter(&run->heap);
    run->heap.offset = node->offset;
    struct value value = value_of_node(run, node);
    heap_leave(&run->heap);
    return value;
}
