/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/token_tree.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void node_free(struct token_node *node)
{
    free(node->children);
    free(node->tokens);
    free(node);
}

void token_tree_clear(struct token_tree *tree)
{
    struct token_node *node = &tree->root;
    for (;;) {
        if (node->num_children) {
            node = node->children[--node->num_children];
            continue;
        }
        if (node == &tree->root)
            break;
        struct token_node *parent = node->parent;
        tree->totals->nodes--;
        tree->totals->tokens -= node->count;
        node_free(node);
        node = parent;
    }
    free(tree->root.children);
    tree->root = (struct token_node){0};
}

/* Where the child whose edge begins with `token` is, or would be put. */
static int32_t child_index(const struct token_node *node, int32_t token)
{
    int32_t low = 0, high = node->num_children;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (node->children[middle]->tokens[0] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct token_node *child_of(const struct token_node *node, int32_t token)
{
    int32_t at = child_index(node, token);
    if (at == node->num_children || node->children[at]->tokens[0] != token)
        return NULL;
    return node->children[at];
}

static int64_t common(const int32_t *a, const int32_t *b, int64_t count)
{
    int64_t i = 0;
    while (i < count && a[i] == b[i])
        i++;
    return i;
}

struct token_node *token_tree_find(struct token_tree *tree, const int32_t *tokens, int64_t count,
                                   int64_t *shared)
{
    struct token_node *node = &tree->root;
    while (node->position < count) {
        int64_t at = node->position;
        struct token_node *child = child_of(node, tokens[at]);
        if (!child)
            break;
        int64_t length = child->count < count - at ? child->count : count - at;
        int64_t equal = common(child->tokens, tokens + at, length);
        if (equal < child->count) {
            *shared = at + equal;
            return node;
        }
        node = child;
    }
    *shared = node->position;
    return node;
}

static int reserve_child(struct token_node *node)
{
    if (node->num_children < node->capacity)
        return 0;
    int32_t capacity = node->capacity ? 2 * node->capacity : 1;
    struct token_node **children =
        realloc(node->children, (size_t)capacity * sizeof(struct token_node *));
    if (!children)
        return -1;
    node->children = children;
    node->capacity = capacity;
    return 0;
}

/* There must be room for it. */
static void add_child(struct token_node *node, struct token_node *child)
{
    int32_t at = child_index(node, child->tokens[0]);
    memmove(node->children + at + 1, node->children + at,
            (size_t)(node->num_children - at) * sizeof *node->children);
    node->children[at] = child;
    node->num_children++;
    child->parent = node;
}

static void remove_child(struct token_node *node, const struct token_node *child)
{
    int32_t at = child_index(node, child->tokens[0]);
    node->num_children--;
    memmove(node->children + at, node->children + at + 1,
            (size_t)(node->num_children - at) * sizeof *node->children);
}

static struct token_node *node_create(const int32_t *tokens, int64_t count)
{
    struct token_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->tokens = malloc((size_t)count * sizeof *node->tokens);
    if (!node->tokens) {
        free(node);
        return NULL;
    }
    memcpy(node->tokens, tokens, (size_t)count * sizeof *node->tokens);
    node->count = count;
    return node;
}

/* Makes a node after the first `count` tokens of the node's edge; the node itself stays the lower
 * one, so that pointers to it hold. */
static struct token_node *split(struct token_tree *tree, struct token_node *node, int64_t count)
{
    struct token_node *upper = node_create(node->tokens, count);
    if (!upper || reserve_child(upper)) {
        if (upper)
            node_free(upper);
        return NULL;
    }
    struct token_node *parent = node->parent;
    upper->parent = parent;
    upper->position = parent->position + count;
    upper->holds = node->holds;
    parent->children[child_index(parent, node->tokens[0])] = upper;
    node->count -= count;
    memmove(node->tokens, node->tokens + count, (size_t)node->count * sizeof *node->tokens);
    int32_t *smaller = realloc(node->tokens, (size_t)node->count * sizeof *smaller);
    if (smaller)
        node->tokens = smaller;
    add_child(upper, node);
    tree->totals->nodes++;
    return upper;
}

struct token_node *token_tree_insert(struct token_tree *tree, const int32_t *tokens, int64_t count)
{
    int64_t shared;
    struct token_node *node = token_tree_find(tree, tokens, count, &shared);
    if (shared > node->position) {
        node = split(tree, child_of(node, tokens[node->position]), shared - node->position);
        if (!node)
            return NULL;
    }
    if (shared == count)
        return node;
    /* On failure the node that was split off is as good as the edge that it was. */
    struct token_node *leaf = node_create(tokens + shared, count - shared);
    if (!leaf || reserve_child(node)) {
        if (leaf)
            node_free(leaf);
        token_tree_trim(tree, node);
        return NULL;
    }
    leaf->position = count;
    add_child(node, leaf);
    tree->totals->nodes++;
    tree->totals->tokens += leaf->count;
    return leaf;
}

/* A node that nobody wants and that has one child: its edge joins the child's. */
static void merge(struct token_tree *tree, struct token_node *node)
{
    struct token_node *child = node->children[0];
    size_t above = (size_t)node->count, below = (size_t)child->count;
    int32_t *tokens = realloc(child->tokens, (above + below) * sizeof *tokens);
    if (!tokens)
        return;
    memmove(tokens + above, tokens, below * sizeof *tokens);
    memcpy(tokens, node->tokens, above * sizeof *tokens);
    child->tokens = tokens;
    child->count += node->count;
    child->parent = node->parent;
    node->parent->children[child_index(node->parent, tokens[0])] = child;
    tree->totals->nodes--;
    node_free(node);
}

/* The analyzer does not follow that remove_child takes a node from its parent before it is freed.
 */
void token_tree_trim(struct token_tree *tree, struct token_node *node)
{
    // NOLINTBEGIN(clang-analyzer-unix.Malloc)
    while (node->parent && !node->value && !node->holds && !node->num_children) {
        struct token_node *parent = node->parent;
        remove_child(parent, node);
        tree->totals->nodes--;
        tree->totals->tokens -= node->count;
        node_free(node);
        node = parent;
    }
    if (node->parent && !node->value && node->num_children == 1 &&
        node->holds == node->children[0]->holds)
        merge(tree, node);
    // NOLINTEND(clang-analyzer-unix.Malloc)
}
