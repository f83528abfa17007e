/* SPDX-License-Identifier: Apache-2.0 */
/* Finds which tokens a text begins with, one byte after the other. */
#ifndef LIB_TEXT_TOKEN_TRIE_H
#define LIB_TEXT_TOKEN_TRIE_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a token. Longer ones would make searching slow. */
#define TOKEN_TRIE_MAX_LENGTH 512

struct trie_entry {
    const char *bytes; /* [length], borrowed until the tree is built */
    uint32_t length;
    int32_t id;
};

struct token_trie_node {
    uint32_t children; /* the first; the others follow, by byte */
    int32_t id;        /* of the token that ends here; -1: none */
    uint16_t count;    /* of children */
    unsigned char byte;
};

/* Zero-initialise; token_trie_clear frees it. */
struct token_trie {
    struct token_trie_node *nodes; /* [count]; node 0 is the root */
    size_t count;
    size_t capacity;
};

/* Makes the tree of entries [count], which it sorts. Empty ones are left out. */
int token_trie_build(struct token_trie *trie, struct trie_entry *entries, size_t count,
                     struct error *err);
void token_trie_clear(struct token_trie *trie);

/* Goes from *node to its child of a byte; false: there is none. */
bool token_trie_step(const struct token_trie *trie, uint32_t *node, unsigned char byte);

#endif
