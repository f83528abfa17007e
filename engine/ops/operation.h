/* SPDX-License-Identifier: Apache-2.0 */
/* One operation of a program: which one, when it runs, and what it works on. A device is given the
 * list of them (ops->run).
 *
 * A new operation is a row of OPERATIONS, its struct in ops.h, what it reads and writes
 * (operation.c), and a function for each device: cpu_NAME, cuda_NAME. */
#ifndef ENGINE_OPS_OPERATION_H
#define ENGINE_OPS_OPERATION_H

#include "engine/ops/ops.h"

/* X(kind, name, profile, rows): struct ops_NAME, the kind of which its time counts, and what it
 * works on: OF_ROWS, as many rows as its num_rows says, which a step sets; OF_BATCH, the spans or
 * rows of the step's batch. */
#define OPERATIONS(X)                                                 \
    X(OPERATION_EMBED, embed, PROFILE_EMBED, OF_BATCH)                \
    X(OPERATION_NORM, norm, PROFILE_NORM, OF_ROWS)                    \
    X(OPERATION_MATMUL, matmul, PROFILE_PRODUCT, OF_ROWS)             \
    X(OPERATION_ROUTE, route, PROFILE_ROUTE, OF_ROWS)                 \
    X(OPERATION_COMBINE, combine, PROFILE_ROUTE, OF_ROWS)             \
    X(OPERATION_MAP, map, PROFILE_MAP, OF_ROWS)                       \
    X(OPERATION_CONV, conv, PROFILE_CONV, OF_BATCH)                   \
    X(OPERATION_ANGLES, angles, PROFILE_ANGLES, OF_BATCH)             \
    X(OPERATION_POSITIONS, positions, PROFILE_POSITIONS, OF_BATCH)    \
    X(OPERATION_RECURRENCE, recurrence, PROFILE_RECURRENCE, OF_BATCH) \
    X(OPERATION_SEGMENTS, segments, PROFILE_ATTENTION, OF_BATCH)      \
    X(OPERATION_ATTENTION, attention, PROFILE_ATTENTION, OF_BATCH)    \
    X(OPERATION_GATHER, gather, PROFILE_GATHER, OF_BATCH)

#define OPERATION_VALUE(kind, name, profile, rows) kind,
#define OPERATION_MEMBER(kind, name, profile, rows) struct ops_##name name;

enum operation_kind { OPERATIONS(OPERATION_VALUE) };

/* Which steps have it, and how many rows it works on. */
enum operation_when {
    WHEN_ALWAYS,      /* all rows of the step; the others work on those that want logits, */
    WHEN_LOGITS,      /* if there are any: */
    WHEN_SOME_LOGITS, /* not all rows, which are picked first; or */
    WHEN_ALL_LOGITS,  /* every row of the step, in order */
    WHEN_HIDDEN       /* all rows of a step of which some come back as hidden rows */
};

enum { OPERATION_OF_NO_LAYER = -1, OPERATION_MAX_REGIONS = 2 };

/* What an operation changes in a text's slot when the text takes a row: `count` pieces of `bytes`
 * each, `stride` apart, from `offset` on. With a window they are the tiles of a ring of so many
 * keys of each head, and a piece is the tile that has the row's place. */
struct operation_region {
    size_t offset, bytes, stride;
    int count, window;
    size_t at; /* in a kept row (struct batch_part), which has what was there */
};

struct program_weight; /* engine/program/program.h */

struct operation {
    enum operation_kind kind;
    enum operation_when when;
    int layer;
    union { /* as the device gets it, but for the number of rows; what these point to follows: */
        OPERATIONS(OPERATION_MEMBER)
    };
    struct ops_norm first;               /* matmul.norm */
    struct ops_positions before, after;  /* recurrence.phi's */
    struct ops_segments vectors;         /* attention.segments */
    const struct program_weight *weight; /* matmul's; NULL in others */
    struct operation_region regions[OPERATION_MAX_REGIONS];
    int num_regions;
};

/* Whether an operation reads rows or writes them; some do both. */
enum operation_access { ACCESS_READS = 1, ACCESS_WRITES = 2 };

/* Visits all rows of buffers that the operation works on. Rows that lie elsewhere on the device,
 * the same for each row of a step, are not among them. */
typedef void operation_visit(void *context, struct rows *rows, int access);
void operation_each_rows(struct operation *operation, operation_visit *visit, void *context);

/* Finds the operation's regions; their places in a kept row are left. */
void operation_find_regions(struct operation *operation);

/* "matmul" */
const char *operation_name(enum operation_kind kind);

#endif
