/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/kernels.h"
#include "engine/cpu/residence.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Memory of matrices beside each other: a huge page holds parts of several. */
struct weight_chunk {
    char *data;
    size_t size, used;
    int weights; /* that lie in it */
};

struct memory_residence {
    struct residence base;
    struct weight_chunk *last; /* of the matrix packed last, or NULL */
};

static const size_t huge_page = (size_t)2 << 20, chunk_size = (size_t)64 << 20;

static struct weight_chunk *create_chunk(size_t bytes)
{
    struct weight_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL || bytes > SIZE_MAX / 2)
        return free(chunk), NULL;
    chunk->size = bytes < chunk_size ? chunk_size : (bytes + huge_page - 1) / huge_page * huge_page;
    chunk->data = aligned_alloc(huge_page, chunk->size); /* costs memory where it is written */
    if (chunk->data == NULL)
        return free(chunk), NULL;
    madvise(chunk->data, chunk->size, MADV_HUGEPAGE);
    return chunk;
}

/* What is small goes to malloc. */
static int place(struct residence *base, struct weight *weight, bool *packed, struct error *err)
{
    struct memory_residence *residence = (struct memory_residence *)base;
    struct weight_chunk **last = &residence->last;
    *packed = false;
    if (weight->bytes < 65536) {
        weight->data = aligned_alloc(64, (weight->bytes + 63) / 64 * 64);
        if (weight->data == NULL)
            return error_set(err, ERROR_NO_MEMORY, "weights: no memory");
        return 0;
    }
    if (*last == NULL || (*last)->size - (*last)->used < weight->bytes) {
        struct weight_chunk *chunk = create_chunk(weight->bytes);
        if (chunk == NULL)
            return error_set(err, ERROR_NO_MEMORY, "weights: no memory");
        *last = chunk;
    }
    weight->chunk = *last;
    weight->data = (unsigned char *)(*last)->data + (*last)->used;
    (*last)->used += (weight->bytes + 63) / 64 * 64;
    (*last)->weights++;
    return 0;
}

static void leave(struct residence *base, struct weight *weight)
{
    struct memory_residence *residence = (struct memory_residence *)base;
    struct weight_chunk *chunk = weight->chunk;
    if (chunk == NULL) {
        free(weight->data);
    } else if (--chunk->weights == 0) {
        if (chunk == residence->last)
            residence->last = NULL;
        free(chunk->data);
        free(chunk);
    }
}

static int settle(struct residence *base, const unsigned char owner[RESIDENCE_OWNER_BYTES],
                  struct error *err)
{
    (void)base;
    (void)owner;
    (void)err;
    return 0;
}

static void close_memory(struct residence *base)
{
    free(base);
}

static const struct residence_kind in_memory = {place, leave, settle, close_memory};

int residence_open_memory(struct residence **out, struct error *err)
{
    struct memory_residence *residence = calloc(1, sizeof *residence);
    if (residence == NULL)
        return error_set(err, ERROR_NO_MEMORY, "weights: no memory");
    residence->base.kind = &in_memory;
    *out = &residence->base;
    return 0;
}
