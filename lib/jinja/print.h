/* SPDX-License-Identifier: Apache-2.0 */
/* Values as text: as Python's str and repr, and as json.dumps. All is written to the output. */
#ifndef LIB_JINJA_PRINT_H
#define LIB_JINJA_PRINT_H

#include "lib/jinja/run.h"

void print_value(struct run *run, struct value value); /* str() */
void print_repr(struct run *run, struct value value);
/* str(), as a string. */
struct value print_to_string(struct run *run, struct value value);

enum { PRINT_FLOAT_SIZE = 40 };
/* repr() of a float. Returns its length. */
int print_float(char text[PRINT_FLOAT_SIZE], double number);

void print_text(struct run *run, const char *text);

struct print_json {
    const struct string *indent;     /* of one level; NULL: all in one line */
    const struct string *item, *key; /* behind an item and behind a key */
    bool ensure_ascii, sort_keys;
};
void print_json(struct run *run, struct value value, const struct print_json *how);

#endif
