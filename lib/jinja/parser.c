/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct node *parser_node(struct parser *parser, enum node_type type)
{
    struct node *node = heap_alloc(parser->heap, 1, sizeof *node);
    node->type = type;
    node->offset = parser->at->offset;
    return node;
}

_Noreturn void parser_fail(struct parser *parser, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    parser->heap->offset = parser->at->offset;
    heap_fail(parser->heap, ERROR_INVALID, "%s", text);
}

bool parser_is_op(const struct parser *parser, int op)
{
    return parser->at->type == TOKEN_OPERATOR && parser->at->op == op;
}

bool parser_is_name(const struct parser *parser, const char *name)
{
    return parser->at->type == TOKEN_NAME && strcmp(parser->at->value.string->bytes, name) == 0;
}

bool parser_take_op(struct parser *parser, int op)
{
    bool is = parser_is_op(parser, op);
    parser->at += is;
    return is;
}

bool parser_take_name(struct parser *parser, const char *name)
{
    bool is = parser_is_name(parser, name);
    parser->at += is;
    return is;
}

void parser_expect_op(struct parser *parser, int op)
{
    if (!parser_take_op(parser, op))
        parser_fail(parser, "expected %c", op & 0x7F);
}

struct string *parser_expect_name(struct parser *parser)
{
    if (parser->at->type != TOKEN_NAME)
        parser_fail(parser, "expected a name");
    return parser->at++->value.string;
}

bool parser_branch(struct parser *parser, bool branch)
{
    bool before = parser->branch;
    parser->branch = branch;
    return before;
}

struct node **parser_append(struct node **end, struct node *node)
{
    *end = node;
    return &node->next;
}

/* Statements. */

static struct node *parse_until(struct parser *parser, const struct node *begin,
                                const char *const *ends, int *which);

static void expect_block_end(struct parser *parser)
{
    if (parser->at->type != TOKEN_BLOCK_END)
        parser_fail(parser, "expected the end of this tag");
    parser->at++;
}

/* The statements up to the tag that ends the block, behind which the parser then is. */
static struct node *parse_body(struct parser *parser, const struct node *begin, const char *end)
{
    int which;
    bool branch = parser_branch(parser, false);
    struct node *body = parse_until(parser, begin, (const char *const[]){end, NULL}, &which);
    expect_block_end(parser);
    parser_branch(parser, branch);
    return body;
}

/* The same, where what is written is taken, so that no loop can be left. */
static struct node *parse_captured(struct parser *parser, const struct node *begin, const char *end)
{
    int loops = parser->loops;
    parser->loops = 0;
    struct node *body = parse_body(parser, begin, end);
    parser->loops = loops;
    return body;
}

/* Filters of what a block writes. */
static struct node *parse_block_filters(struct parser *parser)
{
    bool branch = parser_branch(parser, false);
    struct node *filters = parse_filters(parser, NULL);
    parser_branch(parser, branch);
    return filters;
}

static struct node *parse_if(struct parser *parser)
{
    static const char *const ENDS[] = {"endif", "else", "elif", NULL};
    struct node *first = NULL, **place = &first;
    bool branch = parser_branch(parser, true);
    int which;
    do {
        struct node *node = *place = parser_node(parser, NODE_IF);
        node->a = parse_tuple(parser, false);
        expect_block_end(parser);
        node->list = parse_until(parser, node, ENDS, &which);
        place = &node->more;
        if (which == 1) {
            expect_block_end(parser);
            node->more = parse_until(parser, first, (const char *const[]){"endif", NULL}, &which);
        }
    } while (which == 2);
    expect_block_end(parser);
    parser_branch(parser, branch);
    return first;
}

static struct node *parse_for(struct parser *parser)
{
    static const char *const ENDS[] = {"endfor", "else", NULL};
    struct node *node = parser_node(parser, NODE_FOR);
    int which;
    node->a = parse_target(parser, false);
    if (node->a->type == NODE_NAME && strcmp(node->a->value.string->bytes, "loop") == 0)
        parser_fail(parser, "cannot assign to loop");
    if (!parser_take_name(parser, "in"))
        parser_fail(parser, "expected in");
    node->b = parse_tuple(parser, false);
    bool branch = parser_branch(parser, false);
    if (parser_take_name(parser, "if"))
        node->c = parse_expression(parser, true);
    node->op = parser_take_name(parser, "recursive");
    expect_block_end(parser);
    parser->loops++;
    node->list = parse_until(parser, node, ENDS, &which);
    parser->loops--;
    if (which == 1) {
        expect_block_end(parser);
        node->more = parse_until(parser, node, (const char *const[]){"endfor", NULL}, &which);
    }
    expect_block_end(parser);
    parser_branch(parser, branch);
    return node;
}

static struct node *parse_set(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_SET);
    node->a = parse_target(parser, true);
    if (parser_take_op(parser, '=')) {
        node->b = parse_tuple(parser, true);
        expect_block_end(parser);
        return node;
    }
    node->type = NODE_SET_BLOCK;
    if (parser_take_op(parser, '|'))
        node->b = parse_block_filters(parser);
    expect_block_end(parser);
    node->list = parse_captured(parser, node, "endset");
    return node;
}

/* What of that the tokens [begin, end) mention: not as an attribute or the name of an argument. */
static int uses(const struct token *begin, const struct token *end)
{
    static const char *const SPECIAL[] = {"varargs", "kwargs", "caller"};
    int found = 0;
    for (const struct token *token = begin; token < end; token++) {
        bool attribute = token[-1].type == TOKEN_OPERATOR && token[-1].op == '.';
        for (int i = 0; i < 3 && token->type == TOKEN_NAME && !attribute; i++)
            if (strcmp(token->value.string->bytes, SPECIAL[i]) == 0)
                found |= 1 << i;
    }
    return found;
}

/* A parameter of that name takes the place of what Jinja gives. */
static int without_params(int found, const struct node *params)
{
    for (; params; params = params->next)
        found &= strcmp(params->value.string->bytes, "varargs") == 0  ? ~MACRO_VARARGS
                 : strcmp(params->value.string->bytes, "kwargs") == 0 ? ~MACRO_KWARGS
                 : strcmp(params->value.string->bytes, "caller") == 0 ? ~MACRO_CALLER
                                                                      : ~0;
    return found;
}

/* Parameters, from behind the opening bracket on. */
static struct node *parse_params(struct parser *parser)
{
    struct node *params = NULL, **end = &params;
    bool defaults = false;
    while (!parser_take_op(parser, ')')) {
        if (params)
            parser_expect_op(parser, ',');
        struct node *param = parser_node(parser, NODE_KEYWORD);
        param->value = value_of(parser_expect_name(parser));
        if (parser_take_op(parser, '='))
            param->a = parse_expression(parser, true);
        else if (defaults)
            parser_fail(parser, "a parameter without a default behind one with a default");
        defaults |= param->a != NULL;
        end = parser_append(end, param);
    }
    return params;
}

static void parse_macro_body(struct parser *parser, struct node *node, const char *end)
{
    expect_block_end(parser);
    const struct token *begin = parser->at;
    node->list = parse_captured(parser, node, end);
    node->op = without_params(uses(begin, parser->at), node->params);
}

static struct node *parse_macro(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_MACRO);
    bool branch = parser_branch(parser, false);
    node->value = value_of(parser_expect_name(parser));
    parser_expect_op(parser, '(');
    node->params = parse_params(parser);
    parse_macro_body(parser, node, "endmacro");
    parser_branch(parser, branch);
    return node;
}

static struct node *parse_call_block(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_CALL_BLOCK);
    bool branch = parser_branch(parser, false);
    node->value = value_text(parser->heap, "caller");
    if (parser_take_op(parser, '('))
        node->params = parse_params(parser);
    node->a = parse_expression(parser, true);
    if (node->a->type != NODE_CALL)
        parser_fail(parser, "expected a call");
    parse_macro_body(parser, node, "endcall");
    parser_branch(parser, branch);
    return node;
}

static struct node *parse_with(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_WITH), **end = &node->params;
    while (parser->at->type != TOKEN_BLOCK_END) {
        if (node->params)
            parser_expect_op(parser, ',');
        struct node *pair = parser_node(parser, NODE_PAIR);
        pair->a = parser_node(parser, NODE_NAME);
        pair->a->value = value_of(parser_expect_name(parser));
        parser_expect_op(parser, '=');
        pair->b = parse_expression(parser, true);
        end = parser_append(end, pair);
    }
    expect_block_end(parser);
    node->list = parse_body(parser, node, "endwith");
    return node;
}

static struct node *parse_filter_block(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_FILTER_BLOCK);
    node->b = parse_block_filters(parser);
    expect_block_end(parser);
    node->list = parse_captured(parser, node, "endfilter");
    return node;
}

static struct node *parse_generation(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_GENERATION);
    expect_block_end(parser);
    node->list = parse_captured(parser, node, "endgeneration");
    return node;
}

static struct node *parse_jump(struct parser *parser, enum node_type type)
{
    struct node *node = parser_node(parser, type);
    if (parser->loops == 0)
        parser_fail(parser, "there is no loop here to leave");
    expect_block_end(parser);
    return node;
}

static struct node *parse_break(struct parser *parser)
{
    return parse_jump(parser, NODE_BREAK);
}

static struct node *parse_continue(struct parser *parser)
{
    return parse_jump(parser, NODE_CONTINUE);
}

static struct node *parse_statement(struct parser *parser)
{
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *parser);
    } STATEMENTS[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"with", parse_with},
        {"filter", parse_filter_block},
        {"generation", parse_generation},
        {"break", parse_break},
        {"continue", parse_continue},
    };
    for (size_t i = 0; i < sizeof STATEMENTS / sizeof *STATEMENTS; i++)
        if (parser_take_name(parser, STATEMENTS[i].name))
            return STATEMENTS[i].parse(parser);
    if (parser->at->type == TOKEN_NAME)
        parser_fail(parser, "the tag %.60s is not supported", parser->at->value.string->bytes);
    parser_fail(parser, "expected the name of a tag");
}

static struct node *parse_output(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_OUTPUT);
    parser->at++;
    node->a = parse_tuple(parser, true);
    if (parser->at->type != TOKEN_VARIABLE_END)
        parser_fail(parser, "expected the end of this output");
    parser->at++;
    return node;
}

static struct node *parse_data(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_DATA);
    node->value = parser->at++->value;
    return node;
}

/* The statements up to a tag of `ends`, of which *which is the index; behind its name. NULL: up to
 * the end of the template. */
static struct node *parse_until(struct parser *parser, const struct node *begin,
                                const char *const *ends, int *which)
{
    struct node *first = NULL, **end = &first;
    heap_enter(parser->heap);
    for (;;) {
        heap_work(parser->heap, 0);
        if (parser->at->type == TOKEN_END && !ends)
            break;
        if (parser->at->type == TOKEN_END) {
            parser->heap->offset = begin->offset;
            heap_fail(parser->heap, ERROR_INVALID, "this block has no %s", ends[0]);
        }
        if (parser->at->type == TOKEN_DATA) {
            end = parser_append(end, parse_data(parser));
            continue;
        }
        if (parser->at->type == TOKEN_VARIABLE) {
            end = parser_append(end, parse_output(parser));
            continue;
        }
        parser->at++;
        int i = 0;
        while (ends && ends[i] && !parser_is_name(parser, ends[i]))
            i++;
        if (ends && ends[i]) {
            parser->at++;
            *which = i;
            break;
        }
        end = parser_append(end, parse_statement(parser));
    }
    heap_leave(parser->heap);
    return first;
}

struct node *parser_run(struct heap *heap, const struct token_array *tokens)
{
    struct parser parser = {.heap = heap, .at = tokens->items, .tokens = tokens};
    struct node *statements = parse_until(&parser, NULL, NULL, NULL);
    if (parser.unknown) {
        parser.at = parser.unknown;
        parser_fail(&parser, "the filter or test %.60s is not supported",
                    parser.at->value.string->bytes);
    }
    return statements;
}
