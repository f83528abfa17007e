/* SPDX-License-Identifier: Apache-2.0 */
/* The values of expressions. */
#ifndef LIB_JINJA_EVALUATE_H
#define LIB_JINJA_EVALUATE_H

#include "lib/jinja/run.h"

struct value evaluate(struct run *run, const struct node *node);

/* What the filters of a block make of `text`. */
struct value evaluate_filters(struct run *run, const struct node *filters, struct value text);

/* A call. caller: what a call block gives as `caller`, or VALUE_MISSING. */
struct value evaluate_call(struct run *run, const struct node *node, struct value caller);

#endif
