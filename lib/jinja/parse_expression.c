/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/builtins.h"
#include "lib/jinja/parser.h"

#include <string.h>

static struct node *parse_primary(struct parser *parser);
static struct node *parse_postfix(struct parser *parser, struct node *node);
static struct node *parse_unary(struct parser *parser, bool with_filter);

static struct node *node_at(struct parser *parser, enum node_type type, const struct node *of)
{
    struct node *node = parser_node(parser, type);
    node->offset = of->offset;
    return node;
}

/* A node of two others, placed at the operator before the parser. */
static struct node *pair(struct parser *parser, enum node_type type, struct node *a, struct node *b)
{
    struct node *node = node_at(parser, type, a);
    node->a = a;
    node->b = b;
    return node;
}

/* The tuple ends before the next token. */
static bool tuple_ends(const struct parser *parser)
{
    return parser->at->type == TOKEN_VARIABLE_END || parser->at->type == TOKEN_BLOCK_END ||
           parser_is_op(parser, ')') || parser_is_name(parser, "in");
}

static struct node *tuple_of(struct parser *parser, bool condition, bool may_be_empty)
{
    struct node *first = NULL, **end = &first, *tuple = parser_node(parser, NODE_TUPLE);
    bool is_tuple = false;
    while (!tuple_ends(parser)) {
        end = parser_append(end, parse_expression(parser, condition));
        if (!parser_take_op(parser, ','))
            break;
        is_tuple = true;
    }
    if (!is_tuple && first)
        return first;
    if (!first && !may_be_empty)
        parser_fail(parser, "expected an expression");
    tuple->list = first;
    return tuple;
}

struct node *parse_tuple(struct parser *parser, bool condition)
{
    return tuple_of(parser, condition, false);
}

static struct node *target_name(struct parser *parser, bool attribute)
{
    struct node *node = parser_node(parser, NODE_NAME);
    node->value = value_of(parser_expect_name(parser));
    static const char *const RESERVED[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof RESERVED / sizeof *RESERVED; i++)
        if (strcmp(node->value.string->bytes, RESERVED[i]) == 0)
            parser_fail(parser, "cannot assign to %s", RESERVED[i]);
    if (!attribute || !parser_take_op(parser, '.'))
        return node;
    struct node *of = node_at(parser, NODE_ATTRIBUTE, node);
    of->a = node;
    of->value = value_of(parser_expect_name(parser));
    return of;
}

/* A name, or targets in brackets. */
static struct node *target_item(struct parser *parser, bool attribute)
{
    if (!parser_take_op(parser, '('))
        return target_name(parser, attribute);
    heap_enter(parser->heap);
    struct node *node = parse_target(parser, attribute);
    heap_leave(parser->heap);
    parser_expect_op(parser, ')');
    return node;
}

struct node *parse_target(struct parser *parser, bool attribute)
{
    struct node *tuple = parser_node(parser, NODE_TUPLE), **end = &tuple->list;
    end = parser_append(end, target_item(parser, attribute));
    bool several = parser_is_op(parser, ',');
    while (parser_take_op(parser, ',')) {
        bool more = parser->at->type == TOKEN_NAME || parser_is_op(parser, '(');
        if (!more || parser_is_name(parser, "in"))
            break;
        end = parser_append(end, target_item(parser, attribute));
    }
    return several ? tuple : tuple->list;
}

/* Literals. */

static struct node *parse_list(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_LIST), **end = &node->list;
    parser_expect_op(parser, '[');
    while (!parser_take_op(parser, ']')) {
        if (node->list)
            parser_expect_op(parser, ',');
        if (parser_take_op(parser, ']'))
            break;
        end = parser_append(end, parse_expression(parser, true));
    }
    return node;
}

static struct node *parse_dict(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_DICT), **end = &node->list;
    parser_expect_op(parser, '{');
    while (!parser_take_op(parser, '}')) {
        if (node->list)
            parser_expect_op(parser, ',');
        if (parser_take_op(parser, '}'))
            break;
        struct node *key = parse_expression(parser, true);
        parser_expect_op(parser, ':');
        end = parser_append(end, pair(parser, NODE_PAIR, key, parse_expression(parser, true)));
    }
    return node;
}

static struct node *parse_strings(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_CONSTANT);
    size_t length = 0;
    const struct token *end = parser->at;
    for (; end->type == TOKEN_STRING; end++)
        length += end->value.string->length;
    char *bytes = heap_alloc(parser->heap, length + 1, 1);
    length = 0;
    for (; parser->at < end; parser->at++) {
        const struct string *part = parser->at->value.string;
        memcpy(bytes + length, part->bytes, part->length);
        length += part->length;
    }
    node->value = value_of(value_own(parser->heap, bytes, length));
    return node;
}

/* Whether the template gives that name a value of its own. */
static bool is_assigned(const struct parser *parser, const char *name)
{
    static const char *const BEFORE[] = {"set", "macro", "for", "with"};
    for (size_t i = 1; i < parser->tokens->count; i++) {
        const struct token *token = &parser->tokens->items[i];
        if (token->type != TOKEN_NAME || token[-1].type != TOKEN_NAME ||
            strcmp(token->value.string->bytes, name) != 0)
            continue;
        for (size_t j = 0; j < sizeof BEFORE / sizeof *BEFORE; j++)
            if (strcmp(token[-1].value.string->bytes, BEFORE[j]) == 0)
                return true;
    }
    return false;
}

static struct node *parse_name(struct parser *parser)
{
    static const struct {
        const char *names[2];
        struct value value;
    } CONSTANTS[] = {
        {{"true", "True"}, {.kind = VALUE_BOOL, .truth = true}},
        {{"false", "False"}, {.kind = VALUE_BOOL}},
        {{"none", "None"}, {.kind = VALUE_NONE}},
    };
    struct node *node = parser_node(parser, NODE_NAME);
    node->value = value_of(parser_expect_name(parser));
    for (int i = 0; i < 6; i++)
        if (strcmp(node->value.string->bytes, CONSTANTS[i / 2].names[i % 2]) == 0) {
            node->type = NODE_CONSTANT;
            node->value = CONSTANTS[i / 2].value;
            break;
        }
    if (strcmp(node->value.kind == VALUE_STRING ? node->value.string->bytes : "", "self") == 0 &&
        !is_assigned(parser, "self"))
        parser_fail(parser, "self, of blocks, is not supported");
    return node;
}

static struct node *parse_primary(struct parser *parser)
{
    if (parser->at->type == TOKEN_NAME)
        return parse_name(parser);
    if (parser->at->type == TOKEN_STRING)
        return parse_strings(parser);
    if (parser->at->type == TOKEN_NUMBER) {
        struct node *node = parser_node(parser, NODE_CONSTANT);
        node->value = parser->at++->value;
        return node;
    }
    if (parser_take_op(parser, '(')) {
        struct node *node = tuple_of(parser, true, true);
        parser_expect_op(parser, ')');
        return node;
    }
    if (parser_is_op(parser, '['))
        return parse_list(parser);
    if (parser_is_op(parser, '{'))
        return parse_dict(parser);
    parser_fail(parser, "expected an expression");
}

/* What follows a value. */

/* Arguments, from the opening bracket to the closing one. */
static struct node *parse_args(struct parser *parser)
{
    struct node *first = NULL, **end = &first;
    bool named = false;
    parser_expect_op(parser, '(');
    while (!parser_take_op(parser, ')')) {
        if (first)
            parser_expect_op(parser, ',');
        if (parser_take_op(parser, ')'))
            break;
        if (parser_is_op(parser, '*') || parser_is_op(parser, OP_POWER)) {
            struct node *spread = parser_node(parser, NODE_SPREAD);
            if (parser_take_op(parser, OP_POWER))
                spread->type = NODE_SPREAD_NAMED;
            else
                parser_expect_op(parser, '*');
            spread->a = parse_expression(parser, true);
            end = parser_append(end, spread);
            continue;
        }
        bool keyword = parser->at->type == TOKEN_NAME && parser->at[1].type == TOKEN_OPERATOR &&
                       parser->at[1].op == '=';
        if (named && !keyword)
            parser_fail(parser, "an argument without a name behind one with a name");
        named |= keyword;
        if (!keyword) {
            end = parser_append(end, parse_expression(parser, true));
            continue;
        }
        struct node *node = parser_node(parser, NODE_KEYWORD);
        node->value = value_of(parser_expect_name(parser));
        parser_expect_op(parser, '=');
        node->a = parse_expression(parser, true);
        end = parser_append(end, node);
    }
    return first;
}

/* What we lack of what can be called. */
static void refuse_call(struct parser *parser, const struct node *of)
{
    bool method = of->type == NODE_ATTRIBUTE, function = of->type == NODE_NAME;
    if (!method && !function)
        return;
    const char *name = of->value.string->bytes;
    if (method && builtin_lacks(BUILTIN_LACKS_METHOD, name))
        parser_fail(parser, "the method %s is not supported", name);
    if (function && builtin_lacks(BUILTIN_LACKS_FUNCTION, name) && !is_assigned(parser, name))
        parser_fail(parser, "the function %s is not supported", name);
}

static struct node *parse_call(struct parser *parser, struct node *of)
{
    struct node *node = node_at(parser, NODE_CALL, of);
    refuse_call(parser, of);
    node->a = of;
    node->list = parse_args(parser);
    return node;
}

/* One part of a slice, if there is one. */
static struct node *parse_bound(struct parser *parser)
{
    if (parser_is_op(parser, ':') || parser_is_op(parser, ']'))
        return NULL;
    return parse_expression(parser, true);
}

static struct node *parse_item(struct parser *parser, struct node *of)
{
    struct node *node = node_at(parser, NODE_ITEM, of);
    node->a = of;
    node->b = parse_bound(parser);
    if (parser_take_op(parser, ':')) {
        node->type = NODE_SLICE;
        node->c = parse_bound(parser);
        if (parser_take_op(parser, ':'))
            node->d = parse_bound(parser);
    } else if (!node->b) {
        parser_fail(parser, "expected an expression");
    }
    if (parser_is_op(parser, ',')) {
        struct node *tuple = node_at(parser, NODE_TUPLE, of), **end;
        if (node->type == NODE_SLICE)
            parser_fail(parser, "slices among subscripts are not supported");
        end = parser_append(&tuple->list, node->b);
        while (parser_take_op(parser, ','))
            end = parser_append(end, parse_expression(parser, true));
        node->b = tuple;
    }
    parser_expect_op(parser, ']');
    return node;
}

static struct node *parse_attribute(struct parser *parser, struct node *of)
{
    struct node *node = node_at(parser, NODE_ATTRIBUTE, of);
    node->a = of;
    if (parser->at->type == TOKEN_NUMBER && parser->at->value.kind == VALUE_INT) {
        node->type = NODE_ITEM;
        node->b = parse_primary(parser);
    } else {
        node->value = value_of(parser_expect_name(parser));
    }
    return node;
}

static struct node *parse_postfix(struct parser *parser, struct node *node)
{
    for (;;) {
        heap_work(parser->heap, 0);
        if (parser_take_op(parser, '.'))
            node = parse_attribute(parser, node);
        else if (parser_take_op(parser, '['))
            node = parse_item(parser, node);
        else if (parser_is_op(parser, '('))
            node = parse_call(parser, node);
        else
            return node;
    }
}

/* Takes the name of a filter or test. One that Jinja has and we lack is refused wherever it is. */
static void take_builtin(struct parser *parser, const struct builtin *table, struct node *node)
{
    const struct token *token = parser->at;
    node->value = value_of(parser_expect_name(parser));
    node->builtin = builtin_find(table, node->value.string->bytes);
    if (!node->builtin && table == builtins_filters &&
        builtin_lacks(BUILTIN_LACKS_FILTER, node->value.string->bytes)) {
        parser->at = token;
        parser_fail(parser, "the filter %.60s is not supported", node->value.string->bytes);
    }
    if (!node->builtin && !parser->branch && !parser->unknown)
        parser->unknown = token;
}

static struct node *parse_filter(struct parser *parser, struct node *of)
{
    struct node *node = parser_node(parser, NODE_FILTER);
    node->a = of;
    take_builtin(parser, builtins_filters, node);
    if (parser_is_op(parser, '('))
        node->list = parse_args(parser);
    return node;
}

struct node *parse_filters(struct parser *parser, struct node *of)
{
    do {
        heap_work(parser->heap, 0);
        of = parse_filter(parser, of);
    } while (parser_take_op(parser, '|'));
    return of;
}

static struct node *parse_test(struct parser *parser, struct node *of)
{
    bool negated = parser_take_name(parser, "not");
    struct node *node = node_at(parser, NODE_TEST, of);
    node->a = of;
    take_builtin(parser, builtins_tests, node);
    bool literal = parser->at->type == TOKEN_STRING || parser->at->type == TOKEN_NUMBER ||
                   parser_is_op(parser, '[') || parser_is_op(parser, '{');
    bool name = parser->at->type == TOKEN_NAME && !parser_is_name(parser, "else") &&
                !parser_is_name(parser, "or") && !parser_is_name(parser, "and");
    if (name && parser_is_name(parser, "is"))
        parser_fail(parser, "tests cannot be chained with is");
    if (parser_is_op(parser, '('))
        node->list = parse_args(parser);
    else if (literal || name)
        node->list = parse_postfix(parser, parse_primary(parser));
    if (!negated)
        return node;
    struct node *not = node_at(parser, NODE_NOT, node);
    not ->a = node;
    return not ;
}

static struct node *parse_filters_and_tests(struct parser *parser, struct node *node)
{
    for (;;) {
        heap_work(parser->heap, 0);
        if (parser_take_op(parser, '|'))
            node = parse_filter(parser, node);
        else if (parser_take_name(parser, "is"))
            node = parse_test(parser, node);
        else if (parser_is_op(parser, '('))
            node = parse_call(parser, node);
        else
            return node;
    }
}

/* Operators, the tightest first. */

static struct node *parse_sign(struct parser *parser, bool with_filter)
{
    if (parser_is_op(parser, '-') || parser_is_op(parser, '+')) {
        struct node *node =
            parser_node(parser, parser_is_op(parser, '-') ? NODE_NEGATE : NODE_PLUS);
        parser->at++;
        node->a = parse_unary(parser, false);
        return with_filter ? parse_filters_and_tests(parser, parse_postfix(parser, node)) : node;
    }
    struct node *node = parse_postfix(parser, parse_primary(parser));
    return with_filter ? parse_filters_and_tests(parser, node) : node;
}

static struct node *parse_unary(struct parser *parser, bool with_filter)
{
    heap_enter(parser->heap);
    struct node *node = parse_sign(parser, with_filter);
    heap_leave(parser->heap);
    return node;
}

/* Operators of one rank, from left to right. */
static struct node *parse_binary(struct parser *parser, const int *ops,
                                 struct node *(*operand)(struct parser *parser))
{
    struct node *node = operand(parser);
    for (int i = 0; ops[i];) {
        heap_work(parser->heap, 0);
        if (!parser_is_op(parser, ops[i])) {
            i++;
            continue;
        }
        size_t offset = parser->at++->offset;
        node = pair(parser, NODE_BINARY, node, operand(parser));
        node->op = ops[i];
        node->offset = offset;
        i = 0;
    }
    return node;
}

static struct node *parse_operand(struct parser *parser)
{
    return parse_unary(parser, true);
}

static struct node *parse_power(struct parser *parser)
{
    return parse_binary(parser, (const int[]){OP_POWER, 0}, parse_operand);
}

static struct node *parse_product(struct parser *parser)
{
    return parse_binary(parser, (const int[]){'*', '/', OP_FLOOR_DIVIDE, '%', 0}, parse_power);
}

static struct node *parse_concat(struct parser *parser)
{
    struct node *first = parse_product(parser), *node, **end;
    if (!parser_is_op(parser, '~'))
        return first;
    node = node_at(parser, NODE_CONCAT, first);
    end = parser_append(&node->list, first);
    while (parser_take_op(parser, '~'))
        end = parser_append(end, parse_product(parser));
    return node;
}

static struct node *parse_sum(struct parser *parser)
{
    return parse_binary(parser, (const int[]){'+', '-', 0}, parse_concat);
}

static bool take_comparison(struct parser *parser, int *comparison)
{
    static const int OPS[] = {OP_EQUAL, OP_NOT_EQUAL, '<', OP_LESS_EQUAL, '>', OP_GREATER_EQUAL};
    for (int i = 0; i < 6; i++)
        if (parser_take_op(parser, OPS[i])) {
            *comparison = COMPARE_EQUAL + i;
            return true;
        }
    *comparison = COMPARE_IN;
    if (parser_take_name(parser, "in"))
        return true;
    const struct token *next = parser->at + 1;
    if (!parser_is_name(parser, "not") || next->type != TOKEN_NAME ||
        strcmp(next->value.string->bytes, "in") != 0)
        return false;
    parser->at += 2;
    *comparison = COMPARE_NOT_IN;
    return true;
}

static struct node *parse_compare(struct parser *parser)
{
    struct node *first = parse_sum(parser), *list = NULL, **end = &list;
    int comparison;
    for (;;) {
        struct node *node = parser_node(parser, NODE_COMPARISON);
        if (!take_comparison(parser, &comparison))
            break;
        node->op = comparison;
        node->a = parse_sum(parser);
        end = parser_append(end, node);
    }
    if (!list)
        return first;
    struct node *compare = node_at(parser, NODE_COMPARE, first);
    compare->a = first;
    compare->list = list;
    return compare;
}

static struct node *parse_not(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_NOT);
    if (!parser_take_name(parser, "not"))
        return parse_compare(parser);
    heap_enter(parser->heap);
    node->a = parse_not(parser);
    heap_leave(parser->heap);
    return node;
}

static struct node *parse_and(struct parser *parser)
{
    struct node *node = parse_not(parser);
    while (parser_take_name(parser, "and"))
        node = pair(parser, NODE_AND, node, parse_not(parser));
    return node;
}

static struct node *parse_or(struct parser *parser)
{
    struct node *node = parse_and(parser);
    while (parser_take_name(parser, "or"))
        node = pair(parser, NODE_OR, node, parse_and(parser));
    return node;
}

struct node *parse_expression(struct parser *parser, bool condition)
{
    heap_enter(parser->heap);
    const struct token *unknown = parser->unknown;
    bool branch = parser->branch;
    struct node *node = parse_or(parser);
    while (condition && parser_take_name(parser, "if")) {
        parser->unknown = unknown; /* what stands before this `if` is its branch */
        parser_branch(parser, true);
        node = pair(parser, NODE_CONDITION, node, parse_or(parser));
        if (parser_take_name(parser, "else"))
            node->c = parse_expression(parser, true);
    }
    parser_branch(parser, branch);
    heap_leave(parser->heap);
    return node;
}
