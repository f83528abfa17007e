/* SPDX-License-Identifier: Apache-2.0 */
/* Makes an automaton of what a builder has: finds what cannot end and leaves it out, how deep calls
 * must go, and left recursion. */
#ifndef LIB_GRAMMAR_BUILDER_FINISH_H
#define LIB_GRAMMAR_BUILDER_FINISH_H

#include "lib/grammar/builder.h"

/* *left_recursive: a rule that can call itself before it has read a byte, or UINT32_MAX; such an
 * automaton must not run. The caller frees *out with automaton_clear. */
int builder_finish(struct builder *builder, struct automaton *out, uint32_t *left_recursive);

#endif
