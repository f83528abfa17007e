/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a template: those of Python that templates meet. Nothing of a list, tuple or dict
 * changes once it has been made, as the sandbox allows no change; so they are shared freely. */
#ifndef LIB_JINJA_VALUE_H
#define LIB_JINJA_VALUE_H

#include "lib/jinja/heap.h"

#include <jansson.h>
#include <stdbool.h>

enum value_kind {
    VALUE_MISSING, /* an argument that was not given; a template never sees it */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_RANGE,
    VALUE_VIEW,     /* of a dict: its keys, values or items */
    VALUE_ITERATOR, /* what filters as map give: can be gone through once */
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_MACRO,
    VALUE_FUNCTION, /* of ours */
    VALUE_METHOD,   /* of ours, with the value that it belongs to */
};

struct origin;
struct origin_marks;

struct string {
    size_t length;               /* bytes */
    size_t characters;           /* code points */
    const struct origin *origin; /* which bytes came from the context (origin.h); NULL: none */
    bool markup;                 /* `safe` has made it: what is joined to it is escaped */
    char bytes[];                /* UTF-8, and a NUL */
};

struct value {
    enum value_kind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        struct string *string; /* of VALUE_UNDEFINED: what is undefined, for messages */
        struct list *list;     /* LIST, TUPLE, RANGE, VIEW, ITERATOR */
        struct dict *dict;     /* DICT, NAMESPACE */
        struct loop *loop;
        struct macro *macro;
        const struct builtin *function;
        struct method *method;
    };
};

struct list {
    struct value *items; /* [count] */
    size_t count, capacity;
    bool used;     /* ITERATOR: it has been gone through */
    bool is_group; /* TUPLE: groupby's, with the attributes grouper and list */
};

struct dict_entry {
    struct value key, value;
};

struct dict {
    struct dict_entry *entries; /* [count], in the order of insertion */
    size_t count, capacity;
    uint32_t
        *table; /* [table_size], a power of two: 1 + an entry's index; NULL while it is small */
    size_t table_size;
};

struct method {
    struct value self;
    const struct builtin *function;
};

static const struct value VALUE_OF_NONE = {.kind = VALUE_NONE};

static inline struct value value_bool(bool truth)
{
    return (struct value){.kind = VALUE_BOOL, .truth = truth};
}

static inline struct value value_int(int64_t integer)
{
    return (struct value){.kind = VALUE_INT, .integer = integer};
}

static inline struct value value_float(double real)
{
    return (struct value){.kind = VALUE_FLOAT, .real = real};
}

static inline struct value value_list(enum value_kind kind, struct list *list)
{
    return (struct value){.kind = kind, .list = list};
}

static inline struct value value_of(struct string *string)
{
    return (struct value){.kind = VALUE_STRING, .string = string};
}

static inline bool value_is_number(struct value value)
{
    return value.kind >= VALUE_BOOL && value.kind <= VALUE_FLOAT;
}

/* Whether it is an int, as True and False are. */
static inline bool value_is_int(struct value value)
{
    return value.kind == VALUE_BOOL || value.kind == VALUE_INT;
}

static inline int64_t value_as_int(struct value value)
{
    return value.kind == VALUE_BOOL ? value.truth : value.integer;
}

static inline double value_as_float(struct value value)
{
    return value.kind == VALUE_FLOAT ? value.real : (double)value_as_int(value);
}

/* A string of the template, or of ours. */
struct string *value_own(struct heap *heap, const char *bytes, size_t length);
/* Bytes [begin, end) of a string. */
struct value value_part(struct heap *heap, const struct string *string, size_t begin, size_t end);
struct value value_text(struct heap *heap, const char *text);
/* Undefined; `what` is a printf format of what is. */
struct value value_undefined(struct heap *heap, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct list *value_new_list(struct heap *heap, size_t capacity);
void value_push(struct heap *heap, struct list *list, struct value item);

struct dict *value_new_dict(struct heap *heap);
/* Sets the key to the value. Fails for a key that Python cannot hash. */
void value_set(struct heap *heap, struct dict *dict, struct value key, struct value value);
/* NULL: there is no such key. */
struct value *value_find(struct heap *heap, const struct dict *dict, struct value key);
bool value_hashable(struct heap *heap, struct value value);

bool value_is_markup(struct value value);
/* A string as `safe` makes it, or a list or tuple of them; other values as they are. */
struct value value_markup(struct heap *heap, struct value value);

/* What Python takes for true. */
bool value_true(struct value value);
/* ==. */
bool value_equal(struct heap *heap, struct value a, struct value b);
/* -1, 0, 1, or VALUE_UNORDERED beside a NaN; fails where Python has no order, with `op` in the
 * message. */
enum { VALUE_UNORDERED = 2 };
int value_compare(struct heap *heap, struct value a, struct value b, const char *op);

/* The name of Python's type, for messages. */
const char *value_type(struct value value);
/* What "for" goes through. Fails where that is nothing. */
struct list *value_items(struct heap *heap, struct value value);
/* The number of items or characters; -1: it has none. */
int64_t value_length(struct value value);

/* A value of the context; marks: struct run's. */
struct value value_from_json(struct heap *heap, const json_t *json,
                             const struct origin_marks *marks);

#endif
