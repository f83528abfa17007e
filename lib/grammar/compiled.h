/* SPDX-License-Identifier: Apache-2.0 */
/* What a compiled grammar is made of, for matchers. */
#ifndef LIB_GRAMMAR_COMPILED_H
#define LIB_GRAMMAR_COMPILED_H

#include "lib/grammar/automaton.h"
#include "lib/grammar/grammar_vocabulary.h"
#include "lib/grammar/mask_cache.h"

#include <stdatomic.h>

struct grammar {
    atomic_uint shares;
    const struct grammar_vocabulary *vocabulary; /* borrowed */
    struct automaton automaton;
    uint32_t root; /* a rule */
    struct mask_cache *masks;
    unsigned annotations; /* that its schemas have: a set (grammar.h) */
    struct mask *first;   /* of all texts, where it took long to make; else NULL */
};

struct grammar_matcher;
/* The mask that was asked for last, if it is one that grammars keep: a share of it. Else NULL. */
struct mask *matcher_kept(const struct grammar_matcher *matcher);

#endif
