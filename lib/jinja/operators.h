/* SPDX-License-Identifier: Apache-2.0 */
/* Python's operators. */
#ifndef LIB_JINJA_OPERATORS_H
#define LIB_JINJA_OPERATORS_H

#include "lib/jinja/run.h"

/* op: as a token's (lexer.h). */
struct value operators_binary(struct run *run, int op, struct value a, struct value b);
struct value operators_negate(struct run *run, struct value value);
/* With HTML's entities, as `safe` gives it. What `safe` has made stays. */
struct value operators_escaped(struct run *run, const struct string *string);
struct value operators_plus(struct run *run, struct value value);
bool operators_compare(struct run *run, enum comparison comparison, struct value a, struct value b);
bool operators_in(struct run *run, struct value item, struct value container);

#endif
