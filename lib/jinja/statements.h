/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out the statements of a template. */
#ifndef LIB_JINJA_STATEMENTS_H
#define LIB_JINJA_STATEMENTS_H

#include "lib/jinja/run.h"

/* Of a whole template. */
void statements_run(struct run *run, const struct node *first);

#endif
