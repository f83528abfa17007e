/* SPDX-License-Identifier: Apache-2.0 */
/* A radix tree over token ids: texts that begin alike share the nodes of their beginning. A node
 * stands for a text, the tokens on the way to it; its edge is what it adds to its parent's. It
 * knows nothing of what its user hangs to nodes. */
#ifndef SERVER_STATES_TOKEN_TREE_H
#define SERVER_STATES_TOKEN_TREE_H

#include <stdint.h>

struct token_node {
    struct token_node *parent;    /* NULL: the root */
    struct token_node **children; /* [num_children], by the first token of their edges */
    int32_t num_children, capacity;
    int32_t *tokens; /* [count]: the edge */
    int64_t count;
    int64_t position; /* length of the text */
    void *value;      /* the user's; a node that has one stays */
    int64_t holds;    /* the user's: how many want this node or one below it to stay */
};

/* Several trees may count into one. */
struct token_totals {
    int64_t nodes, tokens; /* without roots; on all edges */
};

/* Zero-initialise, set totals. */
struct token_tree {
    struct token_node root;
    struct token_totals *totals; /* borrowed */
};

/* Frees every node; values are the user's to free before. */
void token_tree_clear(struct token_tree *tree);

/* The node of the longest text in the tree that tokens [0, count) begin with. *shared: how many of
 * the tokens the tree knows, up to `count`: an edge may go on where no node is. */
struct token_node *token_tree_find(struct token_tree *tree, const int32_t *tokens, int64_t count,
                                   int64_t *shared);

/* The node of exactly tokens [0, count), which is made if need be. NULL: no memory. */
struct token_node *token_tree_insert(struct token_tree *tree, const int32_t *tokens, int64_t count);

/* A node has lost its value or its holds: removes it, and what above it was there for it alone. */
void token_tree_trim(struct token_tree *tree, struct token_node *node);

#endif
