/* SPDX-License-Identifier: Apache-2.0 */
/* One rendering: where values, names and output are; what our functions are. */
#ifndef LIB_JINJA_RUN_H
#define LIB_JINJA_RUN_H

#include "lib/jinja/node.h"

struct scope {
    struct scope *parent; /* NULL: then come the context and the globals */
    struct dict *names;
};

struct output {
    char *bytes; /* [length] */
    size_t length, capacity;
    struct text_span *input; /* [num_input]: bytes from the context, as struct origin has them */
    size_t num_input, input_capacity;
};

struct run {
    struct heap heap;
    const json_t *context;
    const struct origin_marks *origin; /* NULL: none of it is the template's */
    struct dict *known;                /* members of the context that have been asked for */
    struct scope *scope;
    struct output *out;
    int64_t now;
};

/* The arguments of a call. */
struct named_value {
    const struct string *name;
    struct value value;
};
struct args {
    const struct value *items; /* [count] */
    size_t count;
    const struct named_value *named; /* [num_named] */
    size_t num_named;
};

/* A filter, a test, a method or a function. `given` are the values of its parameters, those that
 * are absent VALUE_MISSING. self: what is filtered, tested, or has the method. */
enum { BUILTIN_MOST_PARAMS = 8 };
struct builtin {
    const char *name;
    struct value (*run)(struct run *run, struct value self, const struct value *given,
                        const struct args *args);
    const char *params; /* names, parted by spaces; NULL: it takes `args` as they are */
    int required;       /* so many of params must be there */
};

struct loop {
    const struct node *node;
    struct scope *scope; /* where the loop stands */
    int depth;           /* 0, or how many it has called itself from */
    const struct list *items;
    size_t index;
    bool has_changed;    /* loop.changed() was called */
    struct args changed; /* with these */
};

struct macro {
    const struct node *node; /* NODE_MACRO or NODE_CALL_BLOCK */
    struct scope *scope;     /* where it was defined */
};

/* Finds `name` in a table that ends with an entry without a name; NULL: it is not there. */
const struct builtin *builtin_find(const struct builtin *table, const char *name);
/* Whether that is a name of Jinja's or Python's that templates may mean and we have not. */
enum builtin_lack { BUILTIN_LACKS_FILTER, BUILTIN_LACKS_METHOD, BUILTIN_LACKS_FUNCTION };
bool builtin_lacks(enum builtin_lack kind, const char *name);
/* Binds the arguments to the parameters, and calls. */
struct value builtin_call(struct run *run, const struct builtin *builtin, struct value self,
                          const struct args *args);

/* statements.c */
struct value macro_call(struct run *run, const struct macro *macro, const struct args *args);
/* loop(items), of a recursive loop. */
struct value loop_call(struct run *run, const struct loop *loop, const struct args *args);

/* Appends to the output: what the template or we have written, */
void output_own(struct run *run, const char *bytes, size_t length);
/* bytes [begin, end) of a string, or all of it, */
void output_part(struct run *run, const struct string *string, size_t begin, size_t end);
void output_string(struct run *run, const struct string *string);
/* what stands for the character at byte `at` of a string. */
void output_for(struct run *run, const struct string *string, size_t at, const char *bytes,
                size_t length);
/* Directs the output into *own until output_take, which makes a string of it. Returns what
 * output_take gets. */
struct output *output_begin(struct run *run, struct output *own);
struct value output_take(struct run *run, struct output *before);

#endif
