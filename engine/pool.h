/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps track of which items of one size are in use in a region of device memory, from one of its
 * ends on. Two pools may share a region from both ends. It computes addresses and never touches the
 * memory. */
#ifndef ENGINE_POOL_H
#define ENGINE_POOL_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool {
    char *first;        /* item 0 */
    ptrdiff_t stride;   /* from an item to the next; negative when backwards */
    size_t item_bytes;  /* 0: there are no items */
    int32_t capacity;   /* items in a region without other items */
    int32_t used, peak; /* items in use now; the most so far */
    int32_t top;        /* no item from here on is in use */
    int32_t lowest;     /* no item below is free */
    uint64_t *taken;    /* a bit for each item */
};

/* Opens a pool in the region [base, base + bytes), from its end if `backwards`. item_bytes 0: no
 * items. */
int pool_open(struct pool *pool, char *base, size_t bytes, size_t item_bytes, bool backwards,
              struct error *err);
void pool_close(struct pool *pool);

/* Takes the lowest free item; there must be one. */
int32_t pool_take(struct pool *pool);
void pool_give(struct pool *pool, int32_t item);
/* Moves the highest item in use, *from, to the lowest free place, which must be below it. Returns
 * that place. */
int32_t pool_lower(struct pool *pool, int32_t *from);

char *pool_address(const struct pool *pool, int32_t item);
int32_t pool_item(const struct pool *pool, const char *address);
size_t pool_used_bytes(const struct pool *pool);
/* The bytes from the pool's end of the region to the last item in use. */
size_t pool_extent(const struct pool *pool);

#endif
