/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the tokens that a set of readings may go on with: walks the trie of the vocabulary. */
#ifndef LIB_GRAMMAR_WALK_H
#define LIB_GRAMMAR_WALK_H

#include "lib/grammar/readings.h"
#include "lib/grammar/trie.h"

struct walk_level {
    size_t items, frames; /* where the set of this depth begins; frames before it */
};

struct walk {
    const struct trie *trie; /* borrowed */
    struct readings *readings;
    uint32_t *set;             /* the tokens that were found are added to it */
    struct walk_level *levels; /* [longest + 2] */
    size_t visited;            /* nodes */
    /* Called for each node that the readings reach, unless NULL: set items [from, count). */
    void (*at_node)(void *context, uint32_t node, size_t from);
    void *context;
};

int walk_init(struct walk *walk, const struct trie *trie, struct readings *readings,
              struct error *err);
void walk_clear(struct walk *walk);

/* All tokens, from the set of items [from, count). The array is as before afterwards. */
int walk_all(struct walk *walk, size_t from, struct error *err);
/* The tokens whose beginning, up to `node`, has been read. */
int walk_below(struct walk *walk, uint32_t node, size_t from, struct error *err);

#endif
