/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/spaces.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void space_free(struct space *space)
{
    token_tree_clear(&space->tokens);
    free(space->owner);
    free(space->salt);
    free(space);
}

static int space_order(const struct space *space, const char *owner, const char *salt,
                       size_t salt_length)
{
    int order = strcmp(space->owner, owner);
    if (order == 0 && space->salt_length != salt_length)
        order = space->salt_length < salt_length ? -1 : 1;
    return order || salt_length == 0 ? order : memcmp(space->salt, salt, salt_length);
}

/* Where the space is, or would be put. */
static size_t space_index(const struct spaces *spaces, const char *owner, const char *salt,
                          size_t salt_length, bool *found)
{
    size_t low = 0, high = spaces->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (space_order(spaces->list[middle], owner, salt, salt_length) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < spaces->count && space_order(spaces->list[low], owner, salt, salt_length) == 0;
    return low;
}

static struct space *space_create(struct spaces *spaces, const char *owner, const char *salt,
                                  size_t salt_length)
{
    if (spaces->count == spaces->capacity) {
        size_t capacity = 2 * spaces->capacity + 8;
        struct space **list = realloc(spaces->list, capacity * sizeof(struct space *));
        if (!list)
            return NULL;
        spaces->list = list;
        spaces->capacity = capacity;
    }
    struct space *space = calloc(1, sizeof *space);
    if (!space)
        return NULL;
    space->owner = strdup(owner);
    space->salt = malloc(salt_length + 1);
    space->salt_length = salt_length;
    space->tokens.totals = &spaces->totals;
    if (!space->owner || !space->salt) {
        space_free(space);
        return NULL;
    }
    if (salt_length)
        memcpy(space->salt, salt, salt_length);
    return space;
}

struct space *spaces_take(struct spaces *spaces, const char *owner, const char *salt,
                          size_t salt_length)
{
    bool found;
    size_t at = space_index(spaces, owner, salt, salt_length, &found);
    struct space *space = found ? spaces->list[at] : space_create(spaces, owner, salt, salt_length);
    if (!space)
        return NULL;
    if (!found) {
        memmove(spaces->list + at + 1, spaces->list + at,
                (spaces->count - at) * sizeof *spaces->list);
        spaces->list[at] = space;
        spaces->count++;
    }
    space->references++;
    return space;
}

/* Removes a space that nothing is in and nobody uses. */
static void space_collect(struct spaces *spaces, struct space *space)
{
    if (space->references || space->tokens.root.num_children)
        return;
    bool found;
    size_t at = space_index(spaces, space->owner, space->salt, space->salt_length, &found);
    spaces->count--;
    memmove(spaces->list + at, spaces->list + at + 1, (spaces->count - at) * sizeof *spaces->list);
    space_free(space);
}

void spaces_release(struct spaces *spaces, struct space *space)
{
    if (!space)
        return;
    space->references--;
    space_collect(spaces, space);
}

void spaces_trim(struct spaces *spaces, struct space *space, struct token_node *node)
{
    token_tree_trim(&space->tokens, node);
    space_collect(spaces, space);
}

void spaces_clear(struct spaces *spaces)
{
    while (spaces->count)
        space_free(spaces->list[--spaces->count]);
    free(spaces->list);
    *spaces = (struct spaces){0};
}
