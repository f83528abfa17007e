/* SPDX-License-Identifier: Apache-2.0 */
/* A vocabulary for grammars: the trie of its tokens, and which tokens each state of the rules of
 * JSON allows by itself, whatever has called its rule. */
#ifndef LIB_GRAMMAR_GRAMMAR_VOCABULARY_H
#define LIB_GRAMMAR_GRAMMAR_VOCABULARY_H

#include "lib/grammar/automaton.h"
#include "lib/grammar/grammar.h"
#include "lib/grammar/trie.h"

/* No text has this byte. A special token is this and its content, so that it comes only where a
 * grammar asks for it by name (reply.h). */
enum { VOCABULARY_SPECIAL = 0xFF };

/* A rule ends at this node, having counted so many; what may follow depends on who called it. */
struct prefix_end {
    uint32_t node;
    int32_t count;
};

/* A token that the rule may go on with, if it may still count so many. */
struct prefix_counted {
    int32_t id, count;
};

/* What the tokens do from one state on. */
struct prefix {
    uint32_t *set; /* tokens that do not leave the rule; NULL: the state reads nothing */
    struct prefix_counted *counted; /* those of them that count, by rising count */
    size_t num_counted, counted_capacity;
    struct prefix_end *ends; /* in the trie's order */
    size_t num_ends, ends_capacity;
    uint32_t deepest; /* frames above the state's own that its tokens need */
};

struct grammar_vocabulary {
    struct trie trie;
    bool alphabet[256];      /* bytes that are tokens */
    struct automaton json;   /* of json_rules.h */
    struct prefix *prefixes; /* [json.num_states] */
    size_t bytes;
};

#endif
