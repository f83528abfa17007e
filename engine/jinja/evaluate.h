/* SPDX-License-Identifier: Apache-2.0 */
/* The values of expressions. */
#ifndef ENGINE_JINJA_EVALUATE_H
#define ENGINE_JINJA_EVALUATE_H

#include "engine/jinja/run.h"

struct value evaluate(struct run *run, const struct node *node);

/* What the filters of a block make of `text`. */
struct value evaluate_filters(struct run *run, const struct node *filters, struct value text);

#endif
