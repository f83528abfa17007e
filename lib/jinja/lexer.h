/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a template into tokens, with jinja2's control of white space. */
#ifndef LIB_JINJA_LEXER_H
#define LIB_JINJA_LEXER_H

#include "lib/jinja/value.h"

enum token_type {
    TOKEN_END,      /* of the template */
    TOKEN_DATA,     /* text outside of tags */
    TOKEN_VARIABLE, /* {{ and }} */
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK, /* {% and %} */
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_NUMBER,
    TOKEN_OPERATOR,
};

/* One of two characters is first * 256 + second. */
enum operator{
    OP_FLOOR_DIVIDE = '/' << 8 | '/',
    OP_POWER = '*' << 8 | '*',
    OP_EQUAL = '=' << 8 | '=',
    OP_NOT_EQUAL = '!' << 8 | '=',
    OP_LESS_EQUAL = '<' << 8 | '=',
    OP_GREATER_EQUAL = '>' << 8 | '=',
};

struct token {
    enum token_type type;
    int op; /* a character, or an enum operator */
    size_t offset;
    struct value value; /* DATA, NAME, STRING: a string; NUMBER */
};

struct token_array {
    struct token *items; /* [count], the last is TOKEN_END */
    size_t count, capacity;
};

/* Of heap->source. */
struct token_array lexer_run(struct heap *heap);

#endif
