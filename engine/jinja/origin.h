/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a string came from the context: what users, tools and documents wrote, in contrast
 * to what the template itself has. All that is made of such a string keeps this, byte for byte. */
#ifndef ENGINE_JINJA_ORIGIN_H
#define ENGINE_JINJA_ORIGIN_H

#include "engine/jinja/heap.h"
#include "engine/jinja/jinja.h"

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
void origin_sort(const struct jinja_origin *marks);
/* That of a string of the context. */
const struct origin *origin_of_json(struct heap *heap, const struct jinja_origin *marks,
                                    const json_t *string);

#endif
