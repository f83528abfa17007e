/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/token_trie.h"

#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

/* A hostile vocabulary could have as many as bytes. */
enum { MAX_NODES = 1 << 25 };

/* The entries [low, high) below a node, which agree on `depth` bytes. */
struct range {
    uint32_t low, high, depth;
};

struct builder {
    struct token_trie *trie;
    const struct trie_entry *entries;
    struct range *ranges; /* [trie->count] */
    size_t capacity;
};

static int compare(const void *left, const void *right)
{
    const struct trie_entry *a = left, *b = right;
    uint32_t shorter = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->bytes, b->bytes, shorter);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

static int add_node(struct builder *builder, unsigned char byte, struct range range,
                    struct error *err)
{
    struct token_trie *trie = builder->trie;
    if (trie->count == MAX_NODES)
        return error_set(err, ERROR_INVALID, "the tokens have more than %d different beginnings",
                         MAX_NODES);
    if (array_grow((void **)&trie->nodes, &trie->capacity, trie->count + 1, sizeof *trie->nodes,
                   err) ||
        array_grow((void **)&builder->ranges, &builder->capacity, trie->count + 1,
                   sizeof *builder->ranges, err))
        return -1;
    trie->nodes[trie->count] = (struct token_trie_node){.id = -1, .byte = byte};
    builder->ranges[trie->count++] = range;
    return 0;
}

/* Gives a node its token and its children. */
static int expand(struct builder *builder, size_t at, struct error *err)
{
    struct token_trie *trie = builder->trie;
    struct range range = builder->ranges[at];
    while (range.low < range.high && builder->entries[range.low].length == range.depth)
        trie->nodes[at].id = builder->entries[range.low++].id;
    trie->nodes[at].children = (uint32_t)trie->count;
    while (range.low < range.high) {
        const unsigned char byte = (unsigned char)builder->entries[range.low].bytes[range.depth];
        struct range child = {range.low, range.low, range.depth + 1};
        while (child.high < range.high &&
               (unsigned char)builder->entries[child.high].bytes[range.depth] == byte)
            child.high++;
        if (add_node(builder, byte, child, err))
            return -1;
        trie->nodes[at].count++;
        range.low = child.high;
    }
    return 0;
}

int token_trie_build(struct token_trie *trie, struct trie_entry *entries, size_t count,
                     struct error *err)
{
    struct builder builder = {.trie = trie, .entries = entries};
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (entries[i].length > 0)
            entries[kept++] = entries[i];
    if (kept > 0)
        qsort(entries, kept, sizeof *entries, compare);
    int failed = add_node(&builder, 0, (struct range){0, (uint32_t)kept, 0}, err);
    for (size_t at = 0; !failed && at < trie->count; at++)
        failed = expand(&builder, at, err);
    free(builder.ranges);
    return failed;
}

void token_trie_clear(struct token_trie *trie)
{
    free(trie->nodes);
    *trie = (struct token_trie){0};
}

bool token_trie_step(const struct token_trie *trie, uint32_t *node, unsigned char byte)
{
    uint32_t low = trie->nodes[*node].children, high = low + trie->nodes[*node].count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (trie->nodes[middle].byte == byte) {
            *node = middle;
            return true;
        }
        if (trie->nodes[middle].byte < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}
