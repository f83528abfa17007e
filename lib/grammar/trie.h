/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a vocabulary as a trie of their bytes, and sets of tokens. */
#ifndef LIB_GRAMMAR_TRIE_H
#define LIB_GRAMMAR_TRIE_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In the order of a search, depth first: the nodes below a node follow it. */
struct trie_node {
    uint32_t size;  /* nodes of its subtree, with itself */
    int32_t token;  /* that ends here, or -1 */
    uint32_t depth; /* bytes until here */
    uint8_t byte;
};

struct trie_token {
    const char *bytes; /* [length] in `bytes` of the trie; length 0: the token is not in it */
    uint32_t length;
    int32_t same; /* the next token of the same bytes, or -1 */
};

/* Zero-initialise; trie_clear frees it. */
struct trie {
    struct trie_token *tokens; /* [num_tokens] */
    int32_t num_tokens;
    char *bytes;             /* owned, set by the caller */
    struct trie_node *nodes; /* [num_nodes] */
    uint32_t num_nodes;
    uint32_t first[256]; /* the node of a token's first byte; num_nodes: there is none */
    uint32_t longest;    /* bytes of the longest token */
};

/* Makes the nodes. Set tokens' bytes first. */
int trie_make(struct trie *trie, struct error *err);
void trie_clear(struct trie *trie);
/* Whether a token has these bytes [length >= 1]. */
bool trie_has(const struct trie *trie, const char *bytes, size_t length);
size_t trie_bytes(const struct trie *trie);

/* Words of 32 bits in a set of tokens. */
static inline size_t trie_set_words(const struct trie *trie)
{
    return ((size_t)trie->num_tokens + 31) / 32;
}

/* Adds the tokens that end at a node. */
static inline void trie_add(const struct trie *trie, const struct trie_node *node, uint32_t *set)
{
    for (int32_t id = node->token; id >= 0; id = trie->tokens[id].same)
        set[id / 32] |= 1u << id % 32;
}

#endif
