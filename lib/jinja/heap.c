/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/heap.h"

#include "lib/base/clock.h"
#include "lib/text/unicode.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10, MOST_DEPTH = 300, BYTES_OF_STEP = 64, STEPS_BETWEEN_CHECKS = 4096 };

struct heap_chunk {
    _Alignas(16) struct heap_chunk *next;
};

static void add_chunk(struct heap *heap, size_t bytes)
{
    size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    if (size > heap->limit || heap->used > heap->limit - size)
        heap_fail(heap, ERROR_INVALID, "the template takes more than %zu bytes of memory",
                  heap->limit);
    if (heap->reserve && !heap->reserve(heap->reserve_context, (int64_t)size))
        heap_fail(heap, ERROR_NO_MEMORY, "no memory is left for %zu bytes more", size);
    heap->used += size;
    struct heap_chunk *chunk = malloc(sizeof *chunk + size);
    if (!chunk)
        heap_fail(heap, ERROR_NO_MEMORY, "no memory");
    chunk->next = heap->chunks;
    heap->chunks = chunk;
    heap->at = (char *)(chunk + 1);
    heap->left = size;
}

void *heap_alloc(struct heap *heap, size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / 4 / size)
        heap_fail(heap, ERROR_NO_MEMORY, "%zu items of %zu bytes", count, size);
    size_t bytes = (count * size + 15) & ~(size_t)15;
    if (bytes >= BYTES_OF_STEP)
        heap_work(heap, bytes); /* it is zeroed */
    if (bytes > heap->left)
        add_chunk(heap, bytes);
    void *memory = heap->at;
    heap->at += bytes;
    heap->left -= bytes;
    return memset(memory, 0, bytes);
}

void heap_clear(struct heap *heap)
{
    while (heap->chunks) {
        struct heap_chunk *next = heap->chunks->next;
        free(heap->chunks);
        heap->chunks = next;
    }
    if (heap->reserve && heap->used > 0)
        heap->reserve(heap->reserve_context, -(int64_t)heap->used);
    heap->at = NULL;
    heap->left = heap->used = 0;
}

void heap_begin_time(struct heap *heap, double most_seconds)
{
    heap->most_seconds = most_seconds;
    heap->began = clock_nanos(CLOCK_THREAD_CPUTIME_ID);
}

static void check_time(struct heap *heap)
{
    double seconds = (double)(clock_nanos(CLOCK_THREAD_CPUTIME_ID) - heap->began) * 1e-9;
    if (seconds > heap->most_seconds)
        heap_fail(heap, ERROR_INVALID, "the template takes more than %.2f s of processor time",
                  heap->most_seconds);
}

void heap_work(struct heap *heap, size_t work)
{
    int64_t steps = 1 + (int64_t)(work / BYTES_OF_STEP);
    if (heap->steps < steps)
        heap_fail(heap, ERROR_INVALID, "the template takes too many steps");
    heap->steps -= steps;
    if (heap->most_seconds > 0 && (heap->unchecked += steps) > STEPS_BETWEEN_CHECKS) {
        heap->unchecked = 0;
        check_time(heap);
    }
}

void heap_enter(struct heap *heap)
{
    if (++heap->depth > MOST_DEPTH)
        heap_fail(heap, ERROR_INVALID, "nested more than %d deep", MOST_DEPTH);
}

void heap_leave(struct heap *heap)
{
    heap->depth--;
}

_Noreturn void heap_fail(struct heap *heap, enum error_code code, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t end = heap->offset < heap->length ? heap->offset : heap->length;
    size_t line = 1, start = 0;
    for (size_t i = 0; i < end; i++)
        if (heap->source[i] == '\n') {
            line++;
            start = i + 1;
        }
    size_t column = 1 + utf8_characters(heap->source + start, end - start);
    error_set(heap->err, code, "%s: line %zu, column %zu: %s", heap->name, line, column, text);
    longjmp(heap->out, 1);
}
