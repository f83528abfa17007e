/* SPDX-License-Identifier: Apache-2.0 */
/* A radix tree over token ids: finds the longest known beginning of a text. Texts that begin alike
 * share the nodes of their beginning. A node means the tokens on the path to it; its edge holds
 * those that it adds to its parent's. The tree does not know what its user attaches to nodes. */
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
    void *value;      /* the user's; a node with a value stays */
    int64_t holds;    /* the user's: how many want this node, or one below it, to stay */
    const void *mark; /* the user's: of a pass over the tree, NULL between them */
};

/* Several trees may share one. */
struct token_totals {
    int64_t nodes;  /* without roots */
    int64_t tokens; /* on all edges */
};

/* Zero-initialise, then set totals. */
struct token_tree {
    struct token_node root;
    struct token_totals *totals; /* borrowed */
};

/* Frees every node. The user has freed the values before. */
void token_tree_clear(struct token_tree *tree);

/* The deepest node on the path of tokens [0, count). *shared: how many of the tokens the tree
 * knows. That can be more than the node's position, since tokens may match a part of an edge. */
struct token_node *token_tree_find(struct token_tree *tree, const int32_t *tokens, int64_t count,
                                   int64_t *shared);

/* Finds or makes the node of exactly tokens [0, count). NULL: no memory. */
struct token_node *token_tree_insert(struct token_tree *tree, const int32_t *tokens, int64_t count);

/* A node has lost its value or its holds: removes it if it has become useless, and with it what
 * stood above it for its sake alone. */
void token_tree_trim(struct token_tree *tree, struct token_node *node);

#endif
