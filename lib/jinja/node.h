/* SPDX-License-Identifier: Apache-2.0 */
/* A compiled template: a tree of nodes. */
#ifndef LIB_JINJA_NODE_H
#define LIB_JINJA_NODE_H

#include "lib/jinja/value.h"

struct builtin;

/* `list`, `more` and `params` are lists by `next`. */
enum node_type {
    NODE_CONSTANT,     /* value */
    NODE_NAME,         /* value: the name */
    NODE_LIST,         /* list */
    NODE_TUPLE,        /* list */
    NODE_DICT,         /* list of NODE_PAIR */
    NODE_PAIR,         /* a: b */
    NODE_ATTRIBUTE,    /* a.value */
    NODE_ITEM,         /* a[b] */
    NODE_SLICE,        /* a[b:c:d]; b, c, d may be NULL */
    NODE_CALL,         /* a(list) */
    NODE_KEYWORD,      /* value=a, of a call; a parameter, whose default is a or NULL */
    NODE_SPREAD,       /* *a, of a call */
    NODE_SPREAD_NAMED, /* **a, of a call */
    NODE_FILTER,       /* a | builtin(list), called value; a NULL: what the block has written */
    NODE_TEST,         /* a is builtin(list), called value */
    NODE_NOT,          /* not a */
    NODE_NEGATE,       /* -a */
    NODE_PLUS,         /* +a */
    NODE_BINARY,       /* a op b */
    NODE_AND,          /* a and b */
    NODE_OR,           /* a or b */
    NODE_CONCAT,       /* list, joined by ~ */
    NODE_COMPARE,      /* a, compared with a list of NODE_COMPARISON */
    NODE_COMPARISON,   /* op a */
    NODE_CONDITION,    /* a if b else c; c may be NULL */

    NODE_DATA,         /* value */
    NODE_OUTPUT,       /* {{ a }} */
    NODE_IF,           /* if a: list, else: more */
    NODE_FOR,          /* for a in b if c (or NULL): list, else: more; op: it is recursive */
    NODE_SET,          /* set a = b */
    NODE_SET_BLOCK,    /* set a (| b, or NULL): list */
    NODE_MACRO,        /* macro value(params): list; op: enum macro_uses */
    NODE_CALL_BLOCK,   /* call(params) a: list; op: as of a macro */
    NODE_WITH,         /* with params (NODE_PAIR): list */
    NODE_FILTER_BLOCK, /* filter b: list */
    NODE_GENERATION,   /* generation: list */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum comparison {
    COMPARE_EQUAL,
    COMPARE_NOT_EQUAL,
    COMPARE_LESS,
    COMPARE_LESS_EQUAL,
    COMPARE_GREATER,
    COMPARE_GREATER_EQUAL,
    COMPARE_IN,
    COMPARE_NOT_IN,
};

/* What a macro mentions, and so gets. */
enum macro_uses { MACRO_VARARGS = 1, MACRO_KWARGS = 2, MACRO_CALLER = 4 };

struct node {
    enum node_type type;
    int op; /* BINARY: as a token's; COMPARISON: enum comparison */
    size_t offset;
    struct value value;
    struct node *a, *b, *c, *d;
    struct node *list, *more, *params;
    struct node *next;
    const struct builtin *builtin; /* NULL: it is unknown */
};

#endif
