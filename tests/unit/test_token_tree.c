/* SPDX-License-Identifier: Apache-2.0 */
/* The radix tree of tokens: by hand, and against a plain list of texts. */
#include "server/states/token_tree.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const int32_t TEXT[] = {5, 6, 7, 8, 9, 10};
static const int32_t OTHER[] = {5, 6, 7, 1, 2, 3};

Test(token_tree, texts_share_their_beginning)
{
    struct token_totals totals = {0};
    struct token_tree tree = {.totals = &totals};
    int64_t shared;
    struct token_node *text = token_tree_insert(&tree, TEXT, 6);
    cr_assert(text && text->position == 6);
    struct token_node *other = token_tree_insert(&tree, OTHER, 6);
    cr_assert(other && other->position == 6);
    cr_assert_eq(totals.nodes, 3);
    cr_assert_eq(totals.tokens, 9);
    cr_expect(token_tree_find(&tree, TEXT, 6, &shared) == text && shared == 6);
    cr_expect(token_tree_find(&tree, OTHER, 6, &shared) == other && shared == 6);
    struct token_node *fork = token_tree_find(&tree, TEXT, 5, &shared);
    cr_expect(fork == text->parent && fork == other->parent && fork->position == 3);
    cr_expect_eq(shared, 5, "the edge knows tokens beyond the node");
    cr_expect(token_tree_find(&tree, TEXT, 2, &shared) == &tree.root && shared == 2);
    const int32_t stranger[] = {5, 6, 0};
    cr_expect(token_tree_find(&tree, stranger, 3, &shared) == &tree.root && shared == 2);
    cr_expect(token_tree_insert(&tree, TEXT, 0) == &tree.root);
    token_tree_clear(&tree);
    cr_expect(totals.nodes == 0 && totals.tokens == 0);
}

Test(token_tree, what_nobody_wants_goes)
{
    struct token_totals totals = {0};
    struct token_tree tree = {.totals = &totals};
    int value;
    struct token_node *text = token_tree_insert(&tree, TEXT, 6);
    struct token_node *middle = token_tree_insert(&tree, TEXT, 2);
    struct token_node *other = token_tree_insert(&tree, OTHER, 6);
    text->value = other->value = &value;
    cr_assert_eq(totals.nodes, 4);
    token_tree_trim(&tree, middle); /* joins the edge below it */
    cr_assert_eq(totals.nodes, 3);
    cr_expect_eq(totals.tokens, 9);
    other->value = NULL;
    token_tree_trim(&tree, other); /* and then the fork is none */
    cr_assert_eq(totals.nodes, 1);
    cr_expect_eq(totals.tokens, 6);
    cr_expect(text->parent == &tree.root && memcmp(text->tokens, TEXT, sizeof TEXT) == 0);
    text->value = NULL;
    text->holds = 1;
    token_tree_trim(&tree, text);
    cr_expect_eq(totals.nodes, 1);
    text->holds = 0;
    token_tree_trim(&tree, text);
    cr_expect(totals.nodes == 0 && totals.tokens == 0);
    token_tree_clear(&tree);
}

/* Against a list: texts over two tokens, so that they share and split all the time. */

enum { MOST = 64, LONGEST = 24, STEPS = 100000 };

struct entry {
    int32_t tokens[LONGEST];
    int64_t count;
    struct token_node *node;
    bool held; /* it is there by a hold, not by a value */
};

static void hold(struct token_node *node, int by)
{
    for (; node; node = node->parent)
        node->holds += by;
}

static int64_t common(const int32_t *a, int64_t a_count, const int32_t *b, int64_t b_count)
{
    int64_t i = 0;
    while (i < a_count && i < b_count && a[i] == b[i])
        i++;
    return i;
}

static void check_find(struct token_tree *tree, const struct entry *entries, int count,
                       const int32_t *tokens, int64_t length)
{
    int64_t known = 0, longest = 0, shared;
    for (int i = 0; i < count; i++) {
        int64_t equal = common(entries[i].tokens, entries[i].count, tokens, length);
        known = equal > known ? equal : known;
        if (equal == entries[i].count && equal > longest)
            longest = equal;
    }
    struct token_node *node = token_tree_find(tree, tokens, length, &shared);
    cr_assert_eq(shared, known);
    cr_assert(node->position >= longest && node->position <= known);
}

/* Every node is wanted, every edge leads to where it says, the sums agree. */
static void check_node(const struct token_node *node, int64_t *nodes, int64_t *tokens)
{
    int64_t holds = 0;
    for (int32_t i = 0; i < node->num_children; i++) {
        const struct token_node *child = node->children[i];
        cr_assert(child->parent == node && child->count > 0);
        cr_assert_eq(child->position, node->position + child->count);
        cr_assert(i == 0 || node->children[i - 1]->tokens[0] < child->tokens[0]);
        cr_assert(child->value || child->num_children > 1 || child->holds);
        (*nodes)++;
        *tokens += child->count;
        holds += child->holds;
        check_node(child, nodes, tokens);
    }
    cr_assert_leq(holds, node->holds);
    cr_assert(!node->parent || node->value || node->num_children > 1 || node->holds > holds);
}

Test(token_tree, random_texts_agree_with_a_list)
{
    struct token_totals totals = {0};
    struct token_tree tree = {.totals = &totals};
    struct entry entries[MOST];
    int count = 0;
    unsigned seed = 11;
    for (int step = 0; step < STEPS; step++) {
        int32_t tokens[LONGEST];
        int64_t length = 1 + rand_r(&seed) % LONGEST;
        for (int i = 0; i < length; i++)
            tokens[i] = rand_r(&seed) % 5 ? 7 : rand_r(&seed) % 3;
        check_find(&tree, entries, count, tokens, length);
        if (count == MOST || (count && rand_r(&seed) % 2)) {
            int at = rand_r(&seed) % count;
            struct token_node *node = entries[at].node;
            if (entries[at].held)
                hold(node, -1);
            else
                node->value = NULL;
            entries[at] = entries[--count];
            token_tree_trim(&tree, node);
        } else {
            struct token_node *node = token_tree_insert(&tree, tokens, length);
            cr_assert(node && node->position == length);
            struct entry entry = {.count = length, .node = node, .held = node->value != NULL};
            memcpy(entry.tokens, tokens, sizeof tokens);
            if (entry.held)
                hold(node, 1);
            else
                node->value = &tree;
            entries[count++] = entry;
        }
        if (step % 16)
            continue;
        int64_t nodes = 0, sum = 0;
        check_node(&tree.root, &nodes, &sum);
        cr_assert(nodes == totals.nodes && sum == totals.tokens);
        for (int i = 0; i < count; i++) {
            int64_t shared;
            cr_assert(token_tree_find(&tree, entries[i].tokens, entries[i].count, &shared) ==
                      entries[i].node);
        }
    }
    token_tree_clear(&tree);
}
