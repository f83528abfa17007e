/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes, items and slices of values, as jinja2's sandbox finds them. */
#ifndef LIB_JINJA_ACCESS_H
#define LIB_JINJA_ACCESS_H

#include "lib/jinja/run.h"

/* value.name: first an attribute or method, then an item; with `attribute_only` no item. */
struct value access_attribute(struct run *run, struct value value, const struct string *name,
                              bool attribute_only);
/* value[key]: first an item, then an attribute. */
struct value access_item(struct run *run, struct value value, struct value key);
/* value[from:to:step]; a bound of VALUE_MISSING or None is absent. */
struct value access_slice(struct run *run, struct value value, struct value from, struct value to,
                          struct value step);

/* The bytes of the character of that index, which is in [0, characters]. */
size_t access_offset(struct run *run, const struct string *string, size_t character);

#endif
