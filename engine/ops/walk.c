/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/walk.h"

/* The rows that an operation works on in this step; 0: the step lacks it. */
static int rows_of(const struct operation *operation, const struct batch *batch, bool all_rows)
{
    switch (operation->when) {
    case WHEN_ALWAYS:
        return batch->num_rows;
    case WHEN_LOGITS:
        return batch->num_logits;
    case WHEN_SOME_LOGITS:
        return all_rows ? 0 : batch->num_logits;
    case WHEN_ALL_LOGITS:
        return all_rows ? batch->num_logits : 0;
    case WHEN_HIDDEN:
        return batch->wants_hidden ? batch->num_rows : 0;
    }
    return 0;
}

void walk_copy_region(const struct walk *walk, const struct operation_region *region, char *slot,
                      int64_t position, char *kept, bool back)
{
    const size_t tile =
        region->window == 0 ? 0 : (size_t)(position % region->window / OPS_TILE) * region->bytes;
    for (int i = 0; i < region->count; i++) {
        char *there = slot + region->offset + (size_t)i * region->stride + tile;
        char *here = kept + region->at + (size_t)i * region->bytes;
        walk->copy(walk->backend, back ? there : here, back ? here : there, region->bytes);
    }
}

/* An operation that changes slots. Before a kept row changes a region, that is copied. */
static void perform_in_parts(const struct walk *walk, const struct operation *operation,
                             const struct batch *batch)
{
    for (int p = 0; p < batch->num_parts; p++) {
        const struct batch_part *part = &batch->parts[p];
        for (int s = 0; s < part->num_spans; s++)
            for (int i = 0; i < operation->num_regions && part->spans[s].kept != NULL; i++)
                walk_copy_region(walk, &operation->regions[i], part->spans[s].slot,
                                 part->spans[s].position, part->spans[s].kept, false);
        walk->part(walk->backend, p);
        walk->perform(walk->backend, operation, batch->num_rows);
    }
    walk->part(walk->backend, -1);
}

void walk_operations(const struct walk *walk, const struct operation *operations,
                     int num_operations, const struct batch *batch)
{
    const bool all_rows = batch_wants_all_rows(batch);
    for (int i = 0; i < num_operations; i++) {
        const int num_rows = rows_of(&operations[i], batch, all_rows);
        if (num_rows > 0 && batch->num_parts > 0 && operations[i].num_regions > 0)
            perform_in_parts(walk, &operations[i], batch);
        else if (num_rows > 0)
            walk->perform(walk->backend, &operations[i], num_rows);
    }
}
