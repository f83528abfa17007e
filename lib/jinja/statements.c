/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/statements.h"

#include "lib/jinja/evaluate.h"
#include "lib/jinja/print.h"

#include <string.h>

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum flow block(struct run *run, const struct node *first);

/* Scopes lie on the heap, as macros keep them. Returns the one before. */
static struct scope *enter_scope(struct run *run, struct scope *parent)
{
    struct scope *before = run->scope, *scope = heap_alloc(&run->heap, 1, sizeof *scope);
    scope->parent = parent;
    scope->names = value_new_dict(&run->heap);
    run->scope = scope;
    return before;
}

static void set_name(struct run *run, struct value name, struct value value)
{
    value_set(&run->heap, run->scope->names, name, value);
}

static void set_attribute(struct run *run, const struct node *target, struct value value)
{
    struct value of = evaluate(run, target->a);
    run->heap.offset = target->offset;
    if (of.kind != VALUE_NAMESPACE)
        heap_fail(&run->heap, ERROR_INVALID, "cannot assign attribute on non-namespace object");
    if (target->value.string->bytes[0] == '_')
        heap_fail(&run->heap, ERROR_INVALID,
                  "attributes of a namespace cannot begin with an underscore");
    value_set(&run->heap, of.dict, target->value, value);
}

static void assign(struct run *run, const struct node *target, struct value value)
{
    if (target->type == NODE_NAME) {
        set_name(run, target->value, value);
        return;
    }
    if (target->type == NODE_ATTRIBUTE) {
        set_attribute(run, target, value);
        return;
    }
    if (value.kind == VALUE_UNDEFINED)
        heap_fail(&run->heap, ERROR_INVALID, "%s", value.string->bytes);
    size_t wanted = 0;
    for (const struct node *part = target->list; part; part = part->next)
        wanted++;
    const struct list *items = value_items(&run->heap, value);
    if (items->count != wanted)
        heap_fail(&run->heap, ERROR_INVALID, "expected %zu values to unpack, got %zu", wanted,
                  items->count);
    const struct value *item = items->items;
    heap_enter(&run->heap);
    for (const struct node *part = target->list; part; part = part->next)
        assign(run, part, *item++);
    heap_leave(&run->heap);
}

/* Loops. */

/* The items for which the loop's condition holds. */
static const struct list *filtered(struct run *run, const struct node *node,
                                   const struct list *items)
{
    struct list *chosen = value_new_list(&run->heap, 0);
    for (size_t i = 0; i < items->count; i++) {
        struct scope *before = enter_scope(run, run->scope);
        assign(run, node->a, items->items[i]);
        if (value_true(evaluate(run, node->c)))
            value_push(&run->heap, chosen, items->items[i]);
        run->scope = before;
    }
    return chosen;
}

static enum flow loop_over(struct run *run, const struct node *node, struct value over, int depth)
{
    run->heap.offset = node->b->offset;
    const struct list *items = value_items(&run->heap, over);
    if (node->c)
        items = filtered(run, node, items);
    struct loop *loop = heap_alloc(&run->heap, 1, sizeof *loop);
    struct value name = value_text(&run->heap, "loop");
    enum flow flow = FLOW_ON;
    struct scope *before = run->scope;
    *loop = (struct loop){.node = node, .scope = before, .depth = depth, .items = items};
    for (; loop->index < items->count && flow != FLOW_BREAK; loop->index++) {
        enter_scope(run, before);
        set_name(run, name, (struct value){.kind = VALUE_LOOP, .loop = loop});
        assign(run, node->a, items->items[loop->index]);
        flow = block(run, node->list);
        run->scope = before;
    }
    if (items->count > 0 || !node->more)
        return FLOW_ON;
    enter_scope(run, before);
    flow = block(run, node->more);
    run->scope = before;
    return flow;
}

static enum flow for_loop(struct run *run, const struct node *node)
{
    return loop_over(run, node, evaluate(run, node->b), 0);
}

struct value loop_call(struct run *run, const struct loop *loop, const struct args *args)
{
    if (!loop->node->op)
        heap_fail(&run->heap, ERROR_INVALID, "this loop is not recursive");
    if (args->count != 1 || args->num_named > 0)
        heap_fail(&run->heap, ERROR_INVALID, "loop: expected 1 argument, got %zu",
                  args->count + args->num_named);
    struct output own, *before = output_begin(run, &own);
    struct scope *scope = run->scope;
    run->scope = loop->scope;
    heap_enter(&run->heap);
    loop_over(run, loop->node, args->items[0], loop->depth + 1);
    heap_leave(&run->heap);
    run->scope = scope;
    return output_take(run, before);
}

/* Blocks whose text is taken. */

static struct value captured(struct run *run, const struct node *body)
{
    struct output own, *before = output_begin(run, &own);
    struct scope *scope = enter_scope(run, run->scope);
    block(run, body);
    run->scope = scope;
    return output_take(run, before);
}

static void set_block(struct run *run, const struct node *node)
{
    struct value text = captured(run, node->list);
    assign(run, node->a, node->b ? evaluate_filters(run, node->b, text) : text);
}

static void define_macro(struct run *run, const struct node *node)
{
    struct macro *macro = heap_alloc(&run->heap, 1, sizeof *macro);
    *macro = (struct macro){node, run->scope};
    set_name(run, node->value, (struct value){.kind = VALUE_MACRO, .macro = macro});
}

/* Whether a call's named argument goes to a parameter. */
static bool is_param(struct run *run, const struct node *node, const struct string *name)
{
    for (const struct node *param = node->params; param; param = param->next)
        if (value_equal(&run->heap, value_of((struct string *)name), param->value))
            return true;
    return false;
}

/* What has no parameter: varargs, kwargs and caller, if the macro mentions them. */
static void bind_rest(struct run *run, const struct node *node, const struct args *args,
                      size_t params)
{
    struct list *varargs = value_new_list(&run->heap, 0);
    struct dict *kwargs = value_new_dict(&run->heap);
    struct value caller = value_undefined(&run->heap, "No caller defined");
    bool fits = node->op & MACRO_VARARGS || args->count <= params;
    for (size_t i = params; i < args->count; i++)
        value_push(&run->heap, varargs, args->items[i]);
    for (size_t i = 0; i < args->num_named; i++) {
        const struct named_value *named = &args->named[i];
        if (is_param(run, node, named->name))
            continue;
        bool called = node->op & MACRO_CALLER && strcmp(named->name->bytes, "caller") == 0;
        if (called)
            caller = named->value;
        else if (strcmp(named->name->bytes, "caller") == 0)
            fits = false;
        else
            value_set(&run->heap, kwargs, value_of((struct string *)named->name), named->value);
    }
    if (!fits || (kwargs->count > 0 && !(node->op & MACRO_KWARGS)))
        heap_fail(&run->heap, ERROR_INVALID, "the macro %.60s takes no such argument",
                  node->value.string->bytes);
    if (node->op & MACRO_VARARGS)
        set_name(run, value_text(&run->heap, "varargs"), value_list(VALUE_TUPLE, varargs));
    if (node->op & MACRO_KWARGS)
        set_name(run, value_text(&run->heap, "kwargs"),
                 (struct value){.kind = VALUE_DICT, .dict = kwargs});
    if (node->op & MACRO_CALLER)
        set_name(run, value_text(&run->heap, "caller"), caller);
}

/* The value that a call gives a parameter, or VALUE_MISSING. */
static struct value argument(struct run *run, const struct node *param, size_t index,
                             const struct args *args)
{
    struct value value = {.kind = VALUE_MISSING};
    if (index < args->count)
        value = args->items[index];
    for (size_t i = 0; i < args->num_named; i++) {
        if (!value_equal(&run->heap, value_of((struct string *)args->named[i].name), param->value))
            continue;
        if (value.kind != VALUE_MISSING)
            heap_fail(&run->heap, ERROR_INVALID, "the argument %.60s is there twice",
                      param->value.string->bytes);
        value = args->named[i].value;
    }
    return value;
}

static void bind_params(struct run *run, const struct node *node, const struct args *args)
{
    size_t index = 0;
    for (const struct node *param = node->params; param; param = param->next) {
        struct value value = argument(run, param, index++, args);
        if (value.kind != VALUE_MISSING)
            set_name(run, param->value, value);
    }
    bind_rest(run, node, args, index);
    for (const struct node *param = node->params; param; param = param->next) {
        if (value_find(&run->heap, run->scope->names, param->value))
            continue;
        struct value value = param->a
                                 ? evaluate(run, param->a)
                                 : value_undefined(&run->heap, "parameter '%.60s' was not provided",
                                                   param->value.string->bytes);
        set_name(run, param->value, value);
    }
}

struct value macro_call(struct run *run, const struct macro *macro, const struct args *args)
{
    struct output own, *before = output_begin(run, &own);
    struct scope *scope = enter_scope(run, macro->scope);
    heap_enter(&run->heap);
    bind_params(run, macro->node, args);
    block(run, macro->node->list);
    heap_leave(&run->heap);
    run->scope = scope;
    return output_take(run, before);
}

/* Calls with the block as `caller`. */
static void call_block(struct run *run, const struct node *node)
{
    struct macro *macro = heap_alloc(&run->heap, 1, sizeof *macro);
    *macro = (struct macro){node, run->scope};
    print_value(run,
                evaluate_call(run, node->a, (struct value){.kind = VALUE_MACRO, .macro = macro}));
}

static enum flow with(struct run *run, const struct node *node)
{
    struct scope *before = enter_scope(run, run->scope), *inner = run->scope;
    for (const struct node *pair = node->params; pair; pair = pair->next) {
        run->scope = before;
        struct value value = evaluate(run, pair->b);
        run->scope = inner;
        assign(run, pair->a, value);
    }
    enum flow flow = block(run, node->list);
    run->scope = before;
    return flow;
}

static enum flow statement(struct run *run, const struct node *node)
{
    struct value value;
    switch (node->type) {
    case NODE_DATA:
        output_string(run, node->value.string);
        return FLOW_ON;
    case NODE_OUTPUT:
        value = evaluate(run, node->a);
        run->heap.offset = node->offset;
        print_value(run, value);
        return FLOW_ON;
    case NODE_IF:
        return block(run, value_true(evaluate(run, node->a)) ? node->list : node->more);
    case NODE_FOR:
        return for_loop(run, node);
    case NODE_SET:
        assign(run, node->a, evaluate(run, node->b));
        return FLOW_ON;
    case NODE_SET_BLOCK:
        set_block(run, node);
        return FLOW_ON;
    case NODE_MACRO:
        define_macro(run, node);
        return FLOW_ON;
    case NODE_CALL_BLOCK:
        call_block(run, node);
        return FLOW_ON;
    case NODE_WITH:
        return with(run, node);
    case NODE_FILTER_BLOCK:
        print_value(run, evaluate_filters(run, node->b, captured(run, node->list)));
        return FLOW_ON;
    case NODE_GENERATION:
        print_value(run, captured(run, node->list));
        return FLOW_ON;
    case NODE_BREAK:
        return FLOW_BREAK;
    case NODE_CONTINUE:
        return FLOW_CONTINUE;
    default:
        heap_fail(&run->heap, ERROR_INTERNAL, "no statement");
    }
}

static enum flow block(struct run *run, const struct node *first)
{
    enum flow flow = FLOW_ON;
    heap_enter(&run->heap);
    for (const struct node *node = first; node && flow == FLOW_ON; node = node->next) {
        heap_work(&run->heap, 0);
        run->heap.offset = node->offset;
        flow = statement(run, node);
    }
    heap_leave(&run->heap);
    return flow;
}

void statements_run(struct run *run, const struct node *first)
{
    enter_scope(run, NULL);
    block(run, first);
}
