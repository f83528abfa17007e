/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the buffers of a program their memory. Until then rows point into an address space of the
 * program's own, in which each buffer has 4 GiB to itself, so that columns are counted as in
 * memory; nothing may be read there. */
#ifndef ENGINE_PROGRAM_PLACING_H
#define ENGINE_PROGRAM_PLACING_H

#include "engine/program/program.h"

enum { PLACING_COLUMN_BITS = 32 };
static const int64_t PLACING_MAX_WIDTH = ((int64_t)1 << PLACING_COLUMN_BITS) / sizeof(float);

/* Where rows of buffer b point until it has a place. */
static inline struct rows placing_rows(int b, int64_t stride)
{
    const uintptr_t address = (uintptr_t)(b + 1) << PLACING_COLUMN_BITS;
    return (struct rows){(float *)address, stride}; // NOLINT(performance-no-int-to-ptr)
}

/* Finds the first and the last operation that use each buffer, and an offset for each buffer. Those
 * with `first` and `last` set before keep them if they are more. Sets memory_bytes. -1: it is too
 * much for any memory. */
int placing_plan(struct program *program);

/* Lets all rows point where their buffers are, which begin at memory. */
void placing_apply(struct program *program);

#endif
