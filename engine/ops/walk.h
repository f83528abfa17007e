/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a program's operations one by one, for devices that run them so. */
#ifndef ENGINE_OPS_WALK_H
#define ENGINE_OPS_WALK_H

#include "engine/ops/operation.h"

/* What a device does. */
struct walk {
    struct backend *backend;
    /* num_rows: of one that is OF_ROWS */
    void (*perform)(struct backend *, const struct operation *, int num_rows);
    /* Operations that follow change slots, and work on this part of the batch; -1: on all. */
    void (*part)(struct backend *, int part);
    void (*copy)(struct backend *, void *to, const void *from, size_t bytes);
};

/* Performs those operations of a program that a step with such a batch has, in order. */
void walk_operations(const struct walk *walk, const struct operation *operations,
                     int num_operations, const struct batch *batch);

/* Copies what a row at this position changes of a region: from the slot to the kept row, or back.
 */
void walk_copy_region(const struct walk *walk, const struct operation_region *region, char *slot,
                      int64_t position, char *kept, bool back);

#endif
