/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/builder_shorten.h"

#include <stdlib.h>

enum { FEW = 4 };

/* What leaves each state. */
struct leaving {
    uint32_t others;          /* calls and jumps */
    uint32_t ranges, at[FEW]; /* the first few ranges: indices of arcs */
};

static void count_arcs(const struct builder *builder, struct leaving *leaving)
{
    for (size_t i = 0; i < builder->num_arcs; i++) {
        const struct builder_arc *arc = &builder->arcs[i];
        struct leaving *from = &leaving[arc->from];
        if (arc->kind != ARC_RANGE)
            from->others++;
        else if (from->ranges++ < FEW)
            from->at[from->ranges - 1] = (uint32_t)i;
    }
}

int builder_shorten(struct builder *builder, bool *is_final)
{
    struct leaving *leaving = calloc((size_t)builder->num_states + 1, sizeof *leaving);
    if (!leaving)
        return error_set(builder->err, ERROR_NO_MEMORY, "no memory for %u states",
                         builder->num_states);
    count_arcs(builder, leaving);
    size_t count = builder->num_arcs;
    for (size_t i = 0; i < count && !builder_failed(builder); i++) {
        struct builder_arc jump = builder->arcs[i];
        const struct leaving *to = &leaving[jump.to];
        if (jump.kind != ARC_JUMP || to->others > 0 || to->ranges > FEW)
            continue;
        is_final[jump.from] = is_final[jump.from] || is_final[jump.to];
        if (to->ranges == 0) { /* nothing is left of it */
            builder->arcs[i].kind = ARC_NONE;
            continue;
        }
        for (uint32_t k = 0; k < to->ranges && !builder_failed(builder); k++) {
            struct builder_arc range = builder->arcs[to->at[k]];
            range.from = jump.from;
            if (k == 0)
                builder->arcs[i] = range;
            else
                builder_add(builder, range);
        }
    }
    free(leaving);
    return builder_failed(builder) ? -1 : 0;
}
