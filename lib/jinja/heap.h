/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a template or of one rendering, freed all at once, and the way out of any depth
 * when something fails: heap_fail jumps to where heap_try was. */
#ifndef LIB_JINJA_HEAP_H
#define LIB_JINJA_HEAP_H

#include "lib/base/error.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_chunk;

struct heap { /* zero-initialise, then set limit */
    struct heap_chunk *chunks;
    char *at;
    size_t left;                                   /* bytes of the newest chunk */
    size_t used, limit;                            /* bytes of all chunks */
    bool (*reserve)(void *context, int64_t bytes); /* NULL, or whom to ask for them */
    void *reserve_context;
    int64_t steps;       /* left; heap_work takes them */
    double most_seconds; /* of this thread's processor time; 0: no limit */
    int64_t began;       /* nanoseconds of that clock */
    int64_t unchecked;   /* steps since it was looked at */
    int depth;           /* of what calls itself now */
    jmp_buf out;
    struct error *err;
    const char *name, *source; /* of the template, for messages; [length] */
    size_t length;
    size_t offset; /* in source: what is being worked on */
};

/* `if (heap_try(heap)) failed; else work;`. Variables of the function that change in between are
 * lost. */
#define heap_try(heap) setjmp((heap)->out)

/* Zeroed, aligned to 16 bytes. Fails when the limit is reached. */
void *heap_alloc(struct heap *heap, size_t count, size_t size);
void heap_clear(struct heap *heap);

/* From now on heap_work fails too after so many seconds of this thread's processor time. */
void heap_begin_time(struct heap *heap, double most_seconds);

/* Takes steps for `work` bytes or items, before they are worked on; heap_work(heap, 0) takes one.
 * Fails when none are left. */
void heap_work(struct heap *heap, size_t work);

/* Around a function that may call itself: fails when it is nested too deeply. */
void heap_enter(struct heap *heap);
void heap_leave(struct heap *heap);

/* Fails with "name: line L, column C: ...", the place being heap->offset. */
_Noreturn void heap_fail(struct heap *heap, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
