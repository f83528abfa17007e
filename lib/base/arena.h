/* SPDX-License-Identifier: Apache-2.0 */
/* An arena: allocates memory piece by piece and frees it all at once. */
#ifndef LIB_BASE_ARENA_H
#define LIB_BASE_ARENA_H

#include "lib/base/error.h"

#include <stddef.h>

struct arena_block;

struct arena { /* zero-initialise; one thread at a time may use it */
    struct arena_block *blocks;
};

/* Allocates `count` items of `size` bytes, zeroed and aligned to 64 bytes (a cache line, and the
 * widest SIMD load). Returns NULL with *err when count * size overflows or memory is short; never
 * NULL for count 0. */
void *arena_alloc(struct arena *arena, size_t count, size_t size, struct error *err);

/* A copy of the string. */
char *arena_string(struct arena *arena, const char *string, struct error *err);

void arena_clear(struct arena *arena);

#endif
