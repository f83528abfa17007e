/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/arena.h"

#include "lib/base/bytes.h"

#include <stdlib.h>

enum { ALIGNMENT = 64, BLOCK_BYTES = 1 << 16 };

struct arena_block {
    struct arena_block *next;
    size_t used, size; /* bytes, header included; both multiples of ALIGNMENT */
};

_Static_assert(sizeof(struct arena_block) <= ALIGNMENT, "a block's header takes one unit");

static struct arena_block *add_block(struct arena *arena, size_t bytes)
{
    size_t size = bytes > BLOCK_BYTES - ALIGNMENT ? bytes + ALIGNMENT : BLOCK_BYTES;
    struct arena_block *block = aligned_alloc(ALIGNMENT, size);
    if (!block)
        return NULL;
    *block = (struct arena_block){.next = arena->blocks, .used = ALIGNMENT, .size = size};
    arena->blocks = block;
    return block;
}

void *arena_alloc(struct arena *arena, size_t count, size_t size, struct error *err)
{
    size_t bytes;
    if (!size_mul(count, size, &bytes) || bytes > SIZE_MAX / 2) {
        error_set(err, ERROR_NO_MEMORY, "%zu items of %zu bytes are more than memory can hold",
                  count, size);
        return NULL;
    }
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct arena_block *block = arena->blocks;
    if (!block || block->size - block->used < bytes)
        block = add_block(arena, bytes);
    if (!block) {
        error_set(err, ERROR_NO_MEMORY, "out of memory: %zu bytes", bytes);
        return NULL;
    }
    unsigned char *at = (unsigned char *)block + block->used;
    block->used += bytes;
    memset(at, 0, bytes);
    return at;
}

char *arena_string(struct arena *arena, const char *string, struct error *err)
{
    size_t size = strlen(string) + 1;
    char *copy = arena_alloc(arena, size, 1, err);
    if (copy)
        memcpy(copy, string, size);
    return copy;
}

void arena_clear(struct arena *arena)
{
    while (arena->blocks) {
        struct arena_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
}
