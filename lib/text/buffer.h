/* SPDX-License-Identifier: Apache-2.0 */
/* Growable byte arrays and lists of spans: the scratch memory of text on its way to ids. */
#ifndef LIB_TEXT_BUFFER_H
#define LIB_TEXT_BUFFER_H

#include "lib/base/error.h"

#include <stddef.h>

/* Zero-initialise; text_buffer_clear frees it. */
struct text_buffer {
    char *data; /* [length] bytes, not terminated */
    size_t length;
    size_t capacity;
};

/* Allocates room for `more` bytes after length. */
int text_buffer_reserve(struct text_buffer *buffer, size_t more, struct error *err);
int text_buffer_append(struct text_buffer *buffer, const char *data, size_t length,
                       struct error *err);
void text_buffer_clear(struct text_buffer *buffer);

/* Bytes [start, end) of some text. */
struct text_span {
    size_t start;
    size_t end;
};

/* Zero-initialise; span_list_clear frees it. */
struct span_list {
    struct text_span *items; /* [count] */
    size_t count;
    size_t capacity;
};

/* Appends [start, end) unless it is empty. */
int span_list_push(struct span_list *list, size_t start, size_t end, struct error *err);
/* Leaves what lies in [start, end), counted from there. */
void span_list_cut(struct span_list *list, size_t start, size_t end);
void span_list_clear(struct span_list *list);

/* Grows *data, an array of items of `size` bytes, to hold at least `needed` of them. */
int array_grow(void **data, size_t *capacity, size_t needed, size_t size, struct error *err);

#endif
