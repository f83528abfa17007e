/* SPDX-License-Identifier: Apache-2.0 */
/* One operation of a program: which one, when it runs, and what it works on. */
#ifndef ENGINE_PROGRAM_OPERATION_H
#define ENGINE_PROGRAM_OPERATION_H

#include "engine/ops/ops.h"

struct ops_gather { /* the rows of x that want logits */
    struct rows x, out;
    int cols;
};

/* X(kind, name): the kinds, with the function of struct ops that each is, and its struct. */
#define OPERATIONS(X)                   \
    X(OPERATION_EMBED, embed)           \
    X(OPERATION_NORM, norm)             \
    X(OPERATION_MATMUL, matmul)         \
    X(OPERATION_ROUTE, route)           \
    X(OPERATION_COMBINE, combine)       \
    X(OPERATION_MAP, map)               \
    X(OPERATION_CONV, conv)             \
    X(OPERATION_ANGLES, angles)         \
    X(OPERATION_POSITIONS, positions)   \
    X(OPERATION_RECURRENCE, recurrence) \
    X(OPERATION_SEGMENTS, segments)     \
    X(OPERATION_ATTENTION, attention)   \
    X(OPERATION_GATHER, gather)

#define OPERATION_VALUE(kind, name) kind,
#define OPERATION_MEMBER(kind, name) struct ops_##name name;

enum operation_kind { OPERATIONS(OPERATION_VALUE) };

/* Which steps have it, and how many rows it works on. */
enum operation_when {
    WHEN_ALWAYS,      /* all rows of the step; the others work on those that want logits, */
    WHEN_LOGITS,      /* if there are any: */
    WHEN_SOME_LOGITS, /* not all rows, which are picked first; or */
    WHEN_ALL_LOGITS,  /* every row of the step, in order */
    WHEN_HIDDEN       /* all rows of a step of which some come back as hidden rows */
};

enum { OPERATION_OF_NO_LAYER = -1, WEIGHT_NAME_BYTES = 96 };

/* A packed weight, with what it was packed of. */
struct program_weight {
    struct weight *packed;
    char name[WEIGHT_NAME_BYTES]; /* of its matrices, joined by "+", cut where they are many */
    int64_t rows, cols;           /* of all matrices; with heads, of all heads' */
    int heads;                    /* see ops->weight_create; of routed products: experts */
    bool of_heads;                /* a feature map's, whose format is that of the file */
    double bytes;                 /* in memory, without what pads them */
};

struct operation {
    enum operation_kind kind;
    enum operation_when when;
    int layer;
    union { /* as the backend gets it, but for the number of rows; what these point to follows: */
        OPERATIONS(OPERATION_MEMBER)
    };
    struct ops_norm first;               /* matmul.norm */
    struct ops_positions before, after;  /* recurrence.phi's */
    struct ops_segments vectors;         /* attention.segments */
    const struct program_weight *weight; /* matmul's; NULL in others */
};

/* Whether an operation reads rows or writes them; some do both. */
enum operation_access { ACCESS_READS = 1, ACCESS_WRITES = 2 };

/* Visits all rows of buffers that the operation works on. Rows that lie elsewhere on the device,
 * the same for each row of a step, are not among them. */
typedef void operation_visit(void *context, struct rows *rows, int access);
void operation_each_rows(struct operation *operation, operation_visit *visit, void *context);

/* What an operation changes in a text's slot when the text takes a row: `count` pieces of `bytes`
 * each, `stride` apart, from `offset` on. With a window they are the tiles of a ring of so many
 * keys of each head, and a piece is the tile that has the row's place. */
struct operation_region {
    size_t offset, bytes, stride;
    int count, window;
};
enum { OPERATION_MAX_REGIONS = 2 };
/* Returns how many there are. */
int operation_regions(const struct operation *operation,
                      struct operation_region regions[OPERATION_MAX_REGIONS]);

/* "matmul" */
const char *operation_name(enum operation_kind kind);

#endif
