/* SPDX-License-Identifier: Apache-2.0 */
/* A model as a program: the operations of a step, in order, on buffers whose places are known.
 *
 * emitter.h makes one when a model is opened: it owns the packed weights and all that was uploaded
 * for them. A step runs it (ops->run); cost.h counts its operations and bytes; `regla info
 * --program` prints it. Nothing in it changes between steps. */
#ifndef ENGINE_PROGRAM_PROGRAM_H
#define ENGINE_PROGRAM_PROGRAM_H

#include "engine/ops/operation.h"
#include "engine/state_layout.h"
#include "lib/base/arena.h"

/* Rows of a step that operations hand on: those of one buffer lie side by side in memory. Two
 * buffers may share it where one is used no more before the other is. */
struct program_buffer {
    int64_t width, stride; /* in floats; the stride may pad the width */
    int64_t num_rows;      /* at most */
    int first, last;       /* operations that use it, by number */
    size_t offset;         /* in the program's memory, in bytes */
};

enum { WEIGHT_NAME_BYTES = 96 };

/* A packed weight, with what it was packed of. */
struct program_weight {
    struct weight *packed;
    char name[WEIGHT_NAME_BYTES]; /* of its matrices, joined by "+", cut where they are many */
    int64_t rows, cols;           /* of all matrices; with heads, of all heads' */
    int heads;                    /* see ops->weight_create; of routed products: experts */
    bool of_heads;                /* a feature map's, whose format is that of the file */
    double bytes;                 /* in memory, without what pads them */
};

struct program {
    const struct ops *ops;
    struct backend *backend;

    struct operation *operations; /* [num_operations] */
    int num_operations;
    struct program_buffer *buffers; /* [num_buffers] */
    int num_buffers;
    struct program_weight **weights; /* [num_weights]: in the order of their first products */
    int num_weights;
    /* [num_weights + 2] of a step's products in their order but for routed ones, the first again,
     * NULL */
    const struct weight **order;
    struct rows logits; /* [max_logits, V], dense */
    struct rows hidden; /* [max_rows, D]: behind the last norm; of programs that have hidden rows */
    struct state_layout layout;
    size_t kept_bytes;                         /* of a kept row: of all operations' regions */
    size_t weights_bytes[WEIGHT_FORMAT_COUNT]; /* as packed (auto), and in each format */

    struct arena arena; /* of the weights' descriptions */
    void **uploads;     /* [num_uploads]: on the device */
    int num_uploads;
    struct table *tokens, *positions, *layer_tokens;
    void *memory; /* of all buffers, on the device */
    size_t memory_bytes;
};

/* A text that is behind a kept row goes back to before it: its slot becomes what it was there.
 * position: the row's. Between steps. */
void program_go_back(const struct program *program, char *slot, int64_t position, const char *kept);

/* The number of the buffer that rows of operation i lie in, and the first column of it that they
 * have. */
int program_buffer_of(const struct program *program, int i, const struct rows *rows,
                      int64_t *column);

/* What the operations need of a device; of max_rows, max_logits, max_kept, pages and vocab_size
 * nothing is set. */
struct ops_limits program_limits(const struct program *program);

void program_clear(struct program *program);

#endif
