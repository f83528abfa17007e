/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/trie.h"

#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b, void *context)
{
    const struct trie_token *tokens = context;
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const struct trie_token *x = &tokens[i], *y = &tokens[j];
    int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);
    if (order == 0)
        order = (x->length > y->length) - (x->length < y->length);
    return order ? order : (i > j) - (i < j);
}

/* Appends the nodes of a token that sorts behind all before it. path: the nodes of the last token,
 * by depth - 1. */
static int add_token(struct trie *trie, size_t *capacity, int32_t id, int32_t last, uint32_t *path,
                     struct error *err)
{
    struct trie_token *token = &trie->tokens[id];
    uint32_t at = 0, last_length = last < 0 ? 0 : trie->tokens[last].length;
    while (at < last_length && at < token->length &&
           trie->tokens[last].bytes[at] == token->bytes[at])
        at++;
    if (at == token->length) { /* the same bytes: it goes to the end of the list */
        trie->tokens[last].same = id;
        return 0;
    }
    for (; at < token->length; at++) {
        if (trie->num_nodes == UINT32_MAX ||
            array_grow((void **)&trie->nodes, capacity, (size_t)trie->num_nodes + 1,
                       sizeof *trie->nodes, err))
            return error_set(err, ERROR_NO_MEMORY, "no memory for the trie of the tokens");
        trie->nodes[trie->num_nodes] = (struct trie_node){1, -1, at + 1, (uint8_t)token->bytes[at]};
        path[at] = trie->num_nodes++;
    }
    trie->nodes[path[token->length - 1]].token = id;
    return 0;
}

/* Sizes of subtrees: the last node of each depth, from the end on, is what its children add to. */
static void count_sizes(struct trie *trie, uint32_t *path)
{
    for (uint32_t i = 0; i < trie->num_nodes; i++) {
        struct trie_node *node = &trie->nodes[i];
        path[node->depth - 1] = i;
        for (uint32_t depth = 1; depth < node->depth; depth++)
            trie->nodes[path[depth - 1]].size++;
    }
    for (int byte = 0; byte < 256; byte++)
        trie->first[byte] = trie->num_nodes;
    for (uint32_t i = 0; i < trie->num_nodes; i += trie->nodes[i].size)
        trie->first[trie->nodes[i].byte] = i;
}

int trie_make(struct trie *trie, struct error *err)
{
    size_t count = 0, capacity = 0;
    int32_t *order = malloc(((size_t)trie->num_tokens + 1) * sizeof *order);
    for (int32_t id = 0; id < trie->num_tokens; id++) {
        struct trie_token *token = &trie->tokens[id];
        token->same = -1;
        trie->longest = token->length > trie->longest ? token->length : trie->longest;
        if (order && token->length > 0)
            order[count++] = id;
    }
    uint32_t *path = malloc(((size_t)trie->longest + 1) * sizeof *path);
    int failed = 0;
    if (!order || !path)
        failed = error_set(err, ERROR_NO_MEMORY, "no memory for the trie of the tokens");
    if (!failed)
        qsort_r(order, count, sizeof *order, compare, trie->tokens);
    for (size_t i = 0; i < count && !failed; i++)
        failed = add_token(trie, &capacity, order[i], i == 0 ? -1 : order[i - 1], path, err);
    if (!failed)
        count_sizes(trie, path);
    free(order);
    free(path);
    return failed;
}

bool trie_has(const struct trie *trie, const char *bytes, size_t length)
{
    uint32_t at = trie->first[(unsigned char)bytes[0]];
    if (at == trie->num_nodes)
        return false;
    for (size_t i = 1; i < length; i++) {
        uint32_t end = at + trie->nodes[at].size;
        for (at++; at < end && trie->nodes[at].byte != (uint8_t)bytes[i];)
            at += trie->nodes[at].size;
        if (at == end)
            return false;
    }
    return trie->nodes[at].token >= 0;
}

void trie_clear(struct trie *trie)
{
    free(trie->tokens);
    free(trie->bytes);
    free(trie->nodes);
    *trie = (struct trie){0};
}

size_t trie_bytes(const struct trie *trie)
{
    size_t bytes =
        (size_t)trie->num_tokens * sizeof *trie->tokens + trie->num_nodes * sizeof *trie->nodes;
    for (int32_t id = 0; id < trie->num_tokens; id++)
        bytes += trie->tokens[id].length;
    return bytes;
}
