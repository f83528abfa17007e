/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/state_layout.h"

#include "lib/base/bytes.h"

#include <stdlib.h>

int state_layout_add(struct state_layout *layout, struct state_part part, size_t *offset,
                     struct error *err)
{
    size_t *total = state_part_pages(&part) ? &layout->page_bytes : &layout->slot_bytes;
    size_t bytes, end;
    if (!size_mul((size_t)part.heads, part.head_bytes, &bytes) || !size_add(bytes, 63, &bytes) ||
        !size_add(*total, bytes / 64 * 64, &end) || end > SIZE_MAX / 4)
        return error_set(err, ERROR_INVALID, "the state of a text is too large");
    struct state_part *parts =
        realloc(layout->parts, (size_t)(layout->num_parts + 1) * sizeof *parts);
    if (parts == NULL)
        return error_set(err, ERROR_NO_MEMORY, "state layout: no memory");
    part.offset = *offset = *total;
    *total = end;
    layout->parts = parts;
    layout->parts[layout->num_parts++] = part;
    return 0;
}

void state_layout_clear(struct state_layout *layout)
{
    free(layout->parts);
    layout->parts = NULL;
}
