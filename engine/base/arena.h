/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is allocated piece by piece and freed all at once. */
#ifndef ENGINE_BASE_ARENA_H
#define ENGINE_BASE_ARENA_H

#include "engine/base/error.h"

#include <stddef.h>

struct arena_block;

struct arena { /* zero-initialise; not for use by two threads at once */
    struct arena_block *blocks;
};

/* `count` items of `size` bytes, zeroed and aligned to 64 bytes (a cache line, and the widest SIMD
 * load). NULL with *err when count * size overflows or memory is short; never NULL for count 0. */
void *arena_alloc(struct arena *arena, size_t count, size_t size, struct error *err);

/* A copy of the string. */
char *arena_string(struct arena *arena, const char *string, struct error *err);

void arena_clear(struct arena *arena);

#endif
