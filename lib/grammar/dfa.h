/* SPDX-License-Identifier: Apache-2.0 */
/* Deterministic automata over characters: what regular expressions become, so that they can be
 * intersected, subtracted and tried. */
#ifndef LIB_GRAMMAR_DFA_H
#define LIB_GRAMMAR_DFA_H

#include "lib/grammar/nfa.h"

enum {
    DFA_MOST_STATES = 1 << 16,
    DFA_MOST_CLASSES = 1 << 10,
    DFA_MOST_WORK = 1 << 26,
    DFA_MOST_MEMBERS = 1 << 22, /* of the sets of states that become its states */
    DFA_MOST_CELLS = 1 << 22,   /* states * classes */
};
static const uint32_t DFA_DEAD = UINT32_MAX;

/* Characters [first, that of the next interval) are of one class. */
struct dfa_interval {
    uint32_t first, class;
};

/* Zero-initialise; dfa_clear frees it. The start is state 0. From each state but perhaps the start
 * an end can be reached. */
struct dfa {
    struct dfa_interval *intervals; /* [num_intervals], from character 0 on */
    size_t num_intervals;
    uint32_t num_classes, num_states;
    uint32_t *next; /* [num_states, num_classes], DFA_DEAD: none */
    bool *final;    /* [num_states] */
    bool empty;     /* it accepts nothing */
};

int dfa_make(struct dfa *out, const struct nfa *nfa, struct error *err);
/* What both accept; or with `without` what a accepts and b does not. */
int dfa_combine(struct dfa *out, const struct dfa *a, const struct dfa *b, bool without,
                struct work *work, struct error *err);
/* Texts of `least` to `most` characters; most < 0: any number from `least` on. */
int dfa_lengths(struct dfa *out, int64_t least, int64_t most, struct work *work, struct error *err);
/* text: [length] bytes of valid UTF-8. */
bool dfa_accepts(const struct dfa *dfa, const char *text, size_t length);
void dfa_clear(struct dfa *dfa);

#endif
