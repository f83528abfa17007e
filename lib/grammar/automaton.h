/* SPDX-License-Identifier: Apache-2.0 */
/* The automaton of a grammar: rules of states that read bytes and call other rules.
 *
 * A state may read a byte of a range, call a rule and go on in another state when that rule ends,
 * or go on in another state at once. A rule begins in its start and ends in its only final state.
 * Two counters of the call count what the rule must still do (low) and may still do (high): some
 * edges count, and no rule ends before low is 0. So limits of lengths need no states of their own.
 *
 * builder.h makes one. It never changes. */
#ifndef LIB_GRAMMAR_AUTOMATON_H
#define LIB_GRAMMAR_AUTOMATON_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AUTOMATON_MOST_DEPTH = 128,      /* calls within calls, unless an automaton has fewer */
    AUTOMATON_NEVER = 255,           /* a need: no end can be reached */
    AUTOMATON_NO_LIMIT = 0x7fffffff, /* of high: nothing is counted */
};

enum automaton_edge_flag {
    EDGE_COUNTS = 1, /* needs high > 0; lowers both */
    EDGE_ENDS = 2,   /* needs low = 0 */
};

struct automaton_edge {
    uint32_t to;
    uint8_t first, last; /* bytes */
    uint8_t flags;       /* of enum automaton_edge_flag */
};

struct automaton_call {
    uint32_t rule, to;
    int32_t low, high; /* what its counters begin with */
};

enum automaton_state_flag {
    STATE_FINAL = 1,
    STATE_TAIL = 2,  /* nothing but the rule's end can follow: a call from it needs no frame */
    STATE_PLAIN = 4, /* it neither calls nor jumps */
};

/* What leaves state i are items [x_at, that of state i + 1) of each array. */
struct automaton_state {
    uint32_t edge_at, call_at, jump_at;
    uint8_t need;  /* calls within calls until the rule's end, at least */
    uint8_t flags; /* of enum automaton_state_flag */
};

struct automaton {
    struct automaton_state *states; /* [num_states + 1] */
    uint32_t num_states;
    struct automaton_edge *edges;
    struct automaton_call *calls;
    uint32_t *jumps;  /* states that are entered at once */
    uint32_t *starts; /* [num_rules] */
    uint32_t num_rules;
    uint32_t most_depth; /* of calls within calls */
    size_t bytes;
};

void automaton_clear(struct automaton *automaton);

#endif
