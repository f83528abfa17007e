/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int array_grow(void **data, size_t *capacity, size_t needed, size_t size, struct error *err)
{
    if (needed <= *capacity)
        return 0;
    size_t wanted = *capacity + *capacity / 2;
    if (wanted < needed)
        wanted = needed;
    if (wanted < 16)
        wanted = 16;
    void *grown = wanted > SIZE_MAX / 2 / size ? NULL : realloc(*data, wanted * size);
    if (!grown)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu items of %zu bytes", wanted,
                         size);
    *data = grown;
    *capacity = wanted;
    return 0;
}

int text_buffer_reserve(struct text_buffer *buffer, size_t more, struct error *err)
{
    if (more > SIZE_MAX / 4 - buffer->length)
        return error_set(err, ERROR_NO_MEMORY, "tokenizer: a text of %zu more bytes", more);
    return array_grow((void **)&buffer->data, &buffer->capacity, buffer->length + more, 1, err);
}

int text_buffer_append(struct text_buffer *buffer, const char *data, size_t length,
                       struct error *err)
{
    if (length == 0)
        return 0;
    if (text_buffer_reserve(buffer, length, err))
        return -1;
    memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
    return 0;
}

void text_buffer_clear(struct text_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct text_buffer){0};
}

int span_list_push(struct span_list *list, size_t start, size_t end, struct error *err)
{
    if (start >= end)
        return 0;
    if (list->count == list->capacity && array_grow((void **)&list->items, &list->capacity,
                                                    list->count + 1, sizeof *list->items, err))
        return -1;
    list->items[list->count++] = (struct text_span){start, end};
    return 0;
}

void span_list_cut(struct span_list *list, size_t start, size_t end)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct text_span span = list->items[i];
        span.start = span.start > start ? span.start : start;
        span.end = span.end < end ? span.end : end;
        if (span.start < span.end)
            list->items[kept++] = (struct text_span){span.start - start, span.end - start};
    }
    list->count = kept;
}

void span_list_clear(struct span_list *list)
{
    free(list->items);
    *list = (struct span_list){0};
}
