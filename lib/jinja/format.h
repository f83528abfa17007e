/* SPDX-License-Identifier: Apache-2.0 */
/* Python's ways to format: format % values, and str.format(). */
#ifndef LIB_JINJA_FORMAT_H
#define LIB_JINJA_FORMAT_H

#include "lib/jinja/run.h"

/* values: a tuple, a dict for %(name)s, or one value. */
struct value format_percent(struct run *run, const struct string *format, struct value values);

struct value format_braces(struct run *run, const struct string *format, const struct args *args);

#endif
