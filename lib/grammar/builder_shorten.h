/* SPDX-License-Identifier: Apache-2.0 */
/* Takes jumps out of what a builder has: a state that jumps to one that only reads a few bytes
 * reads them itself, and one that jumps to its rule's end is an end. So most states only read
 * bytes, which is what readings.h is fastest with. */
#ifndef LIB_GRAMMAR_BUILDER_SHORTEN_H
#define LIB_GRAMMAR_BUILDER_SHORTEN_H

#include "lib/grammar/builder.h"

/* is_final [num_states] has the ends of rules; states that become ends are added. */
int builder_shorten(struct builder *builder, bool *is_final);

#endif
