/* SPDX-License-Identifier: Apache-2.0 */
/* Items of one size that lie from one end of a region of device memory on: which of them are in
 * use. Two pools may share a region from both its ends. Addresses alone: nothing here touches the
 * memory. */
#ifndef ENGINE_POOL_H
#define ENGINE_POOL_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool {
    char *first;        /* item 0 */
    ptrdiff_t stride;   /* from an item to the next: its bytes, or as many backwards */
    size_t item_bytes;  /* 0: there are none */
    int32_t capacity;   /* of a region with no other items in it */
    int32_t used, peak; /* items; the most there have been */
    int32_t top;        /* none from here on is in use */
    int32_t lowest;     /* none below is free */
    uint64_t *taken;    /* a bit for each */
};

/* Of the region [base, base + bytes): from its end on if `backwards`. item_bytes 0: no items. */
int pool_open(struct pool *pool, char *base, size_t bytes, size_t item_bytes, bool backwards,
              struct error *err);
void pool_close(struct pool *pool);

/* The lowest item that is free; there must be one. */
int32_t pool_take(struct pool *pool);
void pool_give(struct pool *pool, int32_t item);
/* Another place for the highest item in use, *from: the lowest that is free, which must be below
 * it. Returns that. */
int32_t pool_lower(struct pool *pool, int32_t *from);

char *pool_address(const struct pool *pool, int32_t item);
int32_t pool_item(const struct pool *pool, const char *address);
size_t pool_used_bytes(const struct pool *pool);
/* From its end of the region to the last item in use. */
size_t pool_extent(const struct pool *pool);

#endif
