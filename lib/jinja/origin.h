/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a string came from the context: what users, tools and documents wrote, in contrast
 * to what the template itself has. All that is made of such a string keeps this, byte for byte. */
#ifndef LIB_JINJA_ORIGIN_H
#define LIB_JINJA_ORIGIN_H

#include "lib/text/buffer.h"

#include <jansson.h>
#include <stdbool.h>

struct heap;

/* Bytes of a string of the context that count as the template's own. */
struct origin_own {
    const json_t *string;
    struct text_span bytes;
};

/* Where the bytes of a rendered text come from. */
struct origin_marks {
    struct origin_own *own; /* [num_own], none over another; a rendering sorts them */
    size_t num_own;
    struct span_list input; /* out: those from strings of the context, but for `own`; in order */
};

/* NULL stands for a string that is all the template's. It never changes: strings share it. */
struct origin {
    const struct text_span *input; /* [count], in order, none beside another */
    size_t count;
};

/* Of a string that came from the context as a whole, however long. */
extern const struct origin origin_all;

/* Whether byte `at` came from the context. */
bool origin_at(const struct origin *origin, size_t at);

/* The first of the spans that ends behind `at`, or origin->count. */
size_t origin_from(const struct origin *origin, size_t at);

/* That of bytes [begin, end). */
const struct origin *origin_part(struct heap *heap, const struct origin *origin, size_t begin,
                                 size_t end);

/* Sorts what a rendering counts as the template's, for origin_of_json. */
void origin_sort(const struct origin_marks *marks);
/* That of a string of the context. */
const struct origin *origin_of_json(struct heap *heap, const struct origin_marks *marks,
                                    const json_t *string);

#endif
