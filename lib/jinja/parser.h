/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a tree of a template's tokens. */
#ifndef LIB_JINJA_PARSER_H
#define LIB_JINJA_PARSER_H

#include "lib/jinja/lexer.h"
#include "lib/jinja/node.h"

struct parser {
    struct heap *heap;
    const struct token *at; /* the next token */
    const struct token_array *tokens;
    int loops; /* that a break or continue here would end */
    /* Jinja looks for the filters and tests of a branch of an `if` when it gets there, but for
     * those in a block inside of it, and for all others at once. */
    bool branch;
    const struct token *unknown; /* the first of those others that is unknown, or NULL */
};

/* The statements of a whole template. */
struct node *parser_run(struct heap *heap, const struct token_array *tokens);

/* For the two files of the parser. */

struct node *parser_node(struct parser *parser, enum node_type type);
_Noreturn void parser_fail(struct parser *parser, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool parser_is_op(const struct parser *parser, int op);
bool parser_is_name(const struct parser *parser, const char *name);
/* Goes behind such a token if it is the next one. */
bool parser_take_op(struct parser *parser, int op);
bool parser_take_name(struct parser *parser, const char *name);
void parser_expect_op(struct parser *parser, int op);
struct string *parser_expect_name(struct parser *parser);
/* Sets `branch`; returns what it was. */
bool parser_branch(struct parser *parser, bool branch);
/* Appends to a list by `next`: returns where the next one goes. */
struct node **parser_append(struct node **end, struct node *node);

/* parse_expression.c */

/* With `condition` a conditional expression may stand there. */
struct node *parse_expression(struct parser *parser, bool condition);
/* The same, or several with commas: a tuple. */
struct node *parse_tuple(struct parser *parser, bool condition);
/* What may be assigned to: names, also several, and with `attribute` one of a namespace. */
struct node *parse_target(struct parser *parser, bool attribute);
/* Filters, from a name on (`trim | upper`), of what `of` is. */
struct node *parse_filters(struct parser *parser, struct node *of);

#endif
