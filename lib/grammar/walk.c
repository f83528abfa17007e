/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/walk.h"

#include <stdlib.h>

int walk_init(struct walk *walk, const struct trie *trie, struct readings *readings,
              struct error *err)
{
    *walk = (struct walk){.trie = trie, .readings = readings};
    walk->levels = malloc(((size_t)trie->longest + 2) * sizeof *walk->levels);
    if (!walk->levels)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a walk over the tokens");
    return 0;
}

void walk_clear(struct walk *walk)
{
    free(walk->levels);
    *walk = (struct walk){0};
}

/* Nodes [node, end), which lie below the level that is set up. A set begins where its level says
 * and ends where that of the next does. */
static int walk_range(struct walk *walk, uint32_t node, uint32_t end, struct error *err)
{
    struct readings *readings = walk->readings;
    while (node < end) {
        const struct trie_node *at = &walk->trie->nodes[node];
        struct walk_level *parent = &walk->levels[at->depth - 1], *level = parent + 1;
        readings->count = level->items;
        if (readings->num_frames > level->frames)
            readings_cut_frames(readings, level->frames);
        readings->ended = false;
        walk->visited++;
        if (readings_step(readings, parent->items, level->items, at->byte, err))
            return -1;
        bool lives = readings->count > level->items;
        if (lives || readings->ended)
            trie_add(walk->trie, at, walk->set);
        if (walk->at_node)
            walk->at_node(walk->context, node, level->items);
        level[1] = (struct walk_level){readings->count, readings->num_frames};
        node += lives ? 1 : at->size;
    }
    return 0;
}

static void begin(struct walk *walk, uint32_t depth, size_t from)
{
    const struct readings *readings = walk->readings;
    walk->levels[depth] = (struct walk_level){from, readings->num_frames};
    walk->levels[depth + 1] = (struct walk_level){readings->count, readings->num_frames};
}

static void end(struct walk *walk, size_t count, size_t frames)
{
    walk->readings->count = count;
    walk->readings->ended = false;
    readings_cut_frames(walk->readings, frames);
}

int walk_all(struct walk *walk, size_t from, struct error *err)
{
    struct readings *readings = walk->readings;
    size_t count = readings->count, frames = readings->num_frames;
    bool wanted[256] = {false};
    int failed = readings_wanted(readings, from, count, wanted, err);
    for (int b = 0; b < 256 && !failed; b++) {
        uint32_t node = walk->trie->first[b];
        if (!wanted[b] || node == walk->trie->num_nodes)
            continue;
        end(walk, count, frames);
        begin(walk, 0, from);
        failed = walk_range(walk, node, node + walk->trie->nodes[node].size, err);
    }
    end(walk, count, frames);
    return failed;
}

int walk_below(struct walk *walk, uint32_t node, size_t from, struct error *err)
{
    const struct trie_node *at = &walk->trie->nodes[node];
    size_t count = walk->readings->count, frames = walk->readings->num_frames;
    if (at->size == 1)
        return 0;
    begin(walk, at->depth, from);
    int failed = walk_range(walk, node + 1, node + at->size, err);
    end(walk, count, frames);
    return failed;
}
