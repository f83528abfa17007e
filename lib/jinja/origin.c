/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/origin.h"

#include "lib/jinja/heap.h"

#include <stdlib.h>

static const struct text_span ALL = {0, SIZE_MAX};
const struct origin origin_all = {&ALL, 1};

size_t origin_from(const struct origin *origin, size_t at)
{
    size_t low = 0, high = origin->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (origin->input[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool origin_at(const struct origin *origin, size_t at)
{
    if (!origin || origin == &origin_all)
        return origin != NULL;
    size_t i = origin_from(origin, at);
    return i < origin->count && origin->input[i].start <= at;
}

static const struct origin *make(struct heap *heap, const struct text_span *input, size_t count)
{
    struct origin *origin = heap_alloc(heap, 1, sizeof *origin);
    *origin = (struct origin){input, count};
    return origin;
}

const struct origin *origin_part(struct heap *heap, const struct origin *origin, size_t begin,
                                 size_t end)
{
    if (!origin || origin == &origin_all)
        return origin;
    size_t first = origin_from(origin, begin), last = first;
    while (last < origin->count && origin->input[last].start < end)
        last++;
    if (first == last)
        return NULL;
    if (origin->input[first].start <= begin && origin->input[first].end >= end)
        return &origin_all;
    heap_work(heap, (last - first) * sizeof *origin->input);
    struct text_span *input = heap_alloc(heap, last - first, sizeof *input);
    for (size_t i = first; i < last; i++) {
        const struct text_span *span = &origin->input[i];
        input[i - first].start = span->start > begin ? span->start - begin : 0;
        input[i - first].end = (span->end < end ? span->end : end) - begin;
    }
    return make(heap, input, last - first);
}

/* The context. */

static int compare(const void *left, const void *right)
{
    const struct origin_own *a = left, *b = right;
    if (a->string != b->string)
        return (uintptr_t)a->string < (uintptr_t)b->string ? -1 : 1;
    return (a->bytes.start > b->bytes.start) - (a->bytes.start < b->bytes.start);
}

void origin_sort(const struct origin_marks *marks)
{
    if (marks && marks->num_own > 1)
        qsort(marks->own, marks->num_own, sizeof *marks->own, compare);
}

const struct origin *origin_of_json(struct heap *heap, const struct origin_marks *marks,
                                    const json_t *string)
{
    size_t low = 0, high = marks ? marks->num_own : 0, length = json_string_length(string);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)marks->own[middle].string < (uintptr_t)string)
            low = middle + 1;
        else
            high = middle;
    }
    for (high = low; marks && high < marks->num_own && marks->own[high].string == string;)
        high++;
    if (low == high)
        return &origin_all;
    struct text_span *input = heap_alloc(heap, high - low + 1, sizeof *input);
    size_t count = 0, at = 0;
    for (size_t i = low; i <= high; i++) {
        size_t end = i < high ? marks->own[i].bytes.start : length;
        if (at < end && at < length)
            input[count++] = (struct text_span){at, end < length ? end : length};
        if (i < high && marks->own[i].bytes.end > at)
            at = marks->own[i].bytes.end;
    }
    heap_work(heap, (high - low) * sizeof *input);
    return count ? make(heap, input, count) : NULL;
}
