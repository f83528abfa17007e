/* SPDX-License-Identifier: Apache-2.0 */
/* Automata over characters with choices, from which dfa.h makes deterministic ones. */
#ifndef LIB_GRAMMAR_NFA_H
#define LIB_GRAMMAR_NFA_H

#include "lib/grammar/charset.h"
#include "lib/grammar/work.h"

enum { NFA_MOST_EDGES = 1 << 18 };

struct nfa_edge {
    uint32_t from, to;
    int32_t set; /* of characters; -1: none is read */
};

/* Zero-initialise; nfa_clear frees it. State 0 is the start, state 1 the end. */
struct nfa {
    struct work *work; /* borrowed; a dfa made of it counts there too */
    uint32_t num_states;
    struct nfa_edge *edges; /* [num_edges] */
    size_t num_edges, edges_capacity;
    struct charset *sets; /* [num_sets], each once */
    size_t num_sets, sets_capacity;
};

/* Makes states 0 and 1. */
int nfa_begin(struct nfa *nfa, struct work *work, struct error *err);
uint32_t nfa_state(struct nfa *nfa);
/* set: -1 or of nfa_set. */
int nfa_edge(struct nfa *nfa, uint32_t from, uint32_t to, int32_t set, struct error *err);
/* Takes over the set, normalized, also on failure. Returns its number, or -1. */
int32_t nfa_set(struct nfa *nfa, struct charset *set, struct error *err);
/* One character. */
int32_t nfa_character(struct nfa *nfa, uint32_t c, struct error *err);
void nfa_clear(struct nfa *nfa);

#endif
